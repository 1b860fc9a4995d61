"""The rules by which benchmarks/equality.py compares; the comparisons themselves are in tests/models."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.equality import Job, _span, followed_by, jobs_of
from benchmarks.equality_cases import EACH_CHOICE, SERVED, TOLERANCE


def test_exact_products_beyond_the_tolerance_are_followed_by_a_wide_stream_that_is_held_to_it() -> None:
    job = Job(SERVED, "exact", True)
    assert followed_by(job, TOLERANCE) is None
    assert followed_by(job, TOLERANCE * 1.01) == Job(SERVED, "exact, wide stream", True)


@pytest.mark.parametrize("products", ["packed", "exact, wide stream"])
def test_nothing_else_is_followed(products: str) -> None:
    """Above all the wide stream: what is beyond the tolerance there is an error."""
    assert followed_by(Job(SERVED, products, True), 1.0) is None  # type: ignore[arg-type]


def test_every_setting_of_our_engine_is_held_to_the_tolerance_in_one_form() -> None:
    for needs_exact in (False, True):
        held = [job.setting for job in jobs_of(needs_exact, EACH_CHOICE) if job.is_held]
        assert [setting for setting in held if setting.engine == "native"] == [
            setting for setting in EACH_CHOICE if setting.engine == "native"
        ]


@pytest.mark.parametrize(("text", "numbers"), [("3", [3]), ("3-5", [3, 4, 5])])
def test_groups_are_a_number_or_a_span(text: str, numbers: list[int]) -> None:
    assert list(_span(text)) == numbers


def test_a_span_without_a_group_is_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="5-3 holds no group"):
        _span("5-3")
