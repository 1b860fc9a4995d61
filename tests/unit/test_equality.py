"""The rules by which benchmarks/equality.py compares; the comparisons themselves are in tests/models."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.equality import Job, _span, followed_by, is_ok, jobs_of
from benchmarks.equality_cases import EACH_CHOICE, SERVED, TOLERANCE


def test_exact_products_beyond_the_tolerance_are_followed_by_a_wide_stream_that_is_held_to_it() -> None:
    job = Job(SERVED, "exact", True)
    assert followed_by(job, TOLERANCE) is None
    assert followed_by(job, TOLERANCE * 1.01) == Job(SERVED, "exact, wide stream", True)


@pytest.mark.parametrize("products", ["packed", "exact, wide stream"])
def test_nothing_else_is_followed(products: str) -> None:
    """Above all the wide stream: what is beyond the tolerance there is an error."""
    assert followed_by(Job(SERVED, products, True), 1.0) is None  # type: ignore[arg-type]


def record(products: str, worst: float, ok: bool, **more: object) -> dict[str, object]:
    base: dict[str, object] = {"model": "m", "group": 0, "setting": "s", "wrong": []}
    return base | {"products": products, "worst": worst, "ok": ok} | more


def test_exact_products_beyond_the_tolerance_are_as_right_as_what_follows_them() -> None:
    beyond = record("exact", 2 * TOLERANCE, ok=False)
    followers = [record("exact, wide stream", 1.0, ok=ok) for ok in (True, False)]
    others = [record("exact, wide stream", 1.0, ok=True, **{name: 1}) for name in ("group", "setting", "model")]
    assert is_ok(beyond, [beyond, *others, followers[0]])
    assert not is_ok(beyond, [beyond, followers[1]])
    assert not is_ok(beyond, [beyond, *others]), "a follower that never ran is no excuse"
    assert not is_ok(beyond | {"wrong": ["a token"]}, [followers[0]])


@pytest.mark.parametrize("ok", [True, False])
def test_any_other_record_has_its_own_verdict(ok: bool) -> None:
    follower = record("exact, wide stream", 1.0, ok=True)
    assert is_ok(record("exact", TOLERANCE, ok=ok), [follower]) is ok
    assert is_ok(record("packed", 1.0, ok=ok), [follower]) is ok
    assert is_ok(record("exact, wide stream", 1.0, ok=ok), [follower]) is ok


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
