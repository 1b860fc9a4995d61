"""A median with an interval that assumes nothing of the distribution: order statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

WANTED_CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """The median of `rounds` values, and two of them that enclose the true median with probability `confidence`."""

    median: float
    low: float
    high: float
    confidence: float
    rounds: int


def median_interval(values: Sequence[float]) -> Estimate | None:
    """The narrowest symmetric interval of at least WANTED_CONFIDENCE; of few values the widest, which says less.

    The k-th smallest and k-th largest of n enclose the median with probability 1 - 2 P(Binomial(n, 1/2) < k) (Conover,
    Practical Nonparametric Statistics, 3.2). None of no values.
    """
    ordered = sorted(values)
    n = len(ordered)
    if n == 0:
        return None
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    depth = max((k for k in range(1, n // 2 + 1) if _confidence(n, k) >= WANTED_CONFIDENCE), default=1)
    return Estimate(middle, ordered[depth - 1], ordered[n - depth], _confidence(n, depth), n)


def _confidence(n: int, depth: int) -> float:
    below = sum(math.comb(n, i) for i in range(depth))
    return max(1 - 2 * below / 2**n, 0.0)
