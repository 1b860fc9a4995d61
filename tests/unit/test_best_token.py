"""The compiled search for the best logit against NumPy's argmax."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from engine_proc.kernels.best_token import BestToken

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=[1, 2])
def best(request: pytest.FixtureRequest) -> Iterator[BestToken]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield BestToken()
    torch.set_num_threads(before)


@pytest.mark.parametrize("width", [1, 2, 63, 64, 65, 1023, 1024, 1025, 2049, 50257])
def test_it_is_the_one_that_numpy_finds(best: BestToken, width: int) -> None:
    logits = np.random.default_rng(width).normal(size=(5, width)).astype(np.float32)
    assert np.array_equal(best(logits), logits.argmax(axis=-1))


def test_of_equal_ones_it_is_the_first(best: BestToken) -> None:
    logits = np.zeros((3, 5000), np.float32)
    logits[1, [70, 4000]] = 1.0
    logits[2, [2499, 2500, 2501]] = 1.0
    assert best(logits).tolist() == [0, 70, 2499]


def test_rows_may_lie_apart(best: BestToken) -> None:
    wide = np.random.default_rng(0).normal(size=(4, 300)).astype(np.float32)
    assert np.array_equal(best(wide[:, :77]), wide[:, :77].argmax(axis=-1))


@pytest.mark.parametrize("row", [[-np.inf, -np.inf], [np.inf, 1.0], [-1.0, -np.inf], [-3e38, -np.inf]])
def test_infinities_are_compared_too(best: BestToken, row: list[float]) -> None:
    logits = np.array([row * 50], np.float32)
    assert np.array_equal(best(logits), logits.argmax(axis=-1))


def test_a_nan_is_taken_only_where_there_is_nothing_else(best: BestToken) -> None:
    logits = np.full((1, 200), np.nan, np.float32)
    assert 0 <= best(logits)[0] < 200
    logits[0, [20, 120]] = -6.0, -5.0
    assert best(logits)[0] == 120
