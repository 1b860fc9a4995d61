"""Priority and locked memory, where the system permits them. Each says in one line what holds, or why not."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import NamedTuple

from harness.common.clock import NS_PER_S
from harness.common.processes import io_threads

_MCL_CURRENT = 1
#: Low among the real-time priorities: above all ordinary threads, below the kernel's own.
PACER_PRIORITY = 10
#: libzmq's I/O thread may share the pacer's core: it must get through, however late the pacer is.
IO_PRIORITY = 11
_THROTTLE = Path("/proc/sys/kernel/sched_rt_runtime_us")


class Held(NamedTuple):
    """Whether what was asked for holds, and a line that says so, or why not."""

    held: bool
    line: str


def lock_memory() -> Held:
    """mlockall(MCL_CURRENT): the pages that there are now stay in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT) != 0:
        return Held(False, f"--mlock is not used: {os.strerror(ctypes.get_errno())} (see ulimit -l)")
    locked = next((line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmLck")), "")
    return Held(True, f"memory is locked: {int(locked.split()[1]) // 1024} MiB" if locked else "memory is locked")


class RealTime:
    """SCHED_FIFO for the calling thread between `begin` and `end`, and for libzmq's I/O threads above it.

    A FIFO thread that spins keeps everything else off its core. So it is not used where the kernel does not throttle
    real-time threads, and `limit_spin` bounds what the pacer may spin.
    """

    def __init__(self, throttle: Path = _THROTTLE) -> None:
        why_not = _permitted(throttle)
        self.on = why_not == ""
        self.held = Held(self.on, why_not or f"the pacer runs under SCHED_FIFO, priority {PACER_PRIORITY}")
        if self.on:
            for thread in io_threads():
                os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(IO_PRIORITY))

    def begin(self) -> None:
        if self.on:
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(PACER_PRIORITY))

    def end(self) -> None:
        if self.on:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _permitted(throttle: Path) -> str:
    """Empty where SCHED_FIFO may be used, else why not; tries it on the calling thread."""
    try:
        runtime_us = int(throttle.read_text())
    except (OSError, ValueError):
        return f"--rt is not used: {throttle} cannot be read"
    if runtime_us < 0:
        return "--rt is not used: this kernel does not throttle real-time threads, a late pacer would starve its core"
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(PACER_PRIORITY))
    except OSError as error:
        return f"--rt is not used: {error.strerror} (it needs CAP_SYS_NICE)"
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return ""


def limit_spin(margin_ns: int, rate_per_s: float) -> int:
    """The spin margin of a FIFO pacer at a mean rate: at most a quarter of the mean gap, so that it sleeps the rest."""
    return min(margin_ns, int(NS_PER_S / rate_per_s / 4)) if rate_per_s > 0 else margin_ns
