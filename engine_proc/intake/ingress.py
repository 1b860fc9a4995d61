"""The ingress thread: takes messages from the wire, stamps them, decodes them and hands them to admission."""

from __future__ import annotations

import threading
from collections.abc import Callable

from engine_proc.backends.base import Capacity
from engine_proc.intake.admission import Admission, TextEncoder
from engine_proc.intake.inbox import Inbox
from engine_proc.intake.plan_source import PlanSource
from harness.common.clock import Clock
from harness.common.collector import CONTROL_WORDS, Collector
from harness.common.errors import FrameError, RunError
from harness.common.processes import name_thread
from harness.common.protocol import AbortFrame, IndexFrame, RequestFrame, unpack_request
from harness.common.wire import Arrival, Wire

__all__ = ["Ingress", "TextEncoder"]


class Ingress:
    """Owns the ingress thread, and admission with its tokenizer workers."""

    def __init__(
        self,
        wire: Wire,
        collector: Collector,
        inbox: Inbox,
        tokenizer: TextEncoder,
        capacity: Capacity,
        workers: int,
        clock: Clock,
        on_crash: Callable[[BaseException], None],
        source: PlanSource | None = None,
    ) -> None:
        self._wire = wire
        self._stamped = wire.compiled  # without the GIL; else the message's own stamp tells nothing
        self._control = memoryview(collector.control).cast("B").cast("q")
        self._num_rows = collector.shape.rows
        self._clock = clock
        self._on_crash = on_crash
        self._source = source
        self._admission = Admission(collector, inbox, tokenizer, capacity, workers, clock, on_crash)
        self._thread = threading.Thread(target=self._run, name="ingress", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._admission.start()

    def join(self) -> None:
        """Wait for the threads; the ingress thread ends when the wire has ended, the workers after it."""
        self._thread.join()
        self._admission.join()

    def _run(self) -> None:
        name_thread(self._thread.name)
        try:
            while not self.drain():
                self._wire.arm()
                self._wire.park()
        except BaseException as error:  # never a silent exit: everything later would hang
            self._on_crash(error)
        finally:  # also after a crash: a worker without work would wait for ever
            self._admission.end()

    def drain(self) -> bool:
        """Take the messages that are there, on the calling thread; whether the wire has ended.

        Raises RunError where it did so although nobody asked it to.
        """
        wire = self._wire
        while True:
            arrival = wire.pop()
            if arrival is not None:
                self._take(arrival, self._clock())
            elif not wire.ended():
                return False
            elif self._control[CONTROL_WORDS["stop"]] == 0:
                errno = self._control[CONTROL_WORDS["wire_errno"]]
                raise RunError(f"the engine's wire thread ended in the middle of a session (errno {errno})")
            else:
                return True

    def _take(self, arrival: Arrival, t_ingress: int) -> None:
        stamped = self._stamped
        try:
            frame = unpack_request(arrival.frame, self._num_rows)
            if isinstance(frame, AbortFrame):
                self._admission.abort(frame.row)
                return
            if isinstance(frame, IndexFrame):
                frame = self._look_up(frame.row)
            self._admission.take(
                frame, arrival.t_wire if stamped else t_ingress, t_ingress, parked=stamped and arrival.parked
            )
        except FrameError:
            self._control[CONTROL_WORDS["bad_frames"]] += 1

    def _look_up(self, row: int) -> RequestFrame:
        """The planned request of a row. Raises FrameError in a session whose messages hold their requests."""
        if self._source is None:
            raise FrameError("index frame in a session without an indexed plan")
        return self._source.request(row)
