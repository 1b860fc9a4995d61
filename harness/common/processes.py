"""What each process does to itself first: die with its parent, pin itself, sharpen its timers; and reading /proc."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29
_PR_SET_NAME = 15
_PR_GET_TIMERSLACK = 30
_POLICIES = {os.SCHED_OTHER: "other", os.SCHED_BATCH: "batch", os.SCHED_IDLE: "idle", os.SCHED_FIFO: "fifo",
             os.SCHED_RR: "rr"}  # fmt: skip


def die_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """A signal from the kernel when the parent's spawning thread ends; exits at once if it is gone already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:  # it died before the call: the signal will never come
        os._exit(1)


def sharpen_timers() -> bool:
    """Timer slack of this thread and of those it creates to 1 ns (default 50 us). False where the kernel refuses."""
    return _prctl(_PR_SET_TIMERSLACK, 1)


def process_report() -> dict[str, object]:
    """How the calling thread is scheduled and how Python shares its interpreter, JSON-able.

    timer_slack_ns: -1 where the kernel does not say.
    """
    return {
        "sched_policy": _POLICIES.get(os.sched_getscheduler(0), "unknown"),
        "timer_slack_ns": int(ctypes.CDLL(None).prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0)),
        "switch_interval_ms": sys.getswitchinterval() * 1e3,
        "gil": bool(getattr(sys, "_is_gil_enabled", lambda: True)()),
    }


def name_thread(name: str) -> None:
    """Give the calling thread the kernel's name for it (15 bytes count), as /proc and perf show it."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()), 0, 0, 0)


def _prctl(option: int, value: int) -> bool:
    libc = ctypes.CDLL(None)
    return int(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)) == 0


def pin_self(cores: Iterable[int]) -> None:
    """Restrict this process to `cores` before any library starts a thread. Raises OSError for a core it may not use."""
    wanted = set(cores)
    if wanted and os.sched_getaffinity(0) != wanted:
        os.sched_setaffinity(0, wanted)


def ignore_interrupt() -> None:
    """Ctrl-C goes to the whole terminal group; the parent alone decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def io_threads() -> list[int]:
    """Thread ids of libzmq's I/O threads of this process."""
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            if Path(f"/proc/self/task/{task}/comm").read_text().startswith("ZMQbg/IO"):
                found.append(int(task))
        except OSError:
            continue  # it ended meanwhile
    return found


def defer_io_threads() -> int:
    """Give libzmq's I/O threads of this process the batch policy: woken by a send, they no longer preempt the sender.

    Returns how many there were. A kernel that refuses leaves them as they are.
    """
    deferred = 0
    for thread in io_threads():
        try:
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
            deferred += 1
        except OSError:
            continue
    return deferred


def peak_rss_bytes(pid: int) -> int | None:
    """The most memory that a process has held at once (VmHWM, with the shared pages it touched); None: it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def start_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot, 0 where there is none: (pid, start) names it for ever."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def is_alive(pid: int, start: int) -> bool:
    """Whether the process (pid, start time) still runs; a zombie does not."""
    if start_ticks(pid) != start or start == 0:
        return False
    fields = _stat(pid)
    return bool(fields) and fields[0] not in ("Z", "X")


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, which may hold any byte; [] where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rsplit(")", 1)[1].split()


def affinity_of(pid: int) -> list[int]:
    """Cores that any thread of `pid` may run on, read back from the kernel; [] where the process is gone.

    libzmq's own threads are left out: `--io-cores` places them, and the processes may share those cores.
    """
    cores: set[int] = set()
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            if not Path(f"/proc/{pid}/task/{task}/comm").read_text(errors="replace").startswith("ZMQbg"):
                cores |= os.sched_getaffinity(int(task))
    except OSError:
        pass  # a thread or the process ended meanwhile: what was read stays true
    return sorted(cores)
