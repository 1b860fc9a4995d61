"""Distributions of the gaps of renewal processes, with mean 1: their quantiles and their cumulative hazards."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harness.plan.seeds import FloatArray


@dataclass(frozen=True, slots=True)
class GapLaw:
    """quantile: the gap that is exceeded with probability p. hazard: -ln P(gap > x), which maps gaps of this law to
    exponential ones of mean 1. cv2: squared coefficient of variation, to which the index of dispersion of counts tends.
    """

    name: str
    quantile: Callable[[FloatArray], FloatArray]
    hazard: Callable[[FloatArray], FloatArray]
    cv2: float


def exponential() -> GapLaw:
    """The gaps of a Poisson process."""
    return GapLaw("exponential", lambda p: -np.log(p), lambda x: x, 1.0)


def gamma(shape: float) -> GapLaw:
    """Gamma of mean 1; 1 / shape is its squared coefficient of variation. `shape` is vLLM's burstiness."""
    from scipy import special  # here: it takes a third of a second, which no other load needs

    def quantile(p: FloatArray) -> FloatArray:
        gaps: FloatArray = special.gammainccinv(shape, p) / shape
        return gaps

    def hazard(x: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):  # beyond 1e-308: an infinite hazard
            return -np.log(special.gammaincc(shape, shape * x))

    return GapLaw("gamma", quantile, hazard, 1.0 / shape)


def weibull(shape: float) -> GapLaw:
    """Weibull of mean 1: P(gap > x) = exp(-(x Gamma(1 + 1/shape))^shape)."""
    scale = 1.0 / math.gamma(1.0 + 1.0 / shape)
    cv2 = math.gamma(1.0 + 2.0 / shape) * scale**2 - 1.0
    return GapLaw(
        "Weibull",
        lambda p: scale * (-np.log(p)) ** (1.0 / shape),
        lambda x: (x / scale) ** shape,
        cv2,
    )
