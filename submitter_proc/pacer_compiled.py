"""The pacer's loop as one numba function without the GIL: its stamps cannot be delayed by this process's Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zmq

from harness.common.collector import CONTROL_WORDS, Int64Array, submitter_line
from harness.common.nogil import at, compile_loop
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
    scratch = np.zeros(6, dtype=np.int64)
    loop(
        socket, at(packed.frames), at(packed.starts), at(packed.offsets_ns), packed.num_requests, at(packed.stamps),
        packed.stamps.shape[1], packed.step, at(control), line, t0_ns, waiting.relative, waiting.margin_ns, at(scratch),
    )  # fmt: skip
    return PaceEnd(int(scratch[4]), int(scratch[5]))


def compile_pace() -> Any:
    """The loop. Raises NogilUnavailableError where numba, libzmq or libc cannot be had."""
    return compile_loop("pace", _build_pace, 14, Path(__file__).parent)


def _build_pace() -> Any:
    from harness.common.nogil_numba import (
        cells,
        clock_gettime,
        clock_nanosleep,
        loop,
        rows,
        sched_yield,
        zmq_errno,
        zmq_send,
    )

    stop, spin_ns, yield_ns = CONTROL_WORDS["stop"], CONTROL_WORDS["spin_ns"], CONTROL_WORDS["yield_ns"]
    sent_word, refused_word, errors_word = (CONTROL_WORDS[name] for name in ("sent", "refused", "send_errors"))
    sent_result, refused_result, error_result = int(SendResult.SENT), int(SendResult.REFUSED), int(SendResult.ERROR)

    # scratch: [0:2] the clock's timespec, [2:4] the timespec to sleep until
    @loop
    def pace(
        socket, frames, starts, offsets, n, stamps, step, control, line, t0, relative, margin, scratch, here
    ):  # fmt: skip
        previous_end = t0
        previous_offset = 0
        yielded = 0
        for i in range(n):
            offset = offsets[i]
            deadline = previous_end + offset - previous_offset if relative else t0 + offset
            # A gap that leaves little time to sleep: yield, else libzmq's I/O thread starves on a shared core.
            short = offset - previous_offset <= 2 * margin
            clock_gettime(1, here)
            now = scratch[0] * 1_000_000_000 + scratch[1]
            if control[stop] != 0:
                return i, 0
            while now < deadline - margin:
                wake = min(deadline - margin, now + SLICE_NS)
                if deadline - margin - now > 2 * LAST_SLEEP_NS:
                    wake = min(wake, deadline - margin - LAST_SLEEP_NS)
                scratch[2] = wake // 1_000_000_000
                scratch[3] = wake % 1_000_000_000
                clock_nanosleep(1, 1, here + 16, 0)
                if control[stop] != 0:
                    return i, 0
                clock_gettime(1, here)
                now = scratch[0] * 1_000_000_000 + scratch[1]
            woke = now
            while now < deadline:
                if short and (deadline - now > IO_RUN_NS or now - yielded > IO_STARVE_NS):
                    yielded = now
                    sched_yield()
                    clock_gettime(1, here)
                    given = scratch[0] * 1_000_000_000 + scratch[1] - yielded
                    if EMPTY_YIELD_NS < given < IO_YIELD_NS:
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
        return n, 0

    # end: [4] rows handled, [5] errno of the send that ended it
    def run(
        socket, frames, starts, offsets, n, stamps, columns, step, control, line, t0, relative, margin, here
    ):  # fmt: skip
        end = cells(here)
        end[4], end[5] = pace(
            socket, frames, cells(starts), cells(offsets), n, rows(stamps, columns), step, cells(control), line, t0,
            relative, margin, end, here,
        )  # fmt: skip

    return run
