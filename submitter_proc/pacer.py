"""The pacer: sleeps to just before each deadline, spins the rest, sends without blocking. Late means send now.

`PythonPacer` is the plain loop and the oracle of `pacer_compiled.CompiledPacer`; both write the same stamps.
"""

from __future__ import annotations

import errno as codes
import os
import time
from typing import NamedTuple, Protocol

import zmq

from harness.common.clock import Clock
from harness.common.collector import CONTROL_WORDS, Int64Array, submitter_line
from harness.common.stamps import SUBMITTER_COLUMNS, SendResult
from submitter_proc.frames import PackedRun

SLICE_NS = 20_000_000  # longest sleep between two looks at the stop word
#: A long wait ends with a sleep of this length, as calibrated: the longer a virtual CPU was idle, the later it wakes.
LAST_SLEEP_NS = 1_000_000
#: libzmq's I/O thread, which shares the pacer's core, runs about so long for a message: no yield this close to a
#: deadline, unless it has not been let in for IO_STARVE_NS.
IO_RUN_NS, IO_STARVE_NS = 60_000, 250_000
#: A yield that took longer than the first let libzmq's I/O thread run; one that took longer than the second, another.
EMPTY_YIELD_NS, IO_YIELD_NS = 5_000, 500_000
INTENDED, SEND, SENT, RESULT, ERRNO, SLOT = (SUBMITTER_COLUMNS.index(name) for name in SUBMITTER_COLUMNS)


class Waiting(NamedTuple):
    """How the pacer waits. relative: the published clock; margin_ns: spin so long before a deadline (0: only sleep)."""

    relative: bool
    margin_ns: int


class PaceEnd(NamedTuple):
    """How far a run got: requests handled, and the errno that ended it early (0: none)."""

    handled: int
    errno: int


class Pacer(Protocol):
    """Sends one packed run from `t0_ns` on; returns early when the stop word is set."""

    name: str

    def run(self, packed: PackedRun, t0_ns: int, waiting: Waiting) -> PaceEnd: ...


class NonBlockingSender(Protocol):
    """The send call: returns 0, or an errno (EAGAIN: it would have blocked)."""

    def __call__(self, frame: memoryview) -> int: ...


def zmq_sender(socket: zmq.Socket[bytes]) -> NonBlockingSender:
    """A sender over a PUSH socket."""

    def send(frame: memoryview) -> int:
        try:
            socket.send(frame, zmq.DONTWAIT)
        except zmq.ZMQError as error:
            return error.errno or -1
        return 0

    return send


class PythonPacer:
    """`time.sleep` (an absolute clock_nanosleep since Python 3.11), then spin on the clock."""

    name = "python"

    def __init__(self, send: NonBlockingSender, control: Int64Array, clock: Clock, shard: int = 0) -> None:
        self._line = submitter_line(shard)
        self._send = send
        self._control = control
        self._clock = clock
        self._yielded = 0

    def run(self, packed: PackedRun, t0_ns: int, waiting: Waiting) -> PaceEnd:
        """Send all requests of `packed`. t0_ns: CLOCK_MONOTONIC ns of offset 0."""
        control, stamps, clock = self._control, packed.stamps, self._clock
        frames = memoryview(packed.frames)
        starts, offsets = packed.starts.tolist(), packed.offsets_ns.tolist()
        previous_end, previous_offset = t0_ns, 0
        for i, offset in enumerate(offsets):
            deadline = previous_end + offset - previous_offset if waiting.relative else t0_ns + offset
            # A gap that leaves little time to sleep: yield, else the I/O thread starves.
            now = self._wait(deadline, waiting.margin_ns, short=offset - previous_offset <= 2 * waiting.margin_ns)
            if now == 0:
                return PaceEnd(i, 0)
            row = stamps[i * packed.step]
            row[INTENDED] = deadline  # before the send: a kill in between must not leave a message without its stamps
            row[SLOT] = deadline  # nothing but the clock holds a request of an open loop back
            row[SEND] = now
            errno = self._send(frames[starts[i] : starts[i + 1]])
            if errno == codes.EINTR:
                errno = self._send(frames[starts[i] : starts[i + 1]])
            sent = clock()
            previous_end, previous_offset = sent, offset
            row[SENT] = sent
            if errno == 0:
                row[RESULT] = SendResult.SENT
                control[CONTROL_WORDS["sent"] + self._line] += 1
            elif errno == codes.EAGAIN:
                row[RESULT], row[ERRNO] = SendResult.REFUSED, errno
                control[CONTROL_WORDS["refused"] + self._line] += 1
            else:
                row[RESULT], row[ERRNO] = SendResult.ERROR, errno
                control[CONTROL_WORDS["send_errors"] + self._line] += 1
                return PaceEnd(i + 1, errno)
        return PaceEnd(packed.num_requests, 0)

    def _wait(self, deadline: int, margin_ns: int, short: bool) -> int:
        """Wait for the deadline; returns the clock reading that ended the wait, 0 where the stop word was set."""
        control, clock = self._control, self._clock
        stop = CONTROL_WORDS["stop"]
        wake = deadline - margin_ns
        now = clock()
        while True:
            if control[stop] != 0:
                return 0
            if now >= wake:
                break
            until = min(wake, now + SLICE_NS)
            if wake - now > 2 * LAST_SLEEP_NS:
                until = min(until, wake - LAST_SLEEP_NS)
            time.sleep((until - now) / 1e9)
            now = clock()
        woke = now
        while now < deadline:
            if short and (deadline - now > IO_RUN_NS or now - self._yielded > IO_STARVE_NS):
                os.sched_yield()
                self._yielded, now = now, clock()
                if EMPTY_YIELD_NS < now - self._yielded < IO_YIELD_NS:
                    control[CONTROL_WORDS["yield_ns"] + self._line] += now - self._yielded
            now = clock()
        control[CONTROL_WORDS["spin_ns"] + self._line] += now - woke
        return now
