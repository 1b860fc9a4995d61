"""Closed forms and recursions against published tables, plain loops and simulations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.theory.autocorrelation import autocorrelation, integrated_time, mean_interval
from harness.theory.lindley import lindley_starts, lindley_waits
from harness.theory.md1 import md1_cdf, md1_mean_wait, md1_quantile, md1_wait_sd

S = 1_000_000


def simulated_waits(load: float, n: int, seed: int) -> np.ndarray:
    """Waits of M/D/1 in units of a service."""
    gaps = np.random.default_rng(seed).exponential(S / load, n)
    return lindley_waits(np.cumsum(gaps).astype(np.int64), np.full(n, S)) / S


# Lindley


def plain_waits(arrivals: list[int], services: list[int]) -> list[int]:
    """The recursion as it is written."""
    waits = [0]
    for i in range(1, len(arrivals)):
        waits.append(max(0, waits[-1] + services[i - 1] - (arrivals[i] - arrivals[i - 1])))
    return waits


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**10)), min_size=1, max_size=50))
@settings(max_examples=200, deadline=None)
def test_the_unrolled_recursion_is_lindleys(steps: list[tuple[int, int]]) -> None:
    arrivals = np.cumsum([gap for gap, _ in steps])
    services = np.array([service for _, service in steps])
    assert lindley_waits(arrivals, services).tolist() == plain_waits(arrivals.tolist(), services.tolist())


@pytest.mark.parametrize(("gap", "slope"), [(S, 0), (2 * S, 0), (S // 2, S // 2), (S - 1, 1)])
def test_d_d_1_waits_grow_by_what_is_missing(gap: int, slope: int) -> None:
    n = 100
    assert lindley_waits(np.arange(n) * gap, np.full(n, S)).tolist() == [slope * i for i in range(n)]


def test_no_request_waits_for_nothing() -> None:
    assert lindley_starts(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)).tolist() == []


@pytest.mark.parametrize(("arrivals", "services"), [([2, 1], [1, 1]), ([1, 2], [1])])
def test_arrivals_out_of_order_and_unlike_arrays_are_refused(arrivals: list[int], services: list[int]) -> None:
    with pytest.raises(ValueError):
        lindley_starts(np.array(arrivals), np.array(services))


# M/D/1: published table (80-digit sum, checked there against a simulation of 400,000 customers)

TABLE = {
    0.3: (0.214, 0.0, 0.838, 1.891, 3.023),
    0.5: (0.500, 0.0, 1.516, 3.336, 5.168),
    0.7: (1.167, 0.730, 3.077, 6.485, 9.894),
    0.8: (2.000, 1.276, 5.012, 10.356, 15.700),
    0.9: (4.500, 3.013, 10.783, 21.898, 33.014),
}


@pytest.mark.parametrize("load", TABLE)
def test_the_published_table(load: float) -> None:
    found = (md1_mean_wait(load), *(md1_quantile(load, p) for p in (0.5, 0.9, 0.99, 0.999)))
    assert found == pytest.approx(TABLE[load], abs=6e-4)


def test_the_cdf_jumps_to_the_share_that_does_not_wait() -> None:
    assert md1_cdf(0.3, -1e-9) == 0.0
    assert md1_cdf(0.3, 0.0) == pytest.approx(0.7, abs=1e-15)


def test_the_cdf_stays_one_where_floats_would_have_lost_every_digit() -> None:
    assert md1_cdf(0.9, 200.0) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_mean_and_variance_are_those_of_the_cdf(load: float) -> None:
    """E[W] and E[W^2] as integrals of 1 - F and 2 t (1 - F), by Simpson's rule between the kinks."""
    total = square = 0.0
    for whole in range(int(30 / (1 - load)) // 3):
        t = whole + np.linspace(0.0, 1.0, 9)
        tail = np.array([1.0 - md1_cdf(load, value) for value in np.minimum(t, whole + 1 - 1e-12)])
        weights = np.array([1, 4, 2, 4, 2, 4, 2, 4, 1]) / 24.0
        total += float(weights @ tail)
        square += float(weights @ (2.0 * t * tail))
    assert total == pytest.approx(md1_mean_wait(load), rel=1e-4)
    assert np.sqrt(square - total**2) == pytest.approx(md1_wait_sd(load), rel=1e-3)


def test_a_simulation_has_the_closed_form_s_percentiles() -> None:
    waits = simulated_waits(0.5, 400_000, seed=1)
    assert np.mean(waits) == pytest.approx(md1_mean_wait(0.5), rel=0.02)
    for p in (0.9, 0.99):
        assert np.quantile(waits, p) == pytest.approx(md1_quantile(0.5, p), rel=0.02)


@pytest.mark.parametrize("load", [-0.1, 1.0, float("nan")])
def test_a_load_without_a_steady_state_is_refused(load: float) -> None:
    for call in (md1_mean_wait, md1_wait_sd, lambda value: md1_cdf(value, 1.0), lambda value: md1_quantile(value, 0.5)):
        with pytest.raises(ValueError):
            call(load)


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_a_quantile_that_does_not_exist_is_refused(p: float) -> None:
    with pytest.raises(ValueError):
        md1_quantile(0.5, p)


@pytest.mark.parametrize("wait", [1001.0, float("inf"), float("nan")])
def test_a_wait_beyond_the_sum_is_refused(wait: float) -> None:
    with pytest.raises(ValueError):
        md1_cdf(0.5, wait)


# Autocorrelation


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_the_integrated_time_of_an_ar1_series_is_its_closed_form(phi: float) -> None:
    noise = np.random.default_rng(3).standard_normal(200_000)
    series = np.empty_like(noise)
    value = 0.0
    for i, one in enumerate(noise):
        value = series[i] = phi * value + one
    assert integrated_time(series) == pytest.approx((1 + phi) / (1 - phi), rel=0.1)


def test_autocorrelation_is_the_textbook_s() -> None:
    values = np.random.default_rng(5).standard_normal(100).cumsum()
    centred = values - values.mean()
    plain = [float(centred[: 100 - k] @ centred[k:]) / float(centred @ centred) for k in range(100)]
    assert autocorrelation(values) == pytest.approx(plain, abs=1e-12)


def test_the_waits_of_m_d_1_at_half_load_are_worth_a_fifth_of_their_number() -> None:
    """About 4.5 to 5.5 by simulation (VIF of M/M/1 in closed form: 9.7)."""
    assert 4.0 < integrated_time(simulated_waits(0.5, 400_000, seed=2)) < 6.5


def test_the_interval_holds_the_mean_as_often_as_it_says() -> None:
    """Of 400 runs of 2,000 requests 93 % or more (simulated: 0.933); without the correction it would be about 60 %."""
    intervals = [mean_interval(simulated_waits(0.5, 2_000, seed)) for seed in range(400)]
    corrected = np.mean([interval.holds(0.5) for interval in intervals])
    naive = np.mean([abs(i.mean - 0.5) <= i.half / np.sqrt(i.vif) for i in intervals])
    assert corrected >= 0.90
    assert naive < 0.75


def test_a_constant_series_has_an_interval_of_no_width() -> None:
    interval = mean_interval(np.full(100, 7.0))
    assert (interval.mean, interval.half, interval.vif, interval.n) == (7.0, 0.0, 1.0, 100)
    assert interval.holds(7.0) and not interval.holds(7.1)


def test_an_alternating_series_counts_no_more_than_its_number() -> None:
    assert integrated_time(np.tile([1.0, -1.0], 50)) == 1.0


def test_too_few_values_are_refused() -> None:
    with pytest.raises(ValueError):
        mean_interval(np.array([1.0, 2.0, 3.0]))
