"""Arrival offsets against exact fractions."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.plan.arrivals import interval_of_ms, interval_of_rate, offsets_ns, offsets_ns_plain

texts = st.decimals(min_value=Decimal("0.001"), max_value=Decimal("100000"), places=6).map(str)
counts = st.integers(1, 300)


@given(texts, counts)
def test_an_interval_s_offsets_are_the_rounded_exact_products(text: str, count: int) -> None:
    offsets = offsets_ns(interval_of_ms(float(text)), count, "--submit-interval-ms")
    assert offsets.tolist() == [round(i * Fraction(text) * 10**6) for i in range(count)]


@given(texts, counts)
def test_a_rate_s_offsets_are_the_rounded_exact_quotients(text: str, count: int) -> None:
    offsets = offsets_ns(interval_of_rate(float(text)), count, "--rate")
    assert offsets.tolist() == [round(i * 10**9 / Fraction(text)) for i in range(count)]


@given(st.fractions(min_value=1, max_value=10**9), st.integers(1, 2000))
def test_the_fast_way_equals_the_plain_one(interval: Fraction, count: int) -> None:
    assert offsets_ns(interval, count, "--rate").tolist() == offsets_ns_plain(interval, count).tolist()


@given(st.fractions(min_value=1, max_value=10**12), st.integers(2, 2000))
def test_no_offset_is_off_by_more_than_half_a_nanosecond(interval: Fraction, count: int) -> None:
    offsets = offsets_ns(interval, count, "--rate")
    assert all(abs(int(offset) - i * interval) <= Fraction(1, 2) for i, offset in enumerate(offsets))


@given(st.fractions(min_value=1, max_value=10**12), st.integers(2, 2000))
def test_offsets_never_go_back(interval: Fraction, count: int) -> None:
    assert bool(np.all(np.diff(offsets_ns(interval, count, "--rate")) >= 0))
