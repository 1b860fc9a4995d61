"""How requests come into the engine's process: over the wire, or from a thread of its own (`engine_proc.inproc`)."""

from __future__ import annotations

from typing import Any, Protocol

from engine_proc.intake.inbox import Inbox
from engine_proc.intake.ingress import Ingress
from engine_proc.intake.polled_inbox import PolledInbox
from harness.common.control import ControlMessage
from harness.common.wire import Wire


class Entrance(Protocol):
    """Opened before READY, begun after START, closed when the step loop has ended."""

    def open(self) -> None:
        """Be able to take requests."""

    def ready(self) -> dict[str, Any]:
        """What READY says of it."""

    def begin(self) -> None:
        """The engine is about to loop."""

    def close(self) -> ControlMessage | None:
        """Wait for its threads; a control message that one of them took and that is for the engine."""


class WireEntrance:
    """The data socket's wire, and the ingress thread behind it, or the step loop itself (`--ingress polled`)."""

    def __init__(self, wire: Wire, ingress: Ingress, inbox: Inbox) -> None:
        self._wire = wire
        self._ingress = ingress
        self._inbox = inbox

    def open(self) -> None:
        """Bind and take messages. Raises what binding the socket raised."""
        self._wire.start()
        if isinstance(self._inbox, PolledInbox):
            self._inbox.fill_from(self._ingress, self._wire)
        else:
            self._ingress.start()

    def ready(self) -> dict[str, Any]:
        """wire: which kind stamps the messages."""
        return {"wire": "compiled" if self._wire.compiled else "python"}

    def begin(self) -> None:
        """Nothing is left to do: messages are taken since `open`."""

    def close(self) -> None:
        """Wait for the threads, which end with the stop word."""
        if not isinstance(self._inbox, PolledInbox):
            self._ingress.join()
        self._wire.join()
