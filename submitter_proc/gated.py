"""The pacer of loads that react: requests that wait for an earlier one's end, and a cap on requests in flight.

It learns of ends without a lock: the harness's receiver writes a row's `t_ended` and then its count `finished`, one
writer a cell; the pacer reads the count at every turn and looks at the rows it waits for when the count has changed.
`GatedPythonPacer` is the plain loop and the oracle of `gated_compiled.GatedCompiledPacer`.
"""

from __future__ import annotations

import errno as codes
import heapq
import os
import time
from typing import NamedTuple, Protocol

import numpy as np

from harness.common.clock import Clock
from harness.common.collector import CONTROL_WORDS, Int64Array
from harness.common.plan_file import LoadPlan
from harness.common.stamps import RECEIVER_COLUMNS, SendResult
from submitter_proc.frames import PackedRun
from submitter_proc.pacer import (
    EMPTY_YIELD_NS,
    ERRNO,
    INTENDED,
    IO_RUN_NS,
    IO_STARVE_NS,
    IO_YIELD_NS,
    LAST_SLEEP_NS,
    RESULT,
    SEND,
    SENT,
    SLICE_NS,
    SLOT,
    NonBlockingSender,
    PaceEnd,
    Waiting,
)

#: Longest sleep while an end is awaited: with a core of its own, and where the engine shares the pacer's core. Measured
#: from an end to the next send, p50: 135, 123, 140 us at 20, 50, 100 us, for 34, 25, 12 % of the core; most of it is
#: the receiver's Python, and libzmq's I/O thread, which shares the core, is faster the less is polled.
POLL_NS, SHARED_POLL_NS = 100_000, 200_000
#: The rows are looked at this often even where the count has not changed: two cells are not one write.
LOOK_AGAIN_NS = 1_000_000
FAR = 2**62
ENDED = RECEIVER_COLUMNS.index("t_ended")


class Gates(NamedTuple):
    """What holds the requests of one run back, n rows.

    roots: int64[r], the rows that are due at their own offsets, in order. think_ns: int64[n]. The rows that wait for
    row i are children[child_starts[i]:child_starts[i + 1]]. heard: int64[n, columns], the receiver's rows of this run
    in the collector. cap: most requests in flight, 0: no cap.
    """

    roots: Int64Array
    think_ns: Int64Array
    children: Int64Array
    child_starts: Int64Array
    heard: Int64Array
    cap: int


def gates_of(plan: LoadPlan, rows: int, heard: Int64Array, cap: int) -> Gates:
    """The gates of the plan's first `rows` requests."""
    after = np.full(rows, -1, dtype=np.int64) if plan.after is None else plan.after[:rows].astype(np.int64)
    think_ns = np.zeros(rows, dtype=np.int64) if plan.think_ns is None else plan.think_ns[:rows].astype(np.int64)
    order = np.argsort(after, kind="stable")
    roots, children = np.split(order, [int((after < 0).sum())])
    child_starts = np.searchsorted(after[children], np.arange(rows + 1)).astype(np.int64)
    return Gates(np.ascontiguousarray(roots), think_ns, np.ascontiguousarray(children), child_starts, heard, cap)


class GatedPacer(Protocol):
    """As `pacer.Pacer`, of a run with gates."""

    name: str

    def run(self, packed: PackedRun, gates: Gates, t0_ns: int, waiting: Waiting) -> PaceEnd: ...


class _Due(NamedTuple):
    """A request whose due time is known: they leave in the order of due time, then row. known: when it was seen."""

    due: int
    row: int
    known: int


