"""An inbox that the step loop fills itself (`--ingress polled`): no ingress thread, so none waits for the GIL.

A message then waits in the wire's ring for the end of the running step, with its t_wire stamp taken; that wait is in
ingress_wait, where the ingress thread would have shown it as loop_wait.
"""

from __future__ import annotations

import select

from engine_proc.intake.inbox import Inbox, InboxItem
from engine_proc.intake.ingress import Ingress
from harness.common.wire import Wire


class PolledInbox(Inbox):
    """Drains the wire whenever the step loop asks for what is there. owned by: step loop"""

    def __init__(self) -> None:
        super().__init__()
        self._ingress: Ingress | None = None
        self._wire: Wire | None = None
        self._poller = select.poll()

    def fill_from(self, ingress: Ingress, wire: Wire) -> None:
        """Take messages with `ingress`, which puts them here, from `wire`, whose thread runs."""
        self._ingress, self._wire = ingress, wire
        self._poller.register(wire.fd, select.POLLIN)

    def take_all(self) -> list[InboxItem]:
        """Everything that has arrived. Raises RunError where the wire has ended before its time."""
        assert self._ingress is not None
        self._ingress.drain()
        return super().take_all()

    def wait(self, timeout_s: float) -> InboxItem | None:
        """The next item, or None where no message comes within `timeout_s`."""
        assert self._ingress is not None and self._wire is not None
        self._ingress.drain()
        item = super().wait(0)
        if item is not None:
            return item
        self._wire.arm()
        if self._poller.poll(timeout_s * 1000):
            self._wire.park()  # cannot block: the descriptor is ready; reading it resets it
            self._ingress.drain()
        return super().wait(0)
