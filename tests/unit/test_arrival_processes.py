"""Arrival processes: planned from a seed, what the flags say, the same for ever."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from harness.config import RunConfig
from harness.plan.build import build_offsets, text_plan
from harness.plan.processes import PROCESSES
from harness.plan.seeds import Dimension, Uniforms, seed_of

#: Settings of each process; those that end by themselves have no number of requests.
CASES: dict[str, dict[str, Any]] = {
    "constant": {"rate": 20},
    "poisson": {"arrival": "poisson", "rate": 20},
    "gamma": {"arrival": "gamma", "rate": 20, "burstiness": 0.25},
    "smooth gamma": {"arrival": "gamma", "rate": 20, "burstiness": 4},
    "weibull": {"arrival": "weibull", "rate": 20, "weibull_shape": 0.5},
    "mmpp": {"arrival": "mmpp", "rate": 20, "mmpp_off_rate": 5},
    "ramp": {"rate": "1:50", "duration_s": 60},
    "poisson ramp": {"rate": "1:50", "duration_s": 60, "spacing": "poisson"},
    "steps": {"rate": "5x30s,10x30s"},
    "poisson steps": {"rate": "5x30s,10x30s", "spacing": "poisson"},
    "sine": {"arrival": "sine", "rate": 20, "sine_period_s": 5},
    "poisson sine": {"arrival": "sine", "rate": 20, "sine_period_s": 5, "spacing": "poisson"},
    "burst": {"arrival": "burst"},
}
#: sha256 of the offsets (little-endian int64) of seed 7: they may change in no version of isorate or NumPy.
GOLDEN: dict[str, str] = {
    "constant": "3f783e200560b039",
    "poisson": "e91d9a886620dfc2",
    "gamma": "6d511d89cedc353d",
    "smooth gamma": "cb745c45c9bbdcee",
    "weibull": "23514b148df7e9f1",
    "mmpp": "03412544b7c41ced",
    "ramp": "f539a9c10254afbd",
    "poisson ramp": "6b4309baec6b5137",
    "steps": "05fe14677c348b63",
    "poisson steps": "348ea5ae71f19440",
    "sine": "34da9e0cd01997ca",
    "poisson sine": "9c95d9a20652d98d",
    "burst": "fc19b19971194257",
}


def config_of(case: str, n: int = 500, **more: Any) -> RunConfig:
    values = {**CASES[case], **more}
    ends = "duration_s" in values or case.endswith("steps")
    return RunConfig(**values, **({} if ends else {"num_requests": n}))


def offsets_of(config: RunConfig) -> np.ndarray:
    return build_offsets(config, config.num_requests)


@pytest.mark.parametrize("case", CASES)
def test_a_seed_gives_the_same_plan_for_ever(case: str) -> None:
    offsets = offsets_of(config_of(case, seed=7))
    assert hashlib.sha256(offsets.astype("<i8").tobytes()).hexdigest()[:16] == GOLDEN[case]


def test_every_process_is_tried() -> None:
    assert {config_of(case).arrival for case in CASES} == set(PROCESSES)


@pytest.mark.parametrize("case", CASES)
def test_offsets_are_sorted_int64_from_t0_on(case: str) -> None:
    offsets = offsets_of(config_of(case))
    assert offsets.dtype == np.int64 and offsets[0] >= 0 and bool(np.all(np.diff(offsets) >= 0))


@pytest.mark.parametrize("case", [case for case in CASES if case != "burst"])
def test_a_longer_plan_begins_with_the_shorter_one(case: str) -> None:
    whole = offsets_of(config_of(case, n=400))
    assert np.array_equal(build_offsets(config_of(case), 150), whole[:150])


@pytest.mark.parametrize("case", [case for case in CASES if not case.endswith(("burst", "steps", "ramp"))])
def test_a_duration_ends_the_plan_before_it(case: str) -> None:
    config = config_of(case).model_copy(update={"num_requests": None, "duration_s": 20.0})
    offsets = build_offsets(config, None)
    assert offsets[-1] < 20 * 10**9
    assert np.array_equal(offsets, build_offsets(config_of(case, n=len(offsets)), len(offsets)))
    assert build_offsets(config_of(case, n=len(offsets) + 1), len(offsets) + 1)[-1] >= 20 * 10**9


def test_number_and_duration_together_end_with_the_first() -> None:
    values: dict[str, Any] = {"arrival": "poisson", "rate": 100, "duration_s": 2}
    assert len(text_plan(RunConfig(**values, num_requests=10)).offsets_ns) == 10
    assert len(text_plan(RunConfig(**values, num_requests=10_000)).offsets_ns) < 300


def test_a_duration_alone_decides_the_number_of_requests() -> None:
    assert text_plan(RunConfig(rate=10, duration_s=30)).num_requests == 300


def test_each_seed_changes_its_own_dimension() -> None:
    def seeds(**values: Any) -> list[int]:
        config = RunConfig(arrival="poisson", **values)
        return [seed_of(config, dimension) for dimension in Dimension]

    assert seeds(seed=3) == [3, 3, 3]
    assert seeds(seed=3, arrival_seed=4) == [4, 3, 3]
    assert seeds(seed=3, prompt_seed=5, length_seed=6) == [3, 5, 6]


def test_dimensions_of_one_seed_are_different_streams() -> None:
    streams = [Uniforms(1, dimension).draw(1000) for dimension in Dimension]
    assert np.abs(np.corrcoef(streams) - np.eye(3)).max() < 0.15
    assert not np.isin(streams[0], streams[1]).any()


def test_another_arrival_seed_keeps_everything_but_the_offsets() -> None:
    first, second = (text_plan(config_of("poisson", arrival_seed=seed)) for seed in (1, 2))
    assert not np.array_equal(first.offsets_ns, second.offsets_ns)
    assert first.texts is not None and second.texts is not None and np.array_equal(first.texts, second.texts)
