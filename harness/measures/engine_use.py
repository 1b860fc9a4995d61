"""What the engine made of a run, from its step table and its rows: batch size and KV use over time, cache hits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from harness.common.collector import Int64Array
from harness.measures.records import RunRecord

#: Points of a timeline; a multiple of every width that it is printed in.
TIMELINE_BINS = 120
_NS_PER_MS = 1e6


def engine_json(record: RunRecord, busy: float | None) -> dict[str, Any]:
    """The `engine` entry of a run in summary.json."""
    return {
        "steps": len(record.steps["t_start"]),
        "busy_fraction": busy,
        "preemptions": int(record.steps["preemptions"].sum()),
        "prefix_cache": prefix_cache(record),
        "timeline": timeline(record),
    }


def prefix_cache(record: RunRecord) -> dict[str, Any]:
    """Prompt tokens of the requests that reached the model, and how many of them it did not have to compute."""
    scheduled = record.columns["t_scheduled"] != 0
    prompt = int(record.columns["prompt_tokens"][scheduled].sum())
    cached = int(record.columns["cached_tokens"][scheduled].sum())
    return {"prompt_tokens": prompt, "cached_tokens": cached, "hit_rate": cached / prompt if prompt else None}


def timeline(record: RunRecord) -> dict[str, Any] | None:
    """Batch size and KV blocks from the first step to the last in TIMELINE_BINS equal parts, None without a step.

    Means over time, in which no step means nothing: a batch of 4 during half of a part is 2. The maxima are a step's.
    """
    steps = record.steps
    if len(steps["t_start"]) == 0:
        return None
    batch, blocks = batch_sizes(record), steps["kv_blocks_used"]
    begin, end = int(steps["t_start"][0]), int(steps["t_end"].max())
    edges = np.linspace(begin, end, TIMELINE_BINS + 1)
    return {
        "start_ms": (begin - record.t0_ns) / _NS_PER_MS,
        "end_ms": (end - record.t0_ns) / _NS_PER_MS,
        "batch_size": _means(record, batch, edges),
        "batch_size_max": int(batch.max()),
        "kv_blocks": _means(record, blocks, edges),
        "kv_blocks_max": int(blocks.max()),
    }


def batch_sizes(record: RunRecord) -> Int64Array:
    """int64[S]: rows of each step; a backend that does not count the prompts of a step has at least one."""
    steps = record.steps
    prompts = np.maximum(steps["prefill_rows"], steps["prefill_tokens"] > 0)
    sizes: Int64Array = steps["decode_rows"] + prompts
    return sizes


def _means(record: RunRecord, values: Int64Array, edges: npt.NDArray[np.float64]) -> list[float]:
    """Mean of a step's value over each part of time: differences of its integral, which is linear within a step."""
    start, end = record.steps["t_start"], record.steps["t_end"]
    area = np.concatenate([[0.0], np.cumsum(values * (end - start).astype(np.float64))])
    times = np.stack([start, end], axis=1).reshape(-1)
    integral = np.interp(edges, times.astype(np.float64), np.stack([area[:-1], area[1:]], axis=1).reshape(-1))
    widths = np.maximum(np.diff(edges), 1e-9)
    means: list[float] = np.round(np.diff(integral) / widths, 3).tolist()
    return means
