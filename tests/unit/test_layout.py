"""Which rows belong to which run, and room for all that they may produce."""

from __future__ import annotations

import numpy as np
import pytest

from harness.common.collector import MAX_RUNS, collector_bytes
from harness.common.errors import ConfigError
from harness.common.plan_file import LoadPlan
from harness.session.layout import MAX_STEPS, SPARE_STEPS, RunSpan, collector_shape, lay_out


def plan(*max_new_tokens: int) -> LoadPlan:
    n = len(max_new_tokens)
    return LoadPlan(
        np.zeros(n, dtype=np.int64),
        np.array(max_new_tokens, dtype=np.int32),
        prompt_ids=np.zeros(n, dtype=np.int32),
        prompt_starts=np.arange(n + 1, dtype=np.int64),
    )


def test_warm_up_runs_come_first_and_rows_follow_each_other() -> None:
    assert lay_out(plan(1, 2, 3, 4, 5), warmup_runs=2, warmup_requests=2, repeat_runs=2) == [
        RunSpan(0, True, 0, 2),
        RunSpan(1, True, 2, 2),
        RunSpan(2, False, 4, 5),
        RunSpan(3, False, 9, 5),
    ]


def test_a_warm_up_is_never_longer_than_the_plan() -> None:
    assert lay_out(plan(1, 2), 1, 8, 1) == [RunSpan(0, True, 0, 2), RunSpan(1, False, 2, 2)]


def test_a_session_without_warm_up_begins_with_row_0() -> None:
    assert lay_out(plan(1, 2), 0, 8, 1) == [RunSpan(0, False, 0, 2)]


def test_every_run_has_a_cell_for_its_start() -> None:
    assert len(lay_out(plan(1), 1, 1, MAX_RUNS - 1)) == MAX_RUNS
    with pytest.raises(ConfigError, match=str(MAX_RUNS)):
        lay_out(plan(1), 1, 1, MAX_RUNS)


def test_the_collector_has_room_for_every_row_and_token_of_all_runs() -> None:
    load = plan(10, 20, 30)
    shape = collector_shape(load, lay_out(load, warmup_runs=1, warmup_requests=2, repeat_runs=2))
    assert shape[:3] == (2 + 3 + 3, 30 + 60 + 60 + SPARE_STEPS, 30 + 60 + 60)
    assert not any(shape[3:])  # no probes, no rings


def test_probes_get_room_for_the_time_planned_within_bounds() -> None:
    load = plan(1, 1)
    load.offsets_ns[1] = 100 * 10**9
    shape = collector_shape(load, lay_out(load, 0, 0, 2), probed_cpus=3)
    assert shape.gil == (2 * 200 + 60) * 100  # a look every 10 ms for twice the planned time and a minute
    assert shape.cpus == 2 * 2 * (3 + 1)
    load.offsets_ns[1] = 10**18
    longest = collector_shape(load, lay_out(load, 0, 0, 2), probed_cpus=3)
    assert longest.gil == 500_000 and collector_bytes(longest) < 150 << 20


def test_negative_token_counts_take_no_room_from_others() -> None:
    load = plan(10, -5, 0, 1)
    assert collector_shape(load, lay_out(load, 0, 0, 1)).tokens == 11


def test_token_sums_beyond_int32_are_right() -> None:
    load = plan(*[2**31 - 1] * 4)
    shape = collector_shape(load, lay_out(load, 0, 0, 2))
    assert shape.tokens == 8 * (2**31 - 1)
    assert shape.steps == MAX_STEPS
