"""The pacer's loop as one numba function without the GIL: its stamps cannot be delayed by this process's Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import zmq

from harness.common.collector import CONTROL_WORDS, Int64Array, submitter_line
from harness.common.nogil import load_numba, load_symbols
from harness.common.stamps import SendResult
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
    PaceEnd,
    Waiting,
)


class CompiledPacer:
    """Sleeps, spins and sends in compiled code; `loop` is what `compile_pace` returned."""

    name = "compiled"

    def __init__(self, loop: Any, socket: zmq.Socket[bytes], control: Int64Array, shard: int = 0) -> None:
        self._loop = loop
        self._line = submitter_line(shard)
        self._socket = int(socket.underlying)  # owned by: the thread that calls run
        self._control = control

    def run(self, packed: PackedRun, t0_ns: int, waiting: Waiting) -> PaceEnd:
        """Send all requests of `packed`. t0_ns: CLOCK_MONOTONIC ns of offset 0."""
        return _call(self._loop, self._socket, packed, self._control, self._line, t0_ns, waiting)


def _call(
    loop: Any, socket: int, packed: PackedRun, control: Int64Array, line: int, t0_ns: int, waiting: Waiting
) -> PaceEnd:
    scratch = np.zeros(4, dtype=np.int64)
    handled, errno = loop(
        socket, packed.frames.ctypes.data, packed.starts, packed.offsets_ns, packed.stamps, packed.step,
        control, line, t0_ns, waiting.relative, waiting.margin_ns, scratch,
    )  # fmt: skip
    return PaceEnd(handled, errno)


def compile_pace() -> Any:
    """The loop, compiled by pacing an empty run: 0.4 s that must not fall into a measured one.

    Raises NogilUnavailableError where numba, libzmq or libc cannot be had.
    """
    loop = _build_pace()
    empty = np.zeros(0, dtype=np.int64)
    stamps = np.zeros((1, 8), dtype=np.int64)[:0]
    packed = PackedRun(np.zeros(1, dtype=np.uint8), np.zeros(1, dtype=np.int64), empty, stamps)
    _call(loop, 0, packed, np.zeros(512, dtype=np.int64), 0, 0, Waiting(relative=False, margin_ns=0))
    loop.disable_compile()  # a call of other types would compile again, in the middle of a run: better an error
    return loop


def _build_pace() -> Any:
    symbols, njit = load_symbols(), load_numba()
    zmq_send, zmq_errno = symbols.zmq_send, symbols.zmq_errno
    clock_gettime, clock_nanosleep, sched_yield = symbols.clock_gettime, symbols.clock_nanosleep, symbols.sched_yield
    stop, spin_ns, yield_ns = CONTROL_WORDS["stop"], CONTROL_WORDS["spin_ns"], CONTROL_WORDS["yield_ns"]
    sent_word, refused_word, errors_word = (CONTROL_WORDS[name] for name in ("sent", "refused", "send_errors"))
    sent_result, refused_result, error_result = int(SendResult.SENT), int(SendResult.REFUSED), int(SendResult.ERROR)
    slice_ns, last_sleep_ns = SLICE_NS, LAST_SLEEP_NS
    io_run_ns, io_starve_ns = IO_RUN_NS, IO_STARVE_NS
    empty_yield_ns, io_yield_ns = EMPTY_YIELD_NS, IO_YIELD_NS

    # scratch: [0:2] the clock's timespec, [2:4] the timespec to sleep until
    def pace(socket, frames, starts, offsets, stamps, step, control, line, t0, relative, margin, scratch):
        here = scratch.ctypes.data
        previous_end = t0
        previous_offset = 0
        yielded = 0
        for i in range(offsets.shape[0]):
            offset = offsets[i]
            deadline = previous_end + offset - previous_offset if relative else t0 + offset
            # A gap that leaves little time to sleep: yield, else libzmq's I/O thread starves on a shared core.
            short = offset - previous_offset <= 2 * margin
            clock_gettime(1, here)
            now = scratch[0] * 1_000_000_000 + scratch[1]
            if control[stop] != 0:
                return i, 0
            while now < deadline - margin:
                wake = min(deadline - margin, now + slice_ns)
                if deadline - margin - now > 2 * last_sleep_ns:
                    wake = min(wake, deadline - margin - last_sleep_ns)
                scratch[2] = wake // 1_000_000_000
                scratch[3] = wake % 1_000_000_000
                clock_nanosleep(1, 1, here + 16, 0)
                if control[stop] != 0:
                    return i, 0
                clock_gettime(1, here)
                now = scratch[0] * 1_000_000_000 + scratch[1]
            woke = now
            while now < deadline:
                if short and (deadline - now > io_run_ns or now - yielded > io_starve_ns):
                    yielded = now
                    sched_yield()
                    clock_gettime(1, here)
                    given = scratch[0] * 1_000_000_000 + scratch[1] - yielded
                    if empty_yield_ns < given < io_yield_ns:
                        control[yield_ns + line] += given
                clock_gettime(1, here)
                now = scratch[0] * 1_000_000_000 + scratch[1]
            control[spin_ns + line] += now - woke
            row = i * step
            stamps[row, INTENDED] = deadline  # before the send: a kill in between must not leave a message unstamped
            stamps[row, SLOT] = deadline
            stamps[row, SEND] = now
            errno = 0
            for _ in range(2):
                errno = 0
                if zmq_send(socket, frames + starts[i], starts[i + 1] - starts[i], 1) < 0:
                    errno = zmq_errno()
                if errno != 4:
                    break
            clock_gettime(1, here)
            previous_end = scratch[0] * 1_000_000_000 + scratch[1]
            previous_offset = offset
            stamps[row, SENT] = previous_end
            if errno == 0:
                stamps[row, RESULT] = sent_result
                control[sent_word + line] += 1
            elif errno == 11:
                stamps[row, RESULT] = refused_result
                stamps[row, ERRNO] = errno
                control[refused_word + line] += 1
            else:
                stamps[row, RESULT] = error_result
                stamps[row, ERRNO] = errno
                control[errors_word + line] += 1
                return i + 1, errno
        return offsets.shape[0], 0

    return njit(nogil=True)(pace)
