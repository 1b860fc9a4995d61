"""The gated pacer's loop as compiled functions without the GIL: turn by turn what `gated.GatedPythonPacer` does."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import zmq

from harness.common.collector import CONTROL_WORDS, Int64Array
from harness.common.nogil import load_numba, load_symbols
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
    queue = np.ones((max(n, 1), 3), dtype=np.int64)  # written now: a page fault in the loop would be lag
    queue[: len(gates.roots), KNOWN] = 0
    queue[: len(gates.roots), DUE] = packed.offsets_ns[gates.roots] + t0_ns
    queue[: len(gates.roots), ROW] = gates.roots
    watched = np.ones(max(n, 1), dtype=np.int64)
    state = np.zeros(8, dtype=np.int64)
    state[TAIL] = len(gates.roots)
    handled, errno = loop(
        socket, packed.frames.ctypes.data, packed.starts, packed.stamps, gates.think_ns, gates.children,
        gates.child_starts, gates.heard, gates.cap, queue, watched, state, control, waiting.margin_ns,
        np.zeros(4, dtype=np.int64),
    )  # fmt: skip
    return PaceEnd(handled, errno)


def compile_gated() -> Any:
    """The loop, compiled by pacing an empty run: a second that must not fall into a measured one.

    Raises NogilUnavailableError where numba, libzmq or libc cannot be had.
    """
    loop = _build_gated()
    empty, start = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    stamps = np.zeros((1, 8), dtype=np.int64)
    packed = PackedRun(np.zeros(1, dtype=np.uint8), start, empty, stamps[:0])
    gates = Gates(empty, empty, empty, start, stamps[:0], 0)
    _call(loop, 0, packed, gates, np.zeros(512, dtype=np.int64), 0, Waiting(relative=False, margin_ns=0))
    loop.disable_compile()  # a call of other types would compile again, in the middle of a run: better an error
    return loop


class _Helpers(NamedTuple):
    release: Any
    is_full: Any
    take_in: Any
    send: Any


def _build_helpers() -> _Helpers:
    symbols, njit = load_symbols(), load_numba()
    zmq_send, zmq_errno, clock_gettime = symbols.zmq_send, symbols.zmq_errno, symbols.clock_gettime

    @njit(nogil=True)
    def release(row, ended, known, think_ns, children, child_starts, queue, state):
        """Those that wait for `row` are due a think time after its end: insert them into the sorted queue."""
        for i in range(child_starts[row], child_starts[row + 1]):
            child = children[i]
            due = ended + think_ns[child]
            at = state[TAIL]
            while at > state[HEAD] and (
                queue[at - 1, DUE] > due or (queue[at - 1, DUE] == due and queue[at - 1, ROW] > child)
            ):
                for column in range(3):  # cell by cell: copying a row would compile for seconds
                    queue[at, column] = queue[at - 1, column]
                at -= 1
            queue[at, DUE] = due
            queue[at, ROW] = child
            queue[at, KNOWN] = known
            state[TAIL] += 1

    @njit(nogil=True)
    def is_full(cap, base, state):
        return 0 < cap <= state[SENT_COUNT] - (state[SEEN] - base)

    @njit(nogil=True)
    def take_in(finished, base, cap, think_ns, children, child_starts, heard, queue, watched, state, scratch):
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
        clock_gettime(1, scratch.ctypes.data)
        now = scratch[0] * 1_000_000_000 + scratch[1]
        for k in range(first, state[WATCHED]):
            release(watched[k], heard[watched[k], ENDED], now, think_ns, children, child_starts, queue, state)
        state[WATCHED] = first
        state[LOOKED] = now
        if was_full and not is_full(cap, base, state):
            state[FREE_SINCE] = now
        return now

    @njit(nogil=True)
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
    symbols, njit = load_symbols(), load_numba()
    release, is_full, take_in, send = _build_helpers()
    clock_gettime, clock_nanosleep, sched_yield = symbols.clock_gettime, symbols.clock_nanosleep, symbols.sched_yield
    stop, spin_ns, yield_ns, finished_word = (
        CONTROL_WORDS[name] for name in ("stop", "spin_ns", "yield_ns", "finished")
    )
    sent_word, refused_word, errors_word = (CONTROL_WORDS[name] for name in ("sent", "refused", "send_errors"))
    sent_result, refused_result, error_result = int(SendResult.SENT), int(SendResult.REFUSED), int(SendResult.ERROR)
    slice_ns, last_sleep_ns, io_run_ns, io_starve_ns = SLICE_NS, LAST_SLEEP_NS, IO_RUN_NS, IO_STARVE_NS
    empty_yield_ns, io_yield_ns = EMPTY_YIELD_NS, IO_YIELD_NS
    look_again_ns, far = LOOK_AGAIN_NS, FAR
    poll_own, poll_shared = POLL_NS, SHARED_POLL_NS

    # scratch: [0:2] the clock's timespec, [2:4] the timespec to sleep until
    def pace(
        socket, frames, starts, stamps, think_ns, children, child_starts, heard, cap, queue, watched, state, control,
        margin, scratch,
    ):  # fmt: skip
        here = scratch.ctypes.data
        poll_ns = poll_own if margin > 0 else poll_shared
        base = control[finished_word]
        state[SEEN] = base
        handled, yielded, slept = 0, 0, True
        while handled < starts.shape[0] - 1:
            if control[stop] != 0:
                return handled, 0
            finished = control[finished_word]
            clock_gettime(1, here)
            now = scratch[0] * 1_000_000_000 + scratch[1]
            if finished != state[SEEN] or (state[WATCHED] > 0 and now - state[LOOKED] >= look_again_ns):
                now = take_in(
                    finished, base, cap, think_ns, children, child_starts, heard, queue, watched, state, scratch
                )
            full = is_full(cap, base, state)
            target = far if full or state[HEAD] == state[TAIL] else queue[state[HEAD], DUE]
            if now < target - margin:
                wake = target - margin
                if state[WATCHED] > 0 or full:
                    until = min(wake, now + poll_ns)
                else:
                    until = min(wake, now + slice_ns)
                    if wake - now > 2 * last_sleep_ns:
                        until = min(until, wake - last_sleep_ns)
                scratch[2] = until // 1_000_000_000
                scratch[3] = until % 1_000_000_000
                clock_nanosleep(1, 1, here + 16, 0)
                slept = True
                continue
            if now < target:
                # No sleep since the last send: yield, else libzmq's I/O thread starves on a shared core.
                if not slept and (target - now > io_run_ns or now - yielded > io_starve_ns):
                    yielded = now
                    sched_yield()
                    clock_gettime(1, here)
                    given = scratch[0] * 1_000_000_000 + scratch[1] - yielded
                    if empty_yield_ns < given < io_yield_ns:
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

    return njit(nogil=True)(pace)
