"""The closed loop's plan: who comes after whom, think times, and what flags it excludes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.common.errors import ConfigError
from harness.common.plan_file import LoadPlan, load_plan
from harness.config.run_config import RunConfig
from harness.host.cores import allowed_cpus, default_placement
from harness.plan.build import describe, load_plan_for, text_plan
from harness.plan.closed_loop import cap_of, users_of
from harness.plan.drafting import make_draft
from harness.session.child_specs import submitter_spec


def closed(**values: Any) -> LoadPlan:
    return text_plan(RunConfig(**{"think_time": "5", "num_requests": 7, **values}))


def after(plan: LoadPlan) -> list[int]:
    assert plan.after is not None
    return plan.after.tolist()


def think_ns(plan: LoadPlan) -> list[int]:
    assert plan.think_ns is not None
    return plan.think_ns.tolist()


def test_each_user_s_next_request_comes_after_its_last_one() -> None:
    assert after(closed(max_concurrency=3)) == [-1, -1, -1, 0, 1, 2, 3]


def test_a_think_time_alone_is_one_user() -> None:
    assert after(closed()) == [-1, 0, 1, 2, 3, 4, 5]


def test_users_without_a_request_send_none() -> None:
    plan = closed(max_concurrency=100)
    assert after(plan) == [-1] * 7 and not plan.gated


def test_every_user_starts_at_t0_and_thinks_for_the_time_given() -> None:
    plan = closed(max_concurrency=2, think_time="0.25")
    assert plan.offsets_ns.tolist() == [0] * 7
    assert think_ns(plan) == [0, 0] + [250_000] * 5


def test_exponential_think_times_have_their_mean_and_deviation_and_repeat_by_seed() -> None:
    plans = [closed(think_time="exp:20", num_requests=20_000, seed=seed) for seed in (1, 1, 2)]
    drawn = np.array(think_ns(plans[0])[1:])
    assert drawn.mean() == pytest.approx(20e6, rel=0.03) and drawn.std() == pytest.approx(20e6, rel=0.05)
    assert think_ns(plans[0]) == think_ns(plans[1]) != think_ns(plans[2])


def test_a_think_time_longer_than_any_plan_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--think-time 99999999999.*366 days"):
        closed(think_time="99999999999")


def test_the_file_of_a_closed_loop_repeats_it(tmp_path: Path) -> None:
    plan = closed(max_concurrency=3)
    plan.save(tmp_path / "plan.npz")
    assert load_plan(tmp_path / "plan.npz").sha256() == plan.sha256()


def test_a_closed_loop_over_a_dataset_keeps_its_gates(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"prompt": "one two"}\n{"prompt": "three"}\n')
    draft = make_draft(RunConfig(dataset=tmp_path / "data.jsonl", think_time="5", max_concurrency=2, num_requests=5))
    assert after(draft.plan) == [-1, -1, 0, 1, 2]


def test_a_cap_leaves_the_plan_as_it_is_and_goes_to_the_submitter() -> None:
    config = RunConfig(max_concurrency=4, num_requests=7)
    assert text_plan(config).after is None
    assert (cap_of(config), users_of(config)) == (4, None)
    assert submitter_spec(config, default_placement(allowed_cpus())).max_concurrency == 4


def test_the_users_of_a_closed_loop_are_no_cap() -> None:
    config = RunConfig(max_concurrency=4, think_time="0", engine="null")
    assert (cap_of(config), users_of(config)) == (None, 4)
    assert submitter_spec(config, default_placement(allowed_cpus())).max_concurrency == 0


def test_the_description_names_users_and_think_time_and_no_rate() -> None:
    config = RunConfig(max_concurrency=3, think_time="5", num_requests=7)
    block = describe(text_plan(config), config)
    assert block["nominal_rate"] is None and block["closed_loop"] is True
    assert (block["users"], block["gated_requests"], block["mean_think_ms"]) == (3, 4, 5.0)


@pytest.mark.parametrize("other", [{"rate": 5}, {"submit_interval_ms": 5}, {"schedule": "relative"},
                                   {"arrival": "poisson"}, {"duration_s": 3}])  # fmt: skip
def test_a_think_time_excludes_what_sets_the_time_between_requests(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"--think-time.* exclude each other"):
        RunConfig(think_time="5", **other)


def test_the_relative_clock_has_no_cap() -> None:
    with pytest.raises(ConfigError, match="--max-concurrency and --schedule relative exclude each other"):
        RunConfig(max_concurrency=2, schedule="relative")


def test_a_gated_plan_file_has_no_relative_clock_and_no_think_time(tmp_path: Path) -> None:
    closed().save(tmp_path / "plan.npz")
    with pytest.raises(ConfigError, match="--schedule relative cannot be had with --plan"):
        load_plan_for(RunConfig(plan=tmp_path / "plan.npz", schedule="relative"))
    with pytest.raises(ConfigError, match="--plan and --think-time exclude each other"):
        RunConfig(plan=tmp_path / "plan.npz", think_time="5")
