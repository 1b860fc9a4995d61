"""CPU time, run-queue delay and switches of each thread of our processes, read from /proc by the parent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

MAX_THREADS = 512  # of a process; a descriptor stays open for each


class ThreadTimes(NamedTuple):
    """Since the thread began. name: the kernel's. switches: -1 where they were not read."""

    tid: int
    name: bytes
    cpu_ns: int
    run_delay_ns: int
    voluntary: int = -1
    involuntary: int = -1


class ProcessThreads:
    """The threads of one process. `scan` finds them and reads everything; `sample` reads the times alone, cheaply."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}/task")
        self._open: dict[int, tuple[int, bytes]] = {}
        self._seen: dict[int, int] = {}  # CPU time at the last reading

    def scan(self) -> list[ThreadTimes]:
        """All threads with their switches; a thread or a process that is gone is left out."""
        try:
            tids = sorted(map(int, os.listdir(self._folder)))[:MAX_THREADS]
        except OSError:
            tids = []
        for gone in set(self._open) - set(tids):
            self._drop(gone)
        found = []
        for tid in tids:
            try:
                name = (self._folder / f"{tid}/comm").read_bytes().rstrip(b"\n")
                if tid not in self._open:
                    fd = os.open(self._folder / f"{tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
                    self._open[tid] = fd, name
                self._open[tid] = self._open[tid][0], name
                cpu_ns, delay_ns = _schedstat(self._open[tid][0])
                switches = _switches((self._folder / f"{tid}/status").read_bytes())
            except OSError:
                self._drop(tid)
                continue
            self._seen[tid] = cpu_ns
            found.append(ThreadTimes(tid, name, cpu_ns, delay_ns, *switches))
        return found

    def sample(self) -> list[ThreadTimes]:
        """The threads that have run since the last look, among those that the last `scan` found."""
        found = []
        for tid, (fd, name) in list(self._open.items()):
            try:
                cpu_ns, delay_ns = _schedstat(fd)
            except OSError:
                self._drop(tid)
                continue
            if cpu_ns != self._seen.get(tid):
                self._seen[tid] = cpu_ns
                found.append(ThreadTimes(tid, name, cpu_ns, delay_ns))
        return found

    def close(self) -> None:
        for tid in list(self._open):
            self._drop(tid)

    def _drop(self, tid: int) -> None:
        fd, _ = self._open.pop(tid, (-1, b""))
        if fd >= 0:
            os.close(fd)


def _schedstat(fd: int) -> tuple[int, int]:
    cpu_ns, delay_ns, *_ = os.pread(fd, 96, 0).split()
    return int(cpu_ns), int(delay_ns)


def _switches(status: bytes) -> tuple[int, int]:
    found = {line.split(b":")[0]: int(line.split()[1]) for line in status.splitlines() if b"ctxt_switches:" in line}
    return found.get(b"voluntary_ctxt_switches", -1), found.get(b"nonvoluntary_ctxt_switches", -1)
