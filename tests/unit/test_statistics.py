"""Summaries of arrays."""

from __future__ import annotations

import numpy as np
from numpy.random import default_rng

from harness.measures.statistics import percentile, summarize


def test_percentiles_equal_numpys_default_exactly() -> None:
    values = default_rng(7).integers(0, 10**9, size=1001)
    summary = summarize(values)
    expected = np.percentile(values, [50, 90, 95, 99, 99.9]).tolist()
    assert [summary.p50, summary.p90, summary.p95, summary.p99, summary.p99_9] == expected
    assert percentile(values, 99) == expected[3]


def test_moments_and_ends_are_numpys() -> None:
    values = np.array([1, 2, 3, 10])
    summary = summarize(values)
    assert (summary.count, summary.mean, summary.min, summary.max) == (4, 4.0, 1.0, 10.0)
    assert summary.std == np.std(values)


def test_divisor_turns_ns_into_ms() -> None:
    summary = summarize(np.array([1_500_000, 2_500_000]), 1e6)
    assert (summary.p50, summary.min, summary.max) == (2.0, 1.5, 2.5)


def test_an_empty_array_has_count_0_and_nulls() -> None:
    data = summarize(np.empty(0, dtype=np.int64)).to_json()
    assert data.pop("count") == 0
    assert set(data.values()) == {None}
    assert percentile(np.empty(0, dtype=np.int64), 50) is None


def test_fields_are_those_of_the_summary_schema() -> None:
    fields = ["count", "mean", "std", "min", "p50", "p90", "p95", "p99", "p99_9", "max"]
    assert list(summarize(np.array([1])).to_json()) == fields
