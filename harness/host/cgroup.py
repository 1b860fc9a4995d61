"""CPU limits of this process's control group and of those above it, and how often they throttled it (v1 and v2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Throttling(NamedTuple):
    """Since the group was made, summed over the groups: periods in which it was throttled, and for how long (ns)."""

    periods: int
    throttled_ns: int


def cpu_groups(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> list[Path]:
    """Folders of the groups that may limit this process's CPU time, its own first; [] where there are none."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            bases = [root, root / "unified"]
        elif "cpu" in controllers.split(","):
            bases = [root / controllers, root / "cpu"]
        else:
            continue
        for base in bases:
            if base.is_dir():
                found += _upwards(base, path)
                break
    return found


def _upwards(base: Path, path: str) -> Iterator[Path]:
    """The group's folder and those above it. In a container the path may lie outside of what is mounted."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    while parts:
        if base.joinpath(*parts).is_dir():
            yield base.joinpath(*parts)
        parts.pop()
    yield base


def cpu_limit(groups: list[Path]) -> float | None:
    """CPUs that the tightest group allows; None where none limits."""
    limits = [limit for group in groups if (limit := _limit(group)) is not None]
    return min(limits, default=None)


def throttling(groups: list[Path]) -> Throttling:
    """How often the groups were throttled so far."""
    periods = total_ns = 0
    for group in groups:
        fields = dict(line.split()[:2] for line in _read(group / "cpu.stat").splitlines() if len(line.split()) >= 2)
        periods += int(fields.get("nr_throttled", 0))
        total_ns += int(fields.get("throttled_time", 0)) + 1000 * int(fields.get("throttled_usec", 0))
    return Throttling(periods, total_ns)


def _limit(group: Path) -> float | None:
    fields = _read(group / "cpu.max").split()
    if len(fields) == 2:
        quota, period = fields
    else:
        quota, period = _read(group / "cpu.cfs_quota_us").strip(), _read(group / "cpu.cfs_period_us").strip()
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:  # "max", "-1", or no such file
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
