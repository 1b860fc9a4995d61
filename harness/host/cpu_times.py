"""Time of each CPU by kind, from /proc/stat. The kernel counts in clock ticks, so a short run has coarse figures."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from harness.common.clock import NS_PER_S

_STAT = Path("/proc/stat")


class CpuTimes(NamedTuple):
    """ns since boot of one CPU. busy: user, nice and system; irq: hard and soft; steal: the hypervisor ran another."""

    cpu: int
    busy_ns: int
    idle_ns: int
    irq_ns: int
    steal_ns: int


def read_cpu_times(cpus: Collection[int], stat: Path = _STAT) -> list[CpuTimes]:
    """The times of `cpus`; a CPU that is offline, and a file that cannot be read, give none."""
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return []
    tick_ns = NS_PER_S // os.sysconf("SC_CLK_TCK")
    found = []
    for line in lines:
        name, *fields = line.split()
        number = name.removeprefix("cpu")
        if number == name or not number.isdigit() or int(number) not in cpus:
            continue
        user, nice, system, idle, iowait, irq, softirq, steal = (int(field) * tick_ns for field in fields[:8])
        found.append(CpuTimes(int(number), user + nice + system, idle + iowait, irq + softirq, steal))
    return found
