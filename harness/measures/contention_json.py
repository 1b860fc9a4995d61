"""The `contention` entry of a run in summary.json: what the probes saw, in a few figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.measures.contention import Pauses, RunProbes, ThreadUse
from harness.measures.statistics import percentile

_NS_PER_MS = 1e6


def contention_json(probes: RunProbes | None) -> dict[str, Any] | None:
    """JSON-able; times in ms, shares of the run's wall time. None where the probes were off."""
    if probes is None:
        return None
    return {
        "wall_ms": probes.wall_ns / _NS_PER_MS,
        "gil_wait": _pauses(probes.gil, probes.wall_ns),
        "gc_engine": _pauses(probes.gc_engine, probes.wall_ns),
        "gc_submitter": _pauses(probes.gc_submitter, probes.wall_ns),
        "hiccups": _pauses(probes.hiccups, probes.wall_ns),
        "threads": _threads(probes.threads),
        "cpus": [
            {
                "cpu": cpu.cpu,
                "busy": _share(cpu.busy_ns, cpu.wall_ns),
                "irq": _share(cpu.irq_ns, cpu.wall_ns),
                "steal": _share(cpu.steal_ns, cpu.wall_ns),
            }
            for cpu in probes.cpus
        ],
        "steal": probes.steal_share,
        "others": None if probes.others_ns is None else _share(probes.others_ns, sum(c.wall_ns for c in probes.cpus)),
        "throttled_periods": probes.throttled_periods,
        "throttled_ms": None if probes.throttled_ns is None else probes.throttled_ns / _NS_PER_MS,
    }


def _pauses(pauses: Pauses, wall_ns: int) -> dict[str, Any]:
    """count, p50, p99, max of the pauses; share: their sum of the wall time."""
    durations = pauses.duration_ns
    p50, p99 = (percentile(durations, q) for q in (50, 99))
    return {
        "count": len(durations),
        "p50": None if p50 is None else p50 / _NS_PER_MS,
        "p99": None if p99 is None else p99 / _NS_PER_MS,
        "max": int(durations.max()) / _NS_PER_MS if len(durations) else None,
        "share": _share(int(durations.sum()), wall_ns),
        "run_delay_ms": int(pauses.run_delay_ns.sum()) / _NS_PER_MS,
        "exact": pauses.exact,
        "lost": pauses.lost,
    }


def _threads(threads: tuple[ThreadUse, ...]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """By process and thread name; threads of one name are added up."""
    found: dict[str, dict[str, list[ThreadUse]]] = {}
    for thread in threads:
        found.setdefault(thread.process, {}).setdefault(thread.name, []).append(thread)
    return {process: {name: _sum(same) for name, same in names.items()} for process, names in found.items()}


def _sum(same: list[ThreadUse]) -> dict[str, Any]:
    counted = [thread.involuntary for thread in same if thread.involuntary is not None]
    return {
        "threads": len(same),
        "cpu_ms": sum(thread.cpu_ns for thread in same) / _NS_PER_MS,
        "run_delay_ms": sum(thread.run_delay_ns for thread in same) / _NS_PER_MS,
        "run_delay": _share(max(thread.run_delay_ns for thread in same), max(thread.wall_ns for thread in same)),
        "involuntary": sum(counted) if len(counted) == len(same) else None,
    }


def _share(part_ns: int, whole_ns: int) -> float | None:
    return part_ns / whole_ns if whole_ns else None
