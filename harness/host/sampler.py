"""Samples threads, CPUs and throttling into rings of the collector: all at a run's ends, threads ten times a second.

Rows of the ring `threads`: when (ns), process << 32 | thread id, CPU time (ns), run-queue delay (ns), voluntary and
involuntary switches (-1: not read), the thread's name in two cells. Rows of `cpus`: when, CPU, busy, idle, irq, steal
(ns); CPU -1 is the control group: throttled periods, throttled time (ns).
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.common.clock import NS_PER_MS, Clock
from harness.common.collector import CONTROL_WORDS, Collector
from harness.common.probes.ring import RingWriter
from harness.host.cgroup import cpu_groups, throttling
from harness.host.cpu_times import read_cpu_times
from harness.host.threads import ProcessThreads, ThreadTimes

SAMPLE_NS = 100 * NS_PER_MS
CGROUP = -1
NAME_BYTES = 16
_REST = CONTROL_WORDS["probes_rest"]


class HostSampler:
    """Owned by: the harness's main thread. A process that has ended is no error: its last sample stands."""

    def __init__(self, collector: Collector, pids: Mapping[int, int], cpus: frozenset[int], clock: Clock) -> None:
        """pids: process id by process number (names: `contention.process_name`); cpus: those of our processes."""
        self._control = collector.control
        self._threads = RingWriter(collector.rings["threads"])
        self._cpu_ring = RingWriter(collector.rings["cpus"])
        self._processes = {number: ProcessThreads(pid) for number, pid in pids.items()}
        self._cpus = cpus
        self._groups = cpu_groups()
        self._clock = clock
        self._next = 0

    def mark(self) -> None:
        """The beginning or the end of a run: read everything."""
        for number, process in self._processes.items():
            self._write(number, process.scan())
        now = self._clock()
        for times in read_cpu_times(self._cpus):
            self._cpu_ring.write(now, *times)
        self._cpu_ring.write(now, CGROUP, *throttling(self._groups))
        self._next = now + SAMPLE_NS

    def tick(self, now: int) -> None:
        """Called often while a run goes on; reads the threads' times where it is time for that."""
        if now < self._next or self._control[_REST]:
            return
        self._next = now + SAMPLE_NS
        for number, process in self._processes.items():
            self._write(number, process.sample())

    def close(self) -> None:
        for process in self._processes.values():
            process.close()

    def _write(self, number: int, found: list[ThreadTimes]) -> None:
        now = self._clock()
        for times in found:
            self._threads.write(
                now, number << 32 | times.tid, times.cpu_ns, times.run_delay_ns, times.voluntary, times.involuntary,
                *name_cells(times.name),
            )  # fmt: skip


def name_cells(name: bytes) -> tuple[int, int]:
    """A thread's name as two int64."""
    padded = name[:NAME_BYTES].ljust(NAME_BYTES, b"\0")
    return int.from_bytes(padded[:8], "little", signed=True), int.from_bytes(padded[8:], "little", signed=True)


def name_of(low: int, high: int) -> str:
    """The name of two int64; bytes that are no text appear escaped."""
    raw = low.to_bytes(8, "little", signed=True) + high.to_bytes(8, "little", signed=True)
    return raw.rstrip(b"\0").decode("utf-8", "backslashreplace")