class GatedPythonPacer:
    """One turn after the other: look for ends, then send what is due and has a slot, or wait a little."""

    name = "python"

    def __init__(self, send: NonBlockingSender, control: Int64Array, clock: Clock) -> None:
        self._send = send
        self._control = control
        self._clock = clock
        self._yielded = 0

    def run(self, packed: PackedRun, gates: Gates, t0_ns: int, waiting: Waiting) -> PaceEnd:
        """Send all requests of `packed`. t0_ns: CLOCK_MONOTONIC ns of offset 0; the wait is never relative."""
        state = _State(packed, gates, t0_ns, int(self._control[CONTROL_WORDS["finished"]]))
        handled, slept = 0, True
        while handled < packed.num_requests:
            if self._control[CONTROL_WORDS["stop"]] != 0:
                return PaceEnd(handled, 0)
            now = state.look(self._clock, int(self._control[CONTROL_WORDS["finished"]]))
            target = state.target()
            if now < target:
                slept |= self._wait(now, target, waiting.margin_ns, watching=state.watching, may_yield=not slept)
                continue
            slept = False
            errno = self._send_row(packed, state, state.pop(), now)
            handled += 1
            if errno not in (0, codes.EAGAIN):
                return PaceEnd(handled, errno)
        return PaceEnd(handled, 0)

    def _send_row(self, packed: PackedRun, state: _State, due: _Due, now: int) -> int:
        row, control = packed.stamps[due.row], self._control
        frame = memoryview(packed.frames)[packed.starts[due.row] : packed.starts[due.row + 1]]
        row[INTENDED] = due.due  # before the send, as in the open loop
        row[SLOT] = max(due.due, due.known, state.free_since)
        row[SEND] = now
        errno = self._send(frame)
        if errno == codes.EINTR:
            errno = self._send(frame)
        row[SENT] = sent = self._clock()
        if errno == 0:
            row[RESULT] = SendResult.SENT
            control[CONTROL_WORDS["sent"]] += 1
            state.took(due.row)
        elif errno == codes.EAGAIN:
            row[RESULT], row[ERRNO] = SendResult.REFUSED, errno
            control[CONTROL_WORDS["refused"]] += 1
            state.release(due.row, sent, sent)
        else:
            row[RESULT], row[ERRNO] = SendResult.ERROR, errno
            control[CONTROL_WORDS["send_errors"]] += 1
        return errno

    def _wait(self, now: int, target: int, margin_ns: int, *, watching: bool, may_yield: bool) -> bool:
        """Sleep or spin a little; returns whether it slept."""
        wake = target - margin_ns
        if now >= wake:
            if may_yield and (target - now > IO_RUN_NS or now - self._yielded > IO_STARVE_NS):
                os.sched_yield()
                self._yielded = now
                if EMPTY_YIELD_NS < (given := self._clock() - now) < IO_YIELD_NS:
                    self._control[CONTROL_WORDS["yield_ns"]] += given
            self._control[CONTROL_WORDS["spin_ns"]] += self._clock() - now
            return False
        until = min(wake, now + SLICE_NS)
        if watching:
            until = min(wake, now + (POLL_NS if margin_ns else SHARED_POLL_NS))
        elif wake - now > 2 * LAST_SLEEP_NS:
            until = min(until, wake - LAST_SLEEP_NS)
        time.sleep((until - now) / 1e9)
        return True


class _State:
    """Which requests are due when, and which slots are taken. owned by: the pacer's thread"""

    def __init__(self, packed: PackedRun, gates: Gates, t0_ns: int, finished: int) -> None:
        roots = gates.roots.tolist()
        dues = (packed.offsets_ns[gates.roots] + t0_ns).tolist()
        self._queue = [_Due(due, row, 0) for due, row in zip(dues, roots, strict=True)]  # sorted, so a heap
        self._gates = gates
        self._watched: list[int] = []  # rows under way that others wait for
        self._base = self._seen = finished
        self._sent = self._looked = 0
        self.free_since = 0  # when a slot was last seen to become free after all had been taken

    def look(self, clock: Clock, finished: int) -> int:
        """Take in what has ended; returns a clock reading that is not before any end taken in."""
        now = clock()
        if finished == self._seen and not (self._watched and now - self._looked >= LOOK_AGAIN_NS):
            return now
        was_full = self._full
        self._seen = finished
        ended = [row for row in self._watched if self._gates.heard[row, ENDED] != 0]
        self._watched = sorted(set(self._watched).difference(ended))
        now = self._looked = clock()
        for row in ended:
            self.release(row, int(self._gates.heard[row, ENDED]), now)
        if was_full and not self._full:
            self.free_since = now
        return now

    def target(self) -> int:
        """When the next request may leave, as far as is known: FAR where that hangs on an end."""
        return FAR if not self._queue or self._full else self._queue[0].due

    @property
    def watching(self) -> bool:
        """Whether an end may change what comes next."""
        return bool(self._watched) or self._full

    def pop(self) -> _Due:
        """The request that leaves now."""
        return heapq.heappop(self._queue)

    def took(self, row: int) -> None:
        """The row has left: it holds a slot until its end."""
        self._sent += 1
        if self._gates.child_starts[row] < self._gates.child_starts[row + 1]:
            self._watched.append(row)

    def release(self, row: int, ended: int, known: int) -> None:
        """The row has ended: those that wait for it are due a think time later."""
        starts = self._gates.child_starts
        for child in self._gates.children[starts[row] : starts[row + 1]].tolist():
            heapq.heappush(self._queue, _Due(ended + int(self._gates.think_ns[child]), child, known))

    @property
    def _full(self) -> bool:
        return 0 < self._gates.cap <= self._sent - (self._seen - self._base)
