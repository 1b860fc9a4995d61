"""Which collector rows belong to which run, and how large the collector must be for all of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harness.common.collector import MAX_RUNS, CollectorShape
from harness.common.errors import ConfigError
from harness.common.plan_file import LoadPlan

#: Most engine steps that the step table holds; a step gives at least one token, so fewer tokens need fewer.
MAX_STEPS = 1 << 22
SPARE_STEPS = 1024


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


def collector_shape(plan: LoadPlan, spans: list[RunSpan]) -> CollectorShape:
    """Rows of all runs; every token that they may give; a step for each of those, up to MAX_STEPS."""
    tokens_so_far = np.concatenate([[0], np.cumsum(np.maximum(plan.max_new_tokens, 0), dtype=np.int64)])
    tokens = sum(int(tokens_so_far[span.rows]) for span in spans)
    rows = sum(span.rows for span in spans)
    return CollectorShape(rows, min(tokens + SPARE_STEPS, MAX_STEPS), tokens)
