"""From logits to the next token. Each row draws from its own seed, so no row depends on its batch mates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from harness.common.protocol import Sampling

if TYPE_CHECKING:
    from engine_proc.kernels.best_token import BestToken

#: Below it a temperature acts as greedy does; dividing by less would only overflow.
MIN_TEMPERATURE = 1e-6
_MASK = (1 << 64) - 1


def sample(logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int]) -> list[int]:
    """`choose`, with the tokens on the host."""
    ids: list[int] = choose(logits, samplings, positions).tolist()
    return ids


def choose(logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int]) -> Tensor:
    """One token id a row, int64 on the logits' device; the host waits for nothing.

    `logits` float32 [rows, vocab]; `positions`: how many tokens each row has put out so far. A sampled token is a
    function of the row's logits, its seed and its position alone: nothing is carried from draw to draw, so a request
    that is computed again after a preemption or in another batch draws the same numbers.
    """
    best = _best(logits)
    for i, sampling in enumerate(samplings):
        if sampling.temperature > 0.0:
            best[i] = _draw(logits[i], sampling, uniform(sampling.seed, positions[i]))
    return best


def _best(logits: Tensor) -> Tensor:
    """The first of the largest logits of each row."""
    if logits.device.type != "cpu":
        return logits.max(dim=-1).indices
    compiled, array = _compiled_best(), logits.numpy()
    if compiled is None or not array.size or array.strides[1] != array.itemsize:
        return torch.from_numpy(array.argmax(axis=-1))  # takes a sixth of torch's time
    return torch.from_numpy(compiled(array))


@cache
def _compiled_best() -> BestToken | None:
    try:
        from engine_proc.kernels.best_token import BestToken
    except ImportError:  # no numba here
        return None
    return BestToken()


def uniform(seed: int, position: int) -> float:
    """A uniform number in [0, 1) for draw number `position` of a seed: SplitMix64 over both."""
    mixed = _mix(_mix(seed & _MASK) + position)
    return (mixed >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _draw(logits: Tensor, sampling: Sampling, u: float) -> Tensor:
    """The token at which the cumulative probability passes `u`, after temperature, then top-k, top-p and min-p.

    float64: a float32 sum over 50,000 probabilities is off by more than the rarest tokens have.
    """
    scaled = (logits.double() - logits.max()) / max(sampling.temperature, MIN_TEMPERATURE)
    ids: Tensor | None = None
    if 0 < sampling.top_k < scaled.numel():
        scaled, ids = scaled.topk(sampling.top_k)  # sorted, best first
    elif sampling.top_p < 1.0:
        scaled, ids = scaled.sort(descending=True, stable=True)
    weights = torch.softmax(scaled, dim=-1)
    if sampling.top_p < 1.0:
        # Keep the smallest set that reaches top_p: a token stays while what is before it falls short.
        kept = weights.cumsum(0) - weights < sampling.top_p
        kept[0] = True
        weights = weights * kept
    if sampling.min_p > 0.0:
        # The best token stands at 0, so each one's value is the logarithm of its share of the best one's probability.
        weights = weights * (scaled >= math.log(sampling.min_p))
    cumulative = weights.cumsum(0)
    total = cumulative[-1:]
    # Rounding may leave `u` at the total itself: the last token that has any weight is the one then.
    place = torch.minimum(torch.searchsorted(cumulative, u * total, right=True), torch.searchsorted(cumulative, total))
    return place[0] if ids is None else ids[place[0]]
