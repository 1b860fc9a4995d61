"""MSER-5 and the comparison of halves, on series whose transients are known."""

from __future__ import annotations

import numpy as np
import pytest

from harness.measures.steady import MIN_BATCHES, half_shift, mser5, steadiness


def noise(n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(100.0, 1.0, n)


def naive_mser5(values: np.ndarray) -> float:
    """The definition, term by term."""
    m = len(values) // 5
    means = values[: m * 5].reshape(m, 5).mean(axis=1)
    scores = [float(((means[d:] - means[d:].mean()) ** 2).sum()) / (m - d) ** 2 for d in range(m // 2 + 1)]
    return int(np.argmin(scores)) / m


@pytest.mark.parametrize("seed", range(5))
def test_mser5_is_its_definition(seed: int) -> None:
    values = noise(400, seed) + np.where(np.arange(400) < 60, 30, 0)
    assert mser5(values) == naive_mser5(values)


@pytest.mark.parametrize("transient", [50, 100, 200])
def test_a_transient_is_left_out_and_little_more(transient: int) -> None:
    values = noise(1000)
    values[:transient] += np.linspace(50, 0, transient)
    assert mser5(values) == pytest.approx(transient / 1000, abs=0.04)


def test_a_steady_series_is_hardly_cut() -> None:
    cut = [mser5(noise(1000, seed)) or 0.0 for seed in range(100)]
    assert np.mean([share >= 0.5 for share in cut]) <= 0.02
    assert np.median(cut) < 0.1


def test_a_series_that_never_settles_is_cut_to_the_bound() -> None:
    assert mser5(noise(1000) + np.linspace(0, 100, 1000)) == 0.5


def test_few_values_say_nothing() -> None:
    assert mser5(noise(5 * MIN_BATCHES - 1)) is None
    assert half_shift(noise(39)) is None
    assert steadiness(noise(3)).to_json() == {"mser5_truncated": None, "half_shift": None, "half_noise": None}


def test_a_step_between_the_halves_is_a_shift_beyond_chance() -> None:
    values = noise(400)
    values[200:] *= 1.2
    shift, margin = half_shift(values) or (0.0, 1.0)
    assert shift == pytest.approx(0.2, abs=0.01) and margin < 0.02


def test_halves_of_one_law_differ_by_no_more_than_chance() -> None:
    found = [half_shift(np.random.default_rng(seed).exponential(size=200)) for seed in range(200)]
    assert all(pair is not None and abs(pair[0]) <= pair[1] for pair in found)


def test_halves_around_zero_have_no_ratio() -> None:
    assert half_shift(np.zeros(100)) is None
