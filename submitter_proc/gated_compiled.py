"""The gated pacer's loop as compiled functions without the GIL: turn by turn what `gated.GatedPythonPacer` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zmq

from harness.common.collector import CONTROL_WORDS, Int64Array
from harness.common.nogil import at, compile_loop
from harness.common.stamps import SendResult
from submitter_proc.frames import PackedRun
from submitter_proc.gated import ENDED, FAR, LOOK_AGAIN_NS, POLL_NS, SHARED_POLL_NS, Gates
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
    PaceEnd,
    Waiting,
)

#: Columns of the queue of requests whose due time is known, in order of due time, then row.
DUE, ROW, KNOWN = 0, 1, 2
QUEUE_COLUMNS = 3
#: Cells of the loop's own state.
HEAD, TAIL, WATCHED, SEEN, SENT_COUNT, LOOKED, FREE_SINCE = range(7)


class GatedCompiledPacer:
    """Sleeps, spins, looks and sends in compiled code; `loop` is what `compile_gated` returned."""

    name = "compiled"

    def __init__(self, loop: Any, socket: zmq.Socket[bytes], control: Int64Array) -> None:
        self._loop = loop
        self._socket = int(socket.underlying)  # owned by: the thread that calls run
        self._control = control

    def run(self, packed: PackedRun, gates: Gates, t0_ns: int, waiting: Waiting) -> PaceEnd:
        """Send all requests of `packed`. t0_ns: CLOCK_MONOTONIC ns of offset 0; the wait is never relative."""
        return _call(self._loop, self._socket, packed, gates, self._control, t0_ns, waiting)


def _call(
    loop: Any, socket: int, packed: PackedRun, gates: Gates, control: Int64Array, t0_ns: int, waiting: Waiting
) -> PaceEnd:
    n = packed.num_requests
    queue = np.ones((max(n, 1), QUEUE_COLUMNS), dtype=np.int64)  # written now: a page fault in the loop would be lag
    queue[: len(gates.roots), KNOWN] = 0
    queue[: len(gates.roots), DUE] = packed.offsets_ns[gates.roots] + t0_ns
    queue[: len(gates.roots), ROW] = gates.roots
    watched = np.ones(max(n, 1), dtype=np.int64)
    state = np.zeros(8, dtype=np.int64)
    state[TAIL] = len(gates.roots)
    scratch = np.zeros(6, dtype=np.int64)
    loop(
        socket, at(packed.frames), at(packed.starts), n, at(packed.stamps), packed.stamps.shape[1], at(gates.think_ns),
        at(gates.children), at(gates.child_starts), at(gates.heard), gates.heard.shape[1], gates.cap, at(queue),
        at(watched), at(state), at(control), waiting.margin_ns, at(scratch),
    )  # fmt: skip
    return PaceEnd(int(scratch[4]), int(scratch[5]))


def compile_gated() -> Any:
    """The loop. Raises NogilUnavailableError where numba, libzmq or libc cannot be had."""
    return compile_loop("gated", _build_gated, 18, Path(__file__).parent)


class _Helpers(NamedTuple):
    release: Any
    is_full: Any
    take_in: Any
    send: Any


def _build_helpers() -> _Helpers:
    from harness.common.nogil_numba import clock_gettime, loop, zmq_errno, zmq_send

    @loop
    def release(row, ended, known, think_ns, children, child_starts, queue, state):
        """Those that wait for `row` are due a think time after its end: insert them into the sorted queue."""
        for i in range(child_starts[row], child_starts[row + 1]):
            child = children[i]
            due = ended + think_ns[child]
            at = state[TAIL]
            while at > state[HEAD] and (
                queue[at - 1, DUE] > due or (queue[at - 1, DUE] == due and queue[at - 1, ROW] > child)
            ):
                for column in range(QUEUE_COLUMNS):  # cell by cell: copying a row would compile for seconds
                    queue[at, column] = queue[at - 1, column]
                at -= 1
            queue[at, DUE] = due
            queue[at, ROW] = child
            queue[at, KNOWN] = known
            state[TAIL] += 1

    @loop
    def is_full(cap, base, state):
        return 0 < cap <= state[SENT_COUNT] - (state[SEEN] - base)

    @loop
    def take_in(finished, base, cap, think_ns, children, child_starts, heard, queue, watched, state, scratch, here):
        """Take in what has ended; returns a clock reading that is not before any end taken in."""
        was_full = is_full(cap, base, state)
        state[SEEN] = finished
        first = state[WATCHED]
        i = 0
        while i < first:  # what has ended goes behind what has not
            row = watched[i]
            if heard[row, ENDED] != 0:
                first -= 1
                watched[i] = watched[first]
                watched[first] = row
            else:
                i += 1
        clock_gettime(1, here)
        now = scratch[0] * 1_000_000_000 + scratch[1]
        for k in range(first, state[WATCHED]):
            release(watched[k], heard[watched[k], ENDED], now, think_ns, children, child_starts, queue, state)
        state[WATCHED] = first
        state[LOOKED] = now
        if was_full and not is_full(cap, base, state):
            state[FREE_SINCE] = now
        return now

    @loop
    def send(socket, frame, nbytes):
        """0 or an errno; an interrupted send is tried once more."""
        for _ in range(2):
            errno = 0
            if zmq_send(socket, frame, nbytes, 1) < 0:
                errno = zmq_errno()
            if errno != 4:
                break
        return errno

    return _Helpers(release, is_full, take_in, send)


def _build_gated() -> Any:
    from harness.common.nogil_numba import cells, clock_gettime, clock_nanosleep, loop, rows, sched_yield

    release, is_full, take_in, send = _build_helpers()
    stop, spin_ns, yield_ns, finished_word = (
        CONTROL_WORDS[name] for name in ("stop", "spin_ns", "yield_ns", "finished")
    )
    sent_word, refused_word, errors_word = (CONTROL_WORDS[name] for name in ("sent", "refused", "send_errors"))
    sent_result, refused_result, error_result = int(SendResult.SENT), int(SendResult.REFUSED), int(SendResult.ERROR)

    # scratch: [0:2] the clock's timespec, [2:4] the timespec to sleep until
    @loop
    def pace(
        socket, frames, starts, n, stamps, think_ns, children, child_starts, heard, cap, queue, watched, state, control,
        margin, scratch, here,
    ):  # fmt: skip
        poll_ns = POLL_NS if margin > 0 else SHARED_POLL_NS
        base = control[finished_word]
        state[SEEN] = base
        handled, yielded, slept = 0, 0, True
        while handled < n:
            if control[stop] != 0:
                return handled, 0
            finished = control[finished_word]
            clock_gettime(1, here)
            now = scratch[0] * 1_000_000_000 + scratch[1]
            if finished != state[SEEN] or (state[WATCHED] > 0 and now - state[LOOKED] >= LOOK_AGAIN_NS):
                now = take_in(
                    finished, base, cap, think_ns, children, child_starts, heard, queue, watched, state, scratch, here
                )
            full = is_full(cap, base, state)
            target = FAR if full or state[HEAD] == state[TAIL] else queue[state[HEAD], DUE]
            if now < target - margin:
                wake = target - margin
                if state[WATCHED] > 0 or full:
                    until = min(wake, now + poll_ns)
                else:
                    until = min(wake, now + SLICE_NS)
                    if wake - now > 2 * LAST_SLEEP_NS:
                        until = min(until, wake - LAST_SLEEP_NS)
                scratch[2] = until // 1_000_000_000
                scratch[3] = until % 1_000_000_000
                clock_nanosleep(1, 1, here + 16, 0)
                slept = True
                continue
            if now < target:
                # No sleep since the last send: yield, else libzmq's I/O thread starves on a shared core.
                if not slept and (target - now > IO_RUN_NS or now - yielded > IO_STARVE_NS):
                    yielded = now
                    sched_yield()
                    clock_gettime(1, here)
                    given = scratch[0] * 1_000_000_000 + scratch[1] - yielded
                    if EMPTY_YIELD_NS < given < IO_YIELD_NS:
                        control[yield_ns] += given
                clock_gettime(1, here)
                control[spin_ns] += scratch[0] * 1_000_000_000 + scratch[1] - now
                continue
            slept = False
            due, row, known = queue[state[HEAD], DUE], queue[state[HEAD], ROW], queue[state[HEAD], KNOWN]
            state[HEAD] += 1
            stamps[row, INTENDED] = due  # before the send: a kill in between must not leave a message unstamped
            stamps[row, SLOT] = max(due, known, state[FREE_SINCE])
            stamps[row, SEND] = now
            errno = send(socket, frames + starts[row], starts[row + 1] - starts[row])
            clock_gettime(1, here)
            now = scratch[0] * 1_000_000_000 + scratch[1]
            stamps[row, SENT] = now
            handled += 1
            if errno == 0:
                stamps[row, RESULT] = sent_result
                control[sent_word] += 1
                state[SENT_COUNT] += 1
                if child_starts[row] < child_starts[row + 1]:
                    watched[state[WATCHED]] = row
                    state[WATCHED] += 1
            elif errno == 11:
                stamps[row, RESULT] = refused_result
                stamps[row, ERRNO] = errno
                control[refused_word] += 1
                release(row, now, now, think_ns, children, child_starts, queue, state)
            else:
                stamps[row, RESULT] = error_result
                stamps[row, ERRNO] = errno
                control[errors_word] += 1
                return handled, errno
        return handled, 0

    # end: [4] requests handled, [5] errno of the send that ended it
    def run(
        socket, frames, starts, n, stamps, columns, think_ns, children, child_starts, heard, heard_columns, cap, queue,
        watched, state, control, margin, here,
    ):  # fmt: skip
        end = cells(here)
        end[4], end[5] = pace(
            socket, frames, cells(starts), n, rows(stamps, columns), cells(think_ns), cells(children),
            cells(child_starts), rows(heard, heard_columns), cap, rows(queue, QUEUE_COLUMNS), cells(watched),
            cells(state), cells(control), margin, end, here,
        )  # fmt: skip

    return run
