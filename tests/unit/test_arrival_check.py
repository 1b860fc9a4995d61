"""The arrival self-check: every process passes its own tests, wrong ones fail, and the figures are the textbook's."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from scipy import stats

from harness.config.run_config import RunConfig
from harness.measures.arrival_check import (
    AD_LIMIT_1,
    AD_LIMIT_5,
    ArrivalFigures,
    anderson_darling,
    check_arrivals,
    dispersion,
    figures,
    lag1,
    phase_z,
    shift,
)
from harness.plan import gap_laws
from harness.plan.arrival_spec import ArrivalSpec
from harness.plan.build import build_offsets
from harness.plan.processes import schedule_of

NS = 10**9
SEEDS = range(20)
N = 2000
RANDOM: dict[str, dict[str, Any]] = {
    "poisson": {"arrival": "poisson", "rate": 50},
    "bursty gamma": {"arrival": "gamma", "rate": 50, "burstiness": 0.1},
    "smooth gamma": {"arrival": "gamma", "rate": 50, "burstiness": 4},
    "bursty weibull": {"arrival": "weibull", "rate": 50, "weibull_shape": 0.3},
    "smooth weibull": {"arrival": "weibull", "rate": 50, "weibull_shape": 3},
    "mmpp": {"arrival": "mmpp", "rate": 50, "mmpp_off_rate": 10},
    "on-off": {"arrival": "mmpp", "rate": 50, "mmpp_on_s": 0.2, "mmpp_off_s": 0.8},
    "ramp": {"rate": "1:100", "duration_s": 40, "spacing": "poisson"},
    "steps": {"rate": "20x20s,0x10s,80x20s", "spacing": "poisson"},
    "sine": {"arrival": "sine", "rate": 50, "sine_period_s": 7, "sine_amplitude": 1, "spacing": "poisson"},
}


def planned(seed: int = 0, **values: Any) -> tuple[np.ndarray, ArrivalFigures]:
    """The offsets of a process and what the self-check says of them."""
    ends = "duration_s" in values or "," in str(values["rate"])
    config = RunConfig(**{"seed": seed, **({} if ends else {"num_requests": N}), **values})
    offsets = build_offsets(config, config.num_requests)
    return offsets, figures(offsets, schedule_of(ArrivalSpec.of(config)))


def is_rejected(found: ArrivalFigures) -> bool:
    """By either of the tests that every law has, at 5 % each."""
    assert found.anderson_darling is not None and found.law_lag1 is not None and found.lag1_limit is not None
    return found.anderson_darling > AD_LIMIT_5 or abs(found.law_lag1) > found.lag1_limit


def as_poisson(times: np.ndarray, rate: float) -> ArrivalFigures:
    """Figures of arrival times that claim to be Poisson."""
    return figures(times, schedule_of(ArrivalSpec("poisson", rate=rate)))


@pytest.mark.parametrize("case", RANDOM)
def test_a_process_is_rejected_by_its_own_tests_for_at_most_4_of_20_seeds(case: str) -> None:
    rejected = [seed for seed in SEEDS if is_rejected(planned(seed, **RANDOM[case])[1])]
    assert len(rejected) <= 4, rejected


TIED: list[dict[str, Any]] = [{"arrival": "gamma", "burstiness": 0.01}, {"arrival": "weibull", "weibull_shape": 0.1}]


@pytest.mark.parametrize("values", TIED)
def test_gaps_that_are_equal_in_whole_ns_make_no_autocorrelation(values: dict[str, Any]) -> None:
    offsets, found = planned(rate=50, num_requests=50_000, **values)
    assert np.mean(np.diff(offsets) == 0) > 0.1
    assert found.anderson_darling is not None and found.anderson_darling < AD_LIMIT_5
    assert found.law_lag1 is not None and abs(found.law_lag1) < 3 / math.sqrt(found.gaps)


@pytest.mark.parametrize("case", ["poisson", "bursty gamma", "bursty weibull", "smooth weibull", "mmpp"])
def test_microseconds_of_lag_leave_the_law_as_it_is(case: str) -> None:
    """What is sent is no worse than it was planned, though of bursty laws most gaps are shorter than the lag."""
    config = RunConfig(num_requests=20_000, **RANDOM[case])
    plan = build_offsets(config, 20_000)
    lag = np.random.default_rng(5).integers(0, 20_000, len(plan))
    report = check_arrivals(plan, np.ones(len(plan), dtype=bool), plan + lag, case, schedule_of(ArrivalSpec.of(config)))
    assert not is_rejected(report.plan) and not is_rejected(report.actual)


@pytest.mark.parametrize("case", ["bursty gamma", "smooth gamma", "bursty weibull", "smooth weibull", "on-off", "sine"])
def test_a_process_does_not_pass_for_poisson(case: str) -> None:
    assert all(is_rejected(as_poisson(planned(seed, **RANDOM[case])[0], 50)) for seed in SEEDS)


def test_a_law_of_another_shape_is_rejected() -> None:
    other = schedule_of(ArrivalSpec("gamma", rate=50.0, burstiness=0.15))
    assert all(is_rejected(figures(planned(seed, **RANDOM["bursty gamma"])[0], other)) for seed in SEEDS)


def test_poisson_windowed_per_second_is_rejected() -> None:
    """A Poisson number of arrivals for each second, spread evenly over it (a known fault of load generators)."""
    for seed in SEEDS:
        counts = np.random.default_rng(seed).poisson(2, 1000)
        times = [s * NS + k * NS // count for s, count in enumerate(counts) for k in range(count)]
        found = as_poisson(np.array(times, dtype=np.int64), 2.0)
        assert is_rejected(found) and found.phase_z is not None and found.phase_z > 6.9


def test_one_seed_reused_by_ten_shards_is_rejected() -> None:
    for seed in SEEDS:
        one, _ = planned(seed, arrival="poisson", rate=5, num_requests=200)
        merged = np.sort(np.concatenate([one + 1000 * shard for shard in range(10)]))
        found = as_poisson(merged, 50.0)
        assert is_rejected(found)
        assert found.dispersion["100ms"] is not None and found.dispersion["100ms"] > 5


def test_relative_sleeps_are_rejected() -> None:
    """Each sleep starts when the last call returned and is a millisecond late (200 requests per second)."""
    for seed in SEEDS:
        offsets, _ = planned(seed, arrival="poisson", rate=200)
        late = np.cumsum(np.diff(offsets, prepend=0) + 1_000_000)
        assert is_rejected(as_poisson(late, 200.0))
        moved = shift(offsets, late)
        assert moved.planned_ca2 is not None and moved.delta_ca2 is not None
        assert moved.delta_ca2 < -0.1 * moved.planned_ca2


@pytest.mark.parametrize("shards", [2, 7])
def test_shards_merge_to_the_same_plan_and_the_same_dispersion(shards: int) -> None:
    offsets, found = planned(**RANDOM["poisson"])
    merged = np.sort(np.concatenate([offsets[shard::shards] for shard in range(shards)]))
    assert merged.tobytes() == offsets.tobytes()
    assert as_poisson(merged, 50.0).dispersion == found.dispersion


def test_anderson_darling_is_scipys_with_stephens_factor() -> None:
    for seed, n in enumerate([20, 100, 3000]):
        gaps = np.random.default_rng(seed).weibull(0.9, n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SciPy is about to change the form of its answer
            theirs = stats.anderson(gaps, "expon")
        assert anderson_darling(gaps) == pytest.approx(theirs.statistic * (1 + 0.6 / n), rel=1e-9)
        limits = dict(zip(theirs.significance_level, theirs.critical_values * (1 + 0.6 / n), strict=True))
        assert (limits[5.0], limits[1.0]) == pytest.approx((AD_LIMIT_5, AD_LIMIT_1), abs=0.021)  # of 1986


def test_anderson_darling_rejects_as_often_as_its_limits_say() -> None:
    values = [anderson_darling(np.random.default_rng(seed).exponential(3.0, 100)) for seed in range(2000)]
    assert np.mean(np.array(values) > AD_LIMIT_5) == pytest.approx(0.05, abs=0.015)
    assert np.mean(np.array(values) > AD_LIMIT_1) == pytest.approx(0.01, abs=0.007)


@pytest.mark.parametrize("shape", [0.1, 0.5, 1.0, 2.5, 40.0])
def test_gap_laws_are_scipys_of_mean_one(shape: float) -> None:
    scale = 1 / math.gamma(1 + 1 / shape)
    theirs = [stats.gamma(shape, scale=1 / shape), stats.weibull_min(shape, scale=scale)]
    p = np.array([1e-9, 0.01, 0.3, 0.5, 0.9, 0.999])
    for law, their in zip([gap_laws.gamma(shape), gap_laws.weibull(shape)], theirs, strict=True):
        assert law.quantile(p) == pytest.approx(their.isf(p), rel=1e-9)
        assert law.hazard(their.isf(p)) == pytest.approx(-np.log(p), rel=1e-6)
        assert (their.mean(), their.var()) == pytest.approx((1.0, law.cv2), rel=1e-9)


@pytest.mark.parametrize(
    ("values", "cv"),
    [({"arrival": "poisson"}, 1.0), ({"arrival": "gamma", "burstiness": 4}, 0.5),
     ({"arrival": "gamma", "burstiness": 0.25}, 2.0), ({"arrival": "weibull", "weibull_shape": 2}, 0.5227)],
)  # fmt: skip
def test_rate_and_variation_are_those_of_the_flags(values: dict[str, Any], cv: float) -> None:
    _, found = planned(rate=200, num_requests=100_000, **values)
    assert found.rate == pytest.approx(200, rel=5 * cv / math.sqrt(100_000))
    assert found.cv == pytest.approx(cv, rel=0.05)


def test_burstiness_one_is_poisson_and_infinity_is_constant() -> None:
    poisson, _ = planned(**RANDOM["poisson"])
    same, _ = planned(arrival="gamma", rate=50, burstiness=1)
    assert np.abs(poisson - same).max() <= len(poisson)  # each gap may round by 1 ns
    constant, found = planned(arrival="gamma", rate=50, burstiness="inf")
    assert np.array_equal(constant, np.arange(N) * 20_000_000) and found.law is None


def test_poisson_counts_have_dispersion_one() -> None:
    _, found = planned(arrival="poisson", rate=500, num_requests=200_000)
    assert [found.dispersion[name] for name in ("10ms", "100ms", "1s")] == pytest.approx([1, 1, 1], abs=0.25)


@pytest.mark.parametrize("off_rate", [0.0, 20.0])
def test_mmpp_has_its_closed_form_dispersion(off_rate: float) -> None:
    """Fischer and Meier-Hellstern 1993, Performance Evaluation 18: the index of dispersion of a two-state MMPP."""
    on, off, rate = 0.5, 1.5, 100.0
    on_rate = (rate * (on + off) - off_rate * off) / on
    leave = 1 / on + 1 / off
    excess = 2 * (on_rate - off_rate) ** 2 * (on * off / (on + off) ** 2) / leave / rate
    _, found = planned(arrival="mmpp", rate=rate, mmpp_on_s=on, mmpp_off_s=off, mmpp_off_rate=off_rate,
                       num_requests=400_000)  # fmt: skip
    assert found.rate == pytest.approx(rate, rel=0.05)
    for name, window in (("10ms", 0.01), ("100ms", 0.1), ("1s", 1.0)):
        wanted = 1 + excess * (1 - (1 - math.exp(-leave * window)) / (leave * window))
        assert found.dispersion[name] == pytest.approx(wanted, rel=0.1)


def test_dispersion_is_that_of_a_plain_histogram() -> None:
    times = np.sort(np.random.default_rng(1).integers(0, 60 * NS, 5000))
    counts = np.histogram(times, np.arange(int(times[-1]) // NS + 1) * NS)[0]
    assert dispersion(times, NS) == pytest.approx(counts.var(ddof=1) / counts.mean())


def test_dispersion_of_a_year_takes_no_memory() -> None:
    times = np.array([0, 5, 365 * 86_400 * NS], dtype=np.int64)
    assert dispersion(times, 10_000_000) == pytest.approx(2.0, abs=1e-6)  # one window holds both: sum n^2 / sum n


def test_rounding_to_whole_ns_is_no_autocorrelation() -> None:
    _, found = planned(rate=30, num_requests=100)
    assert found.lag1 is None and found.cv == pytest.approx(0, abs=1e-7)


def test_lag1_is_statsmodels_definition() -> None:
    assert lag1(np.array([1.0, -1.0] * 50)) == pytest.approx(-0.99)
    assert lag1(np.full(50, 7)) is None


def test_phases_of_a_stream_locked_to_the_second_stand_out() -> None:
    locked = np.arange(100, dtype=np.int64) * NS
    assert phase_z(locked) == pytest.approx(99)  # the last one only ends the last whole second
    assert phase_z(np.append(locked + np.arange(100) * NS // 100, 100 * NS)) == pytest.approx(0, abs=1e-9)


def test_less_than_ten_seconds_have_no_phases() -> None:
    """Arrivals of 0.6 s crowd together in the second, whatever they are."""
    assert phase_z(np.arange(60, dtype=np.int64) * 10_000_000) is None


def test_phases_of_poisson_exceed_their_5_percent_point_as_often_as_that() -> None:
    streams = [np.sort(np.random.default_rng(seed).integers(0, 100 * NS, 300)) for seed in range(1000)]
    values = np.array([phase_z(stream) for stream in streams])
    assert np.mean(values > -math.log(0.05)) == pytest.approx(0.05, abs=0.025)


def test_a_burst_and_a_plan_file_have_figures_without_a_law() -> None:
    found = figures(np.zeros(64, dtype=np.int64), schedule_of(ArrivalSpec("burst")))
    assert (found.rate, found.cv, found.law, found.anderson_darling) == (None, None, None, None)
    unknown = figures(planned(**RANDOM["poisson"])[0], None)
    assert unknown.law is None and unknown.anderson_darling is None and unknown.cv is not None


@pytest.mark.parametrize("n", [0, 1, 2, 20])
def test_few_arrivals_are_not_tested(n: int) -> None:
    found = as_poisson(np.arange(n, dtype=np.int64) * 7_000_000, 50.0)
    assert found.gaps == max(n - 1, 0) and found.anderson_darling is None


def test_a_late_send_and_its_catch_up_are_a_burst() -> None:
    plan = np.arange(100, dtype=np.int64) * 10_000_000
    late = plan.copy()
    late[50] += 9_500_000
    assert (shift(plan, plan).bursts, shift(plan, late).bursts) == (0, 1)
    assert shift(plan, plan).delta_ca2 == 0.0


def test_gaps_too_short_to_keep_are_no_bursts() -> None:
    plan = np.arange(100, dtype=np.int64) * 50_000
    assert shift(plan, np.sort(np.append(plan[1:], 0) // 10**7)).bursts == 0
