"""Effective sample sizes against closed forms: AR(1), independent values, the binomial behind the floors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.measures.sampling import FLOORS, Sampling, autocorrelation_time, rank_lag1, ranks, sample, vif


def ar1(phi: float, n: int, seed: int = 1) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=n)
    values = np.zeros(n)
    for i in range(1, n):
        values[i] = phi * values[i - 1] + noise[i]
    return values + 100.0


@pytest.mark.parametrize("phi", [0.3, 0.5, 0.8, 0.9])
def test_the_autocorrelation_time_of_an_ar1_series_is_known(phi: float) -> None:
    times = [autocorrelation_time(ar1(phi, 20_000, seed)) for seed in range(5)]
    assert np.mean(times) == pytest.approx((1 + phi) / (1 - phi), rel=0.08)


def test_independent_values_are_worth_almost_their_number() -> None:
    found = [vif(np.random.default_rng(seed).exponential(size=5000)) for seed in range(20)]
    assert 1.0 <= np.mean(found) < 1.1


def test_one_outlier_does_not_hide_a_queue_that_remembers() -> None:
    values = ar1(0.9, 5000)
    values[2000] = 1e9
    assert autocorrelation_time(values) < 2.0
    assert vif(values) == pytest.approx(19, rel=0.3)


def test_a_cluster_in_the_tail_counts_although_the_bulk_is_independent() -> None:
    values = np.random.default_rng(1).normal(100.0, 1.0, 5000)
    values[1000:1100] += 1e4
    assert vif(values) > 50


@pytest.mark.parametrize("values", [[], [1], [1, 2], [5] * 100, [10**18] * 50])
def test_few_or_equal_values_have_no_dependence(values: list[int]) -> None:
    assert vif(np.array(values, dtype=np.int64)) == 1.0


def test_a_sample_is_worth_no_less_than_one_value() -> None:
    assert sample(np.arange(1000)).ess >= 1.0


def test_a_burst_has_no_order() -> None:
    assert sample(np.arange(1000), ordered=False).ess == 1000


@pytest.mark.parametrize(("name", "p"), [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p99_9", 0.999)])
def test_a_floor_is_the_least_sample_that_early_stopping_takes(name: str, p: float) -> None:
    """P(Binomial(n, 1 - p) <= 1) <= 0.01 for the first time."""

    def at_most_one(n: int) -> float:
        return math.exp(n * math.log(p)) * (1 + n * (1 - p) / p)

    assert at_most_one(FLOORS[name]) <= 0.01 < at_most_one(FLOORS[name] - 1)


def test_what_is_needed_grows_with_the_dependence() -> None:
    sampling = Sampling(1000, 2.0)
    assert sampling.supports("p95") and not sampling.supports("p99")
    assert sampling.needed("p99") == 1324
    assert Sampling(1324, 2.0).supports("p99")


def test_ranks_share_the_mean_of_ties() -> None:
    assert ranks(np.array([30, 10, 30, 20])).tolist() == [2.5, 0.0, 2.5, 1.0]


def test_the_rank_correlation_is_scipy_s() -> None:
    from scipy.stats import spearmanr

    values = ar1(0.5, 400)
    found = rank_lag1(values)
    expected = spearmanr(values[:-1], values[1:])
    assert found is not None and found[0] == pytest.approx(expected.statistic)
    assert (found[1] < 0.01) == (expected.pvalue < 0.01)
    assert rank_lag1(np.ones(50)) is None and rank_lag1(np.arange(3)) is None


def test_long_records_are_judged_by_their_middle() -> None:
    assert sample(np.random.default_rng(1).normal(size=600_000)).ess > 500_000
