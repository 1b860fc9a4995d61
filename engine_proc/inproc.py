"""`--topology inproc`: the submitter as a thread of the engine's process, the published design.

Its clock is `time.sleep`, its add_request is all that ingress does, tokenizing included, in one call. A pacer without
the GIL would hide what this topology is there to show: the clock and the engine's Python compete for one lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from engine_proc.intake.admission import Admission
from harness.common import control as words
from harness.common.clock import NS_PER_S, Clock
from harness.common.collector import CONTROL_WORDS, Collector
from harness.common.control import ControlChannel, ControlMessage
from harness.common.errors import ProtocolError
from harness.common.plan_file import LoadPlan
from harness.common.processes import name_thread
from harness.common.protocol import TEXT, TOKENS, RequestFrame, Sampling
from harness.common.stamps import SUBMITTER_COLUMNS, SendResult

SLICE_NS = 20_000_000  # longest sleep between two looks at the stop word
IDLE_WAIT_S = 0.05  # how often it looks at the stop word between two runs
INTENDED, SEND, SENT, RESULT, SLOT = (
    SUBMITTER_COLUMNS.index(name) for name in ("t_intended", "t_send", "t_sent", "send_result", "t_slot")
)


class Load(NamedTuple):
    """What is sent, and by which clock: `relative` sleeps for the interval after each add_request, as published."""

    plan: LoadPlan
    sampling: Sampling
    relative: bool


class PreparedRun(NamedTuple):
    """The requests of one run, made before t0: request i is collector row `first_row + i`, due at `offsets_ns[i]`."""

    first_row: int
    frames: list[RequestFrame]
    offsets_ns: list[int]


def prepare_run(load: Load, first_row: int, rows: int) -> PreparedRun:
    """Requests 0..rows-1 of the plan as collector rows first_row.. ; request i draws with seed `seed + i`."""
    plan, sampling = load.plan, load.sampling
    kind = TOKENS if plan.pretokenized else TEXT
    max_new = plan.max_new_tokens[:rows].tolist()
    frames = [
        RequestFrame(kind, first_row + i, max_new[i], sampling._replace(seed=sampling.seed + i), bytes(plan.payload(i)))
        for i in range(rows)
    ]
    return PreparedRun(first_row, frames, plan.offsets_ns[:rows].tolist())


@dataclass(frozen=True, slots=True)
class SleepingClock:
    """The published wait, in slices so that the stop word is seen. sleep: seconds, `time.sleep`."""

    clock: Clock
    sleep: Callable[[float], None]
    stopped: Callable[[], bool]

    def until(self, target_ns: int) -> bool:
        """Sleep until CLOCK_MONOTONIC says `target_ns`; False where the stop word was set."""
        while True:
            now = self.clock()
            if self.stopped():
                return False
            if now >= target_ns:
                return True
            self.sleep(min(target_ns - now, SLICE_NS) / NS_PER_S)


class InprocSubmitter:
    """Owns the submitter's block of the collector, and the control channel from `begin` until `close`."""

    def __init__(
        self,
        channel: ControlChannel,
        load: Load,
        admission: Admission,
        collector: Collector,
        clock: Clock,
        settle_gc: Callable[[], None],
        on_crash: Callable[[BaseException], None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """settle_gc: called before each run, once its requests exist. on_crash: told what ended the thread early."""
        self._channel = channel
        self._load = load
        self._admission = admission
        self._control = memoryview(collector.control).cast("B").cast("q")
        self._stamps = memoryview(collector.submitter).cast("B").cast("q")
        self._width = collector.submitter.shape[1]
        self._clock = clock
        self._wait = SleepingClock(clock, sleep, lambda: self._control[CONTROL_WORDS["stop"]] != 0)
        self._settle_gc = settle_gc
        self._on_crash = on_crash
        self._left_over: ControlMessage | None = None
        self._thread = threading.Thread(target=self._run, name="submitter", daemon=True)

    def open(self) -> None:
        """Start the tokenizer workers, if there are any."""
        self._admission.start()

    def ready(self) -> dict[str, Any]:
        """wire: there is none. pacer: as a submitter process describes its own."""
        return {"wire": "none", "pacer": {"name": "time.sleep", "fallback": "", "wait": "sleep", "margin_ns": 0}}

    def begin(self) -> None:
        """Start the thread, which answers the harness from now on."""
        self._thread.start()

    def close(self) -> ControlMessage | None:
        """Wait for the thread, which ends with the stop word; a message that it took but that is not for it."""
        self._thread.join()
        self._admission.join()
        return self._left_over

    def _run(self) -> None:
        name_thread(self._thread.name)
        try:
            self._serve()
        except BaseException as error:  # never a silent exit: the harness would wait for RUN_SENT
            self._on_crash(error)
        finally:
            self._admission.end()

    def _serve(self) -> None:
        while not self._wait.stopped():
            message = self._channel.receive(IDLE_WAIT_S)
            if message is None:
                continue
            if self._wait.stopped():
                self._left_over = message  # the harness sets the word first: this is for the engine
                return
            if message.kind != words.ARM:
                raise ProtocolError(f"the submitter in the engine's process does not know {message.kind}")
            run = prepare_run(self._load, message.body["first_row"], message.body["rows"])
            self._settle_gc()
            self._channel.send(words.ARMED)
            start = self._channel.expect(words.START, timeout_s=86_400)
            handled = self.pace(run, start.body["t0_ns"])
            self._control[CONTROL_WORDS["submitter_done_runs"]] += 1
            self._channel.send(words.RUN_SENT, handled=handled, errno=0)

    def pace(self, run: PreparedRun, t0_ns: int) -> int:
        """Send all requests of a run; how many it got to before the stop word. t0_ns: CLOCK_MONOTONIC of offset 0."""
        relative = self._load.relative
        previous_offset, intended = 0, t0_ns
        for frame, offset in zip(run.frames, run.offsets_ns, strict=True):
            gap = offset - previous_offset
            if relative and frame.row != run.first_row:
                intended += gap
                target = self._clock() + gap  # sleep for the interval, whatever the time is by now
            else:
                target = intended = t0_ns + offset
            if not self._wait.until(target):
                return frame.row - run.first_row
            sent = self._add_request(frame, intended)
            previous_offset = offset
            intended = sent
        return len(run.frames)

    def _add_request(self, frame: RequestFrame, intended: int) -> int:
        """Stamp and hand over one request; when the call returned. What holds the GIL until then is in its time."""
        base = frame.row * self._width
        stamps, control = self._stamps, self._control
        stamps[base + INTENDED] = stamps[base + SLOT] = intended
        stamps[base + SEND] = now = self._clock()
        control[CONTROL_WORDS["wire_messages"]] += 1  # there is no wire: what is sent has arrived
        self._admission.take(frame, now, now, parked=False)
        stamps[base + SENT] = sent = self._clock()
        stamps[base + RESULT] = SendResult.SENT
        control[CONTROL_WORDS["sent"]] += 1
        return sent
