"""Is a run in a steady state? MSER-5 truncation, and its first half against its second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.measures.sampling import vif
from harness.measures.statistics import NumberArray

_BATCH = 5
MIN_BATCHES = 40  # fewer say nothing of where a transient ends
MIN_HALF = 20
_Z_999 = 3.29  # two-sided 99.9 % of a normal


@dataclass(frozen=True, slots=True)
class Steadiness:
    """Of a metric's values in arrival order; None: too few.

    truncated: share of the run before its steady state by MSER-5; 0.5 means that none was found within the first half.
    shift: median of the second half over that of the first, less 1. noise: how far sampling alone moves `shift`
    (the distance of the two medians' outer 99.9 % limits if they meet).
    """

    truncated: float | None
    shift: float | None
    noise: float | None

    def to_json(self) -> dict[str, Any]:
        """The entry `steady_state` of a run."""
        return {"mser5_truncated": self.truncated, "half_shift": self.shift, "half_noise": self.noise}


def steadiness(values: NumberArray) -> Steadiness:
    """values: in arrival order."""
    shift = half_shift(values)
    return Steadiness(mser5(values), *(shift or (None, None)))


def mser5(values: NumberArray) -> float | None:
    """The share of the run that MSER-5 leaves out (White 1997, Simulation 69:323): of means Z_1..Z_m of batches of 5,

    the d in 0..m/2 that minimises  sum over j > d of (Z_j - mean of those)^2 / (m - d)^2,  as d / m.
    None for fewer than MIN_BATCHES batches. 0.5 is the bound: no steady state begins before it.
    """
    m = len(values) // _BATCH
    if m < MIN_BATCHES:
        return None
    means = values[: m * _BATCH].reshape(m, _BATCH).mean(axis=1)
    means = means - means.mean()  # keeps the sums of squares exact enough
    left = np.arange(m, 0, -1)
    sums = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum(np.square(means)[::-1])[::-1]
    score = (squares - np.square(sums) / left) / np.square(left)
    return int(np.argmin(score[: m // 2 + 1])) / m


def half_shift(values: NumberArray) -> tuple[float, float] | None:
    """(shift, noise) of the halves' medians; None for fewer than 2 x MIN_HALF values or a first median of 0 or less.

    The limits of a median are order statistics at 0.5 +- z sqrt(0.25 / effective size), the size of each half its own.
    """
    half = len(values) // 2
    if half < MIN_HALF:
        return None
    first, second = values[:half], values[-half:]
    centre = float(np.median(first))
    if centre <= 0.0:
        return None
    noise = (_margin(first) + _margin(second)) / centre
    return float(np.median(second)) / centre - 1.0, noise


def _margin(values: NumberArray) -> float:
    """Half the width of the 99.9 % interval of a median; as wide as all values where they are too few for one."""
    spread = _Z_999 * (0.25 * vif(values) / len(values)) ** 0.5
    low, high = np.quantile(values, [max(0.5 - spread, 0.0), min(0.5 + spread, 1.0)])
    return float(high - low) / 2.0
