"""Service level objectives on a run: who kept them, how many did a second, and whether the backlog grew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.common.clock import NS_PER_S
from harness.common.collector import Int64Array
from harness.config.slo_text import Slo
from harness.measures.records import BoolArray, RunRecord


def kept(record: RunRecord, slo: Slo) -> BoolArray:
    """bool[R]: the requests of a run that completed within the limit. One that has no such figure (TPOT of a single
    token) is within it where it completed; one that did not complete never is."""
    c = record.columns
    done = record.completed
    if slo.metric == "ttft":
        return done & ((c["t_delivered"] == 0) | (c["t_delivered"] - c["t_intended"] <= slo.limit_ns))
    if slo.metric == "e2e":
        return done & (c["t_finished"] != 0) & (c["t_finished"] - c["t_intended"] <= slo.limit_ns)
    gaps = np.maximum(c["output_tokens"] - 1, 0)
    return done & (c["t_last_token"] - c["t_first_token"] <= slo.limit_ns * gaps)


def slo_json(record: RunRecord, slos: Sequence[Slo], duration_ns: int | None) -> dict[str, Any] | None:
    """The `slo` entry of a run; None where no objective was set.

    goodput: requests within all objectives per second of the run. objectives: share of the planned requests (%) within
    each, the share that was wanted, and whether it was reached.
    """
    if not slos:
        return None
    good = np.ones(record.rows, dtype=bool)
    objectives: list[Mapping[str, Any]] = []
    for slo in slos:
        within = kept(record, slo)
        good &= within
        share = 100.0 * float(np.mean(within)) if record.rows else 0.0
        objectives.append({
            "metric": slo.metric,
            "limit_ms": slo.limit_ns / 1e6,
            "wanted_percent": slo.percent,
            "within_percent": share,
            "met": share >= slo.percent,
        })  # fmt: skip
    return {
        "goodput": float(good.sum()) * NS_PER_S / duration_ns if duration_ns else None,
        "within_all_percent": 100.0 * float(np.mean(good)) if record.rows else 0.0,
        "met": all(objective["met"] for objective in objectives),
        "objectives": objectives,
    }


def backlog_growth(intended_ns: Int64Array, finished_ns: Int64Array) -> float | None:
    """By how much E2E grows per unit of time: 0 where the engine keeps up, rate / capacity - 1 where it does not.

    Both int64[n], of the requests that finished, in order of intended time. The median E2E of the run's last quarter
    less that of its second, over the time between their middles: robust against single hiccups, blind to the filling
    of an empty engine. None for fewer than 16 requests or no time between them (a burst).
    """
    n = len(intended_ns)
    if n < 16:
        return None
    e2e = finished_ns - intended_ns
    second, last = slice(n // 4, n // 2), slice(n - n // 4, n)
    between = float(np.median(intended_ns[last]) - np.median(intended_ns[second]))
    return float(np.median(e2e[last]) - np.median(e2e[second])) / between if between > 0 else None
