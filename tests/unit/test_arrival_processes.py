"""Arrival processes: planned from a seed, what the flags say, the same for ever."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest

from harness.common.errors import ConfigError
from harness.config.run_config import RunConfig
from harness.plan.arrival_spec import ArrivalSpec
from harness.plan.build import build_offsets, text_plan
from harness.plan.processes import PROCESSES, schedule_of
from harness.plan.schedules import Varying
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


def test_steps_hold_their_rate_each_and_meet_where_they_join() -> None:
    offsets = offsets_of(RunConfig(rate="5x2s,0x1s,10x500ms,2x1s"))
    first, second = np.arange(10) * 200_000_000, 3 * 10**9 + np.arange(5) * 100_000_000
    assert offsets.tolist() == [*first, *second, 3_500_000_000, 4_000_000_000]


def test_a_part_of_a_request_carries_over_into_the_next_step() -> None:
    """Half a second at 3/s expects 1.5 requests: number 2 is due when half a one more is expected, at 1/s."""
    offsets = offsets_of(RunConfig(rate="3x0.5s,1x2s"))
    assert offsets.tolist() == [0, 333_333_333, 1_000_000_000, 2_000_000_000]


def test_a_ramp_reaches_request_i_where_its_integral_is_i() -> None:
    """From 0 to 10/s in 10 s: t^2 / 2 = i."""
    offsets = offsets_of(RunConfig(rate="0:10", duration_s=10))
    assert offsets.tolist() == [round(float(np.sqrt(2 * i)) * 1e9) for i in range(50)]


def test_a_ramp_down_is_a_ramp_up_seen_from_its_end() -> None:
    up, down = (offsets_of(RunConfig(rate=rate, duration_s=10)) for rate in ("0:10", "10:0"))
    assert np.abs((10 * 10**9 - down[1:])[::-1] - up[1:]).max() <= 1


def test_a_sine_keeps_its_mean_over_whole_periods_and_swings_within() -> None:
    offsets = offsets_of(RunConfig(arrival="sine", rate=100, sine_period_s=4, sine_amplitude=0.5, duration_s=8))
    halves = np.histogram(offsets, np.arange(5) * 2 * 10**9)[0]
    swing = 100 * 2 * 0.5 * 2 / np.pi  # of the mean over half a period
    assert len(offsets) == 800
    assert halves == pytest.approx([200 + swing, 200 - swing] * 2, abs=1)


@pytest.mark.parametrize("case", ["poisson ramp", "poisson steps", "poisson sine"])
def test_a_varying_rate_expects_what_it_plans(case: str) -> None:
    """`when` is the inverse of `expected`, which is what the time change of the self-check rests on."""
    schedule = schedule_of(ArrivalSpec.of(config_of(case)))
    assert isinstance(schedule, Varying) and schedule.curve is not None
    numbers = np.linspace(0.5, 400, 1000)
    assert schedule.curve.expected(schedule.curve.when(numbers)) == pytest.approx(numbers, rel=1e-9)


@pytest.mark.parametrize(
    "values",
    [{"arrival": "poisson", "rate": 2e6}, {"arrival": "mmpp", "rate": 5e5}, {"rate": "1:2000000", "duration_s": 1,
     "spacing": "poisson"}, {"arrival": "gamma", "burstiness": 2, "rate": 1e300}],
)  # fmt: skip
def test_random_gaps_too_short_for_whole_ns_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="1000000 requests per second"):
        build_offsets(RunConfig(**values), 10)


@pytest.mark.parametrize(
    ("values", "words"),
    [({"arrival": "poisson", "rate": 1e-9}, "366 days"), ({"arrival": "poisson", "rate": 1e-300}, "366 days"),
     ({"arrival": "sine", "rate": 1e-6}, "366 days"),
     ({"arrival": "mmpp", "rate": 1e-6, "mmpp_on_s": 100, "mmpp_off_s": 100}, "366 days"),
     ({"arrival": "mmpp", "rate": 1e-6, "mmpp_on_s": 0.001, "mmpp_off_s": 0.001}, "5000000 changes"),
     ({"rate": 1e6, "duration_s": 100}, "10000000 requests"),
     ({"rate": "0:1000000", "duration_s": 100}, "10000000 requests"),
     ({"rate": "0x1s,0.001x1s", "spacing": "poisson"}, "no request is due")],
)  # fmt: skip
def test_a_plan_that_no_run_could_have_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        text_plan(RunConfig(**values))


#: Flags that a process cannot honour, and the words that must name the flag and the process.
REFUSED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"arrival": "gamma"}, ("--arrival gamma", "--burstiness")),
    ({"arrival": "weibull"}, ("--arrival weibull", "--weibull-shape")),
    ({"rate": "1:50"}, ("--arrival ramp", "--duration")),
    ({"arrival": "steps"}, ("--arrival steps", "--rate")),
    ({"arrival": "steps", "rate": 5}, ("--rate", "RATExSECONDS")),
    ({"arrival": "poisson", "rate": "1:50"}, ("--rate", "--arrival poisson")),
    ({"arrival": "poisson", "burstiness": 2}, ("--burstiness", "--arrival poisson")),
    ({"spacing": "poisson"}, ("--spacing", "--arrival constant")),
    ({"mmpp_on_s": 2}, ("--mmpp-on", "--arrival constant")),
    ({"arrival": "burst", "rate": 5}, ("--rate", "--arrival burst")),
    ({"arrival": "burst", "submit_interval_ms": 5}, ("--submit-interval-ms", "--arrival burst")),
    ({"submit_interval_ms": 0, "duration_s": 5}, ("--duration", "burst")),
    ({"arrival": "poisson", "submit_interval_ms": 0}, ("--submit-interval-ms", "--arrival poisson")),
    ({"rate": "5x3s", "duration_s": 4}, ("--duration", "3 s")),
    ({"arrival": "mmpp", "rate": 5, "mmpp_off_rate": 6}, ("--mmpp-off-rate", "5 requests")),
    ({"arrival_seed": 4}, ("--arrival-seed", "--arrival constant")),
    ({"rate": "5x3s", "arrival_seed": 4}, ("--arrival-seed", "--spacing even")),
    ({"plan": "p.npz", "arrival": "poisson"}, ("--plan", "--arrival")),
    ({"plan": "p.npz", "duration_s": 5}, ("--plan", "--duration")),
]


@pytest.mark.parametrize(("values", "words"), REFUSED)
def test_a_flag_that_the_process_cannot_honour_is_refused(values: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        RunConfig(**values)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("case", CASES)
def test_a_spec_survives_its_json(case: str) -> None:
    spec = ArrivalSpec.of(config_of(case))
    assert ArrivalSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    constant = ArrivalSpec("gamma", rate=5.0, burstiness=float("inf"))
    assert ArrivalSpec.from_json(json.loads(json.dumps(constant.to_json(), allow_nan=False))) == constant


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
    made = {"prompt_kind": "random", "input_len": "uniform:1:9"}
    assert seeds(seed=3, prompt_seed=5, length_seed=6, **made) == [3, 5, 6]


def test_dimensions_of_one_seed_are_different_streams() -> None:
    streams = [Uniforms(1, dimension).draw(1000) for dimension in Dimension]
    assert np.abs(np.corrcoef(streams) - np.eye(3)).max() < 0.15
    assert not np.isin(streams[0], streams[1]).any()


def test_another_arrival_seed_keeps_everything_but_the_offsets() -> None:
    first, second = (text_plan(config_of("poisson", arrival_seed=seed)) for seed in (1, 2))
    assert not np.array_equal(first.offsets_ns, second.offsets_ns)
    assert first.texts is not None and second.texts is not None and np.array_equal(first.texts, second.texts)
