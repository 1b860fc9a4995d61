"""Batch size, KV use and cache hits of a run, from steps and rows with exact integers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_session import MadeSession, make_session

from harness.common.collector import Collector
from harness.common.stamps import STEP_COLUMNS
from harness.measures.engine_use import TIMELINE_BINS, engine_json, prefix_cache, timeline
from harness.measures.records import RunRecord, read_session

T0 = 1_000_000_000_000
SECOND = 10**9


def record_of(made: MadeSession) -> RunRecord:
    return read_session(made.collector, made.plan).runs[0]


def set_steps(collector: Collector, *steps: Mapping[str, int]) -> None:
    """The step table holds these steps, of run 0, and no others."""
    collector.steps[:] = 0
    for number, step in enumerate(steps):
        for name, value in step.items():
            collector.steps[number, STEP_COLUMNS.index(name)] = value
    collector.set_word("steps", len(steps))


def step(begin: float, end: float, **values: int) -> dict[str, int]:
    """A step from and to these seconds after t0."""
    return {"t_start": T0 + round(begin * SECOND), "t_end": T0 + round(end * SECOND), **values}


@pytest.fixture
def made(tmp_path: Path) -> MadeSession:
    return make_session(tmp_path)


def drawn(made: MadeSession, *steps: Mapping[str, int]) -> dict[str, Any]:
    set_steps(made.collector, *steps)
    found = timeline(record_of(made))
    assert found is not None
    return found


def test_a_timeline_spans_the_steps_of_the_run(made: MadeSession) -> None:
    found = drawn(made, step(1, 2, decode_rows=4), step(3, 7, decode_rows=2))
    assert (found["start_ms"], found["end_ms"]) == (1000.0, 7000.0)
    assert len(found["batch_size"]) == len(found["kv_blocks"]) == TIMELINE_BINS


def test_its_values_are_means_over_time_and_no_step_is_0(made: MadeSession) -> None:
    found = drawn(made, step(0, 1, decode_rows=4, kv_blocks_used=8), step(2, 3, decode_rows=2, kv_blocks_used=6))
    thirds = np.array(found["batch_size"]).reshape(3, -1)
    assert [set(third) for third in thirds.tolist()] == [{4.0}, {0.0}, {2.0}]
    assert np.mean(found["kv_blocks"]) == pytest.approx(14 / 3, abs=1e-3)
    assert (found["batch_size_max"], found["kv_blocks_max"]) == (4, 8)


def test_steps_shorter_than_a_part_share_it_by_their_time(made: MadeSession) -> None:
    steps = [step(i, i + 0.25, decode_rows=8) for i in range(7)]
    found = drawn(made, *steps, step(1200, 1201, decode_rows=1))
    assert found["batch_size"][0] == pytest.approx(7 * 0.25 * 8 / (1201 / TIMELINE_BINS), abs=1e-3)
    assert found["batch_size"][1] == 0.0


def test_a_batch_is_its_decode_rows_and_its_prompts(made: MadeSession) -> None:
    assert drawn(made, step(0, 1, decode_rows=4, prefill_rows=3, prefill_tokens=90))["batch_size_max"] == 7


def test_a_backend_that_does_not_count_its_prompts_has_at_least_one(made: MadeSession) -> None:
    assert drawn(made, step(0, 1, decode_rows=4, prefill_tokens=90))["batch_size_max"] == 5


def test_a_run_without_steps_has_no_timeline(made: MadeSession) -> None:
    set_steps(made.collector)
    assert timeline(record_of(made)) is None
    assert engine_json(record_of(made), None)["timeline"] is None


def test_steps_of_no_length_divide_nothing_by_zero(made: MadeSession) -> None:
    assert np.isfinite(drawn(made, step(1, 1, decode_rows=4))["batch_size"]).all()


def test_the_hit_rate_is_of_the_prompts_that_reached_the_model(made: MadeSession) -> None:
    for row, cached in ((0, 4), (1, 2), (2, 5)):
        made.set("cached_tokens", row, cached)
    made.clear(2, "t_scheduled")
    assert prefix_cache(record_of(made)) == {"prompt_tokens": 7 * 5, "cached_tokens": 6, "hit_rate": 6 / 35}


def test_without_a_prompt_there_is_no_hit_rate(made: MadeSession) -> None:
    made.collector.column("t_scheduled")[:] = 0
    assert prefix_cache(record_of(made))["hit_rate"] is None


def test_preemptions_of_the_run_are_counted(made: MadeSession) -> None:
    set_steps(made.collector, step(0, 1, preemptions=2), step(1, 2, preemptions=1))
    assert engine_json(record_of(made), 0.5)["preemptions"] == 3
