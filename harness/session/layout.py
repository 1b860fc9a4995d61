"""Which collector rows belong to which run, and how large the collector must be for all of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harness.common.clock import NS_PER_S
from harness.common.collector import MAX_RUNS, CollectorShape
from harness.common.errors import ConfigError
from harness.common.plan_file import LoadPlan
from harness.common.probes.gil import PERIOD_NS
from harness.host.sampler import SAMPLE_NS

#: Most engine steps that the step table holds; a step gives at least one token, so fewer tokens need fewer.
MAX_STEPS = 1 << 22
SPARE_STEPS = 1024
#: Rows of the rings that hold pauses of processes and of the host.
PAUSE_ROWS = 1 << 13
#: Longest time for which every look of the GIL probe is kept: 64 MB of them.
MAX_PROBED_S = 5000.0
#: Threads of all processes together, and how many of them run in a tenth of a second.
THREADS, BUSY_THREADS = 128, 12


class RunSpan(NamedTuple):
    """One run: rows first_row .. first_row + rows - 1 of the collector, row i of it is request i of the plan."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    warmup: bool
    first_row: int
    rows: int


def lay_out(plan: LoadPlan, warmup_runs: int, warmup_requests: int, repeat_runs: int) -> list[RunSpan]:
    """Warm-up runs (the plan's first requests) before the measured ones. Raises ConfigError for too many."""
    if warmup_runs + repeat_runs > MAX_RUNS:
        raise ConfigError(f"--warmup-runs and --repeat-runs: at most {MAX_RUNS} runs in all")
    spans = []
    row = 0
    for index in range(warmup_runs + repeat_runs):
        warmup = index < warmup_runs
        rows = min(warmup_requests, plan.num_requests) if warmup else plan.num_requests
        spans.append(RunSpan(index, warmup, row, rows))
        row += rows
    return spans


def collector_shape(plan: LoadPlan, spans: list[RunSpan], probed_cpus: int = 0) -> CollectorShape:
    """Rows of all runs; every token that they may give; a step for each of those, up to MAX_STEPS.

    probed_cpus: CPUs that the probes watch; 0 where they are off, which leaves their rings without rows.
    """
    tokens_so_far = np.concatenate([[0], np.cumsum(np.maximum(plan.max_new_tokens, 0), dtype=np.int64)])
    tokens = sum(int(tokens_so_far[span.rows]) for span in spans)
    rows = sum(span.rows for span in spans)
    shape = CollectorShape(rows, min(tokens + SPARE_STEPS, MAX_STEPS), tokens)
    return shape._replace(**ring_rows(plan, spans, probed_cpus)) if probed_cpus else shape


def ring_rows(plan: LoadPlan, spans: list[RunSpan], cpus: int) -> dict[str, int]:
    """Rows of each ring: for twice the planned time and a minute, within bounds; a longer run loses the oldest."""
    planned_s = sum(int(plan.offsets_ns[span.rows - 1]) for span in spans) / NS_PER_S
    expected_s = min(2 * planned_s + 60, MAX_PROBED_S)
    return {
        "gil": round(expected_s * NS_PER_S / PERIOD_NS),
        "pauses": PAUSE_ROWS,
        "hiccups": PAUSE_ROWS,
        "threads": 2 * len(spans) * THREADS + round(expected_s * NS_PER_S / SAMPLE_NS) * BUSY_THREADS,
        "cpus": 2 * len(spans) * (cpus + 1),
    }
