from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from engine_proc.runner.sampler import sample, uniform
from harness.common.protocol import Sampling

DRAWS = 4000


def draws(logits: Tensor, count: int = DRAWS, **fields: float | int) -> Counter[int]:
    """How often each token came out over `count` positions of one seed."""
    sampling = Sampling(**{"temperature": 1.0, "seed": 7, **fields})  # type: ignore[arg-type]
    return Counter(sample(logits.expand(1, -1), [sampling], [position])[0] for position in range(count))


def test_temperature_zero_takes_the_best_whatever_the_other_fields_say() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.0], [5.0, 1.0, 2.0]])
    assert sample(logits, [Sampling(), Sampling(0.0, 3, 0.9, 5)], [0, 0]) == [1, 0]


def test_draws_follow_the_softmax_of_logits_over_temperature() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    counts = draws(logits, temperature=0.7)
    expected = torch.softmax(logits.double() / 0.7, 0)
    chi2 = sum((counts[i] - DRAWS * p) ** 2 / (DRAWS * p) for i, p in enumerate(expected.tolist()))
    assert sum(counts.values()) == DRAWS
    assert chi2 < 16.3  # 3 degrees of freedom, p = 0.001; the seed is fixed


def test_top_k_keeps_exactly_k_tokens() -> None:
    logits = torch.tensor([0.0, 0.3, 0.2, 0.1, -0.1])
    assert set(draws(logits, top_k=2)) == {1, 2}
    assert set(draws(torch.zeros(6), top_k=3).keys()) < set(range(6))
    assert len(draws(torch.zeros(6), top_k=3)) == 3


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([0.1, 0.5, 0.3, 0.1]).log()
    assert set(draws(logits, top_p=0.5 - 1e-6)) == {1}
    assert set(draws(logits, top_p=0.6)) == {1, 2}
    assert set(draws(logits, top_p=0.8 + 1e-6)) == {0, 1, 2}
    assert set(draws(logits, top_p=1.0)) == {0, 1, 2, 3}


def test_top_p_applies_after_top_k() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    # Of the two that top-k keeps, the best has 4/7 = 0.57 of what is left.
    assert set(draws(logits, top_k=2, top_p=0.55)) == {0}
    assert set(draws(logits, top_k=2, top_p=0.6)) == {0, 1}


def test_min_p_keeps_what_is_likely_beside_the_best() -> None:
    logits = torch.tensor([0.1, 0.5, 0.3, 0.1]).log()
    assert set(draws(logits, min_p=0.61)) == {1}
    assert set(draws(logits, min_p=0.59)) == {1, 2}
    assert set(draws(logits, min_p=0.19)) == {0, 1, 2, 3}
    assert draws(logits, min_p=0.0) == draws(logits)


def test_min_p_one_keeps_the_best_alone() -> None:
    assert set(draws(torch.tensor([0.0, 0.1, 0.05]), 500, min_p=1.0)) == {1}


def test_min_p_is_of_the_probabilities_after_temperature() -> None:
    logits = torch.tensor([0.5, 0.25]).log()
    assert set(draws(logits, temperature=1.0, min_p=0.4)) == {0, 1}
    assert set(draws(logits, temperature=0.5, min_p=0.4)) == {0}  # a quarter as likely now


@pytest.mark.parametrize("fields", [{"top_k": 4}, {"top_p": 0.999}, {"top_k": 4, "top_p": 0.999}])
def test_min_p_cuts_what_the_other_cuts_leave(fields: dict[str, float | int]) -> None:
    logits = torch.tensor([0.1, 0.5, 0.3, 0.1]).log()
    assert set(draws(logits, min_p=0.59, **fields)) == {1, 2}
    assert set(draws(logits, min_p=0.01, top_k=2)) == {1, 2}


def test_min_p_takes_no_mass_from_top_p() -> None:
    """As transformers has it: top-p counts the mass of all, then min-p cuts; the other way round only 0 would stay."""
    logits = torch.tensor([0.5, 0.3, 0.1, 0.1]).log()
    assert set(draws(logits, top_p=0.6, min_p=0.5)) == {0, 1}


def test_a_top_k_beyond_the_vocabulary_cuts_nothing() -> None:
    assert set(draws(torch.zeros(3), top_k=100)) == {0, 1, 2}


@pytest.mark.parametrize("temperature", [1e-320, 1e-30, 1e-9, 1e-4])
def test_a_tiny_temperature_is_greedy_and_never_nan(temperature: float) -> None:
    assert set(draws(torch.tensor([1.0, 1.01, -50.0]), 50, temperature=temperature)) == {1}


@pytest.mark.parametrize("fields", [{}, {"top_k": 2}, {"top_p": 0.9}])
def test_tokens_with_a_logit_of_minus_infinity_never_come(fields: dict[str, float | int]) -> None:
    logits = torch.tensor([float("-inf"), 0.0, float("-inf"), 0.1])
    assert set(draws(logits, 500, **fields)) == {1, 3}  # type: ignore[arg-type]


def test_the_tiniest_top_p_still_leaves_the_best_token() -> None:
    assert set(draws(torch.tensor([0.0, 0.1]), 50, top_p=1e-12)) == {1}


def test_a_row_draws_the_same_whatever_its_batch_mates() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 50, generator=generator)
    samplings = [Sampling(0.9, 0, 1.0, seed, min_p=0.05 * (seed % 3)) for seed in range(6)]
    together = sample(logits, samplings, [3] * 6)
    alone = [sample(logits[i : i + 1], samplings[i : i + 1], [3])[0] for i in range(6)]
    turned = sample(logits.flip(0), samplings[::-1], [3] * 6)[::-1]
    assert together == alone == turned


def test_greedy_and_sampled_rows_mix_in_one_batch() -> None:
    logits = torch.zeros(4, 1000)
    logits[:, 17] = 0.5
    tokens = sample(logits, [Sampling(), Sampling(1.0, seed=1), Sampling(), Sampling(1.0, seed=2)], [0] * 4)
    assert tokens[0] == tokens[2] == 17
    assert tokens[1] != tokens[3]


def test_the_seed_and_the_position_both_decide_the_draw() -> None:
    values = {uniform(seed, position) for seed in range(50) for position in range(50)}
    assert len(values) == 2500
    assert uniform(3, 4) == uniform(3, 4)


@pytest.mark.parametrize("axis", ["seed", "position"])
def test_uniform_numbers_fill_the_unit_interval_along_seeds_and_positions(axis: str) -> None:
    count = 20_000
    values = [uniform(i, 0) if axis == "seed" else uniform(0, i) for i in range(count)]
    assert all(0.0 <= value < 1.0 for value in values)
    bins = Counter(int(value * 100) for value in values)
    chi2 = sum((bins[i] - count / 100) ** 2 / (count / 100) for i in range(100))
    assert chi2 < 149  # 99 degrees of freedom, p = 0.001
    lagged = sum((a - 0.5) * (b - 0.5) for a, b in pairwise(values)) / count * 12
    assert abs(lagged) < 0.03


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, 2**64, -(2**70)])
def test_any_integer_is_a_seed(seed: int) -> None:
    assert 0.0 <= uniform(seed, 0) < 1.0
