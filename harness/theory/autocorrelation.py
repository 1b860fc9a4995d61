"""How much less n values say when each resembles the one before: the integrated autocorrelation time, and intervals."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


class Interval(NamedTuple):
    """A mean with its interval. vif: factor by which autocorrelation inflates the variance of the mean; n / vif values
    are independent ones' worth."""

    mean: float
    low: float
    high: float
    vif: float
    n: int

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2.0

    def holds(self, value: float) -> bool:
        """Whether `value` lies within."""
        return self.low <= value <= self.high


def autocorrelation(values: FloatArray) -> FloatArray:
    """float64[n]: autocorrelation at lags 0 .. n - 1 (the usual estimate, over n); of a constant 0 after lag 0."""
    n = len(values)
    centred = np.asarray(values, dtype=np.float64) - np.mean(values)
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    covariance = np.fft.irfft(spectrum * np.conj(spectrum), size)[:n]
    if covariance[0] <= 0.0:
        return np.concatenate(([1.0], np.zeros(n - 1)))
    found: FloatArray = covariance / covariance[0]
    return found


def integrated_time(values: FloatArray) -> float:
    """The integrated autocorrelation time 1 + 2 sum of rho_k, at least 1: the variance inflation factor of the mean.

    The sum ends by C. J. Geyer's initial monotone sequence ("Practical Markov chain Monte Carlo", Statist. Sci. 7
    (1992) 473-483): sums of neighbouring lags while they are positive, none greater than the one before.
    Raises ValueError for fewer than 4 values.
    """
    if len(values) < 4:
        raise ValueError(f"{len(values)} values have no autocorrelation time")
    rho = autocorrelation(values)
    even = len(rho) // 2 * 2
    pairs = rho[:even].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0.0)
    positive = pairs[: negative[0]] if len(negative) else pairs
    total = float(np.minimum.accumulate(positive).sum()) if len(positive) else 0.5
    return max(2.0 * total - 1.0, 1.0)


def mean_interval(values: FloatArray, confidence: float = 0.95) -> Interval:
    """The mean of a stationary series with an interval: mean -+ z sd sqrt(vif / n). Raises ValueError as above."""
    n = len(values)
    vif = integrated_time(values)
    mean = float(np.mean(values))
    half = NormalDist().inv_cdf(0.5 + confidence / 2.0) * float(np.std(values, ddof=1)) * math.sqrt(vif / n)
    return Interval(mean, mean - half, mean + half, vif, n)
