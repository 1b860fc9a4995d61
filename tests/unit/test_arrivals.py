"""Arrival offsets: exact, non-negative, bounded; a burst has no nominal rate."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import pytest

from harness.common.errors import ConfigError
from harness.config.run_config import RunConfig
from harness.plan.arrivals import MAX_SPAN_NS, interval_of_ms, interval_of_rate, nominal_rate, offsets_ns
from harness.plan.build import build_offsets


def test_a_tenth_of_a_millisecond_is_exact() -> None:
    offsets = build_offsets(RunConfig(submit_interval_ms="0.1"), 1001)
    assert offsets.tolist() == [i * 100_000 for i in range(1001)]


def test_three_a_second_rounds_each_request_by_itself() -> None:
    offsets = build_offsets(RunConfig(rate="3"), 100_000)
    assert offsets.tolist() == [round(Fraction(i * 10**9, 3)) for i in range(100_000)]


def test_ties_go_to_even() -> None:
    assert offsets_ns(Fraction(5, 2), 5, "--rate").tolist() == [0, 2, 5, 8, 10]


def test_the_published_load_spans_255_ms() -> None:
    assert int(build_offsets(RunConfig(submit_interval_ms="1"), 256)[-1]) == 255_000_000


def test_offsets_are_int64_and_start_at_zero() -> None:
    offsets = build_offsets(RunConfig(rate=1000), 3)
    assert offsets.dtype == np.int64 and offsets[0] == 0


def test_a_burst_is_all_zeros() -> None:
    assert build_offsets(RunConfig(submit_interval_ms=0), 4).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("rate", [1e-300, 1e-9, 1e300, 2e9])
def test_a_rate_that_no_run_could_have_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="--rate"):
        build_offsets(RunConfig(rate=rate), 64)


@pytest.mark.parametrize("interval_ms", [1e300, 1e12, 1e-9, 5e-324])
def test_an_interval_that_no_run_could_have_is_refused(interval_ms: float) -> None:
    with pytest.raises(ConfigError, match="--submit-interval-ms"):
        build_offsets(RunConfig(submit_interval_ms=interval_ms), 64)


def test_an_absurd_rate_is_refused_for_a_single_request_too() -> None:
    with pytest.raises(ConfigError, match="--rate"):
        build_offsets(RunConfig(rate=1e-300), 1)


def test_the_longest_span_is_reached_without_overflow() -> None:
    offsets = offsets_ns(Fraction(MAX_SPAN_NS, 999_999), 1_000_000, "--rate")
    assert int(offsets[-1]) == MAX_SPAN_NS and bool(np.all(np.diff(offsets) > 0))


def test_half_a_million_requests_take_under_a_second() -> None:
    start = time.perf_counter()
    build_offsets(RunConfig(rate=99_999.7), 500_000)
    assert time.perf_counter() - start < 1.0


def test_a_burst_and_a_single_request_have_no_nominal_rate() -> None:
    assert nominal_rate(np.zeros(5, dtype=np.int64)) is None
    assert nominal_rate(np.zeros(1, dtype=np.int64)) is None


def test_the_nominal_rate_of_offsets_is_gaps_over_span() -> None:
    assert nominal_rate(offsets_ns(interval_of_rate(20), 480, "--rate")) == pytest.approx(20.0)


def test_intervals_are_what_was_written_and_not_its_binary_neighbour() -> None:
    assert interval_of_ms(0.1) == 100_000
    assert interval_of_rate(0.3) == Fraction(10**10, 3)
