"""How much a sample is worth: the effective number of independent values, and which percentiles it supports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.measures.statistics import NumberArray

FloatArray = npt.NDArray[np.float64]

#: Fewest independent values for each percentile: the least n with P(Binomial(n, 1 - p) <= 1) <= 0.01, the minimum of
#: MLPerf's early stopping at 99 % confidence.
FLOORS: Mapping[str, int] = {"p50": 11, "p90": 64, "p95": 130, "p99": 662, "p99_9": 6636}
#: Sokal's window: the sum of autocorrelations stops at the first lag that is this many times the time found so far.
_WINDOW = 5.0
#: Of longer records this many values from the middle tell the autocorrelation time, which bounds memory and time.
_MOST = 1 << 16


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a metric's values in arrival order are worth.

    count: values. vif: the integrated autocorrelation time, in values (1: independent).
    """

    count: int
    vif: float

    @property
    def ess(self) -> float:
        """Effective sample size: so many independent values would say as much."""
        return self.count / self.vif

    def supports(self, percentile: str) -> bool:
        """Whether the sample is large enough for a percentile of FLOORS, e.g. `p99`."""
        return self.ess >= FLOORS[percentile]

    def needed(self, percentile: str) -> int:
        """How many values of this dependence would support it."""
        return math.ceil(FLOORS[percentile] * self.vif)

    def to_json(self) -> dict[str, Any]:
        """Added to a metric of summary.json: `ess`, `vif`, `supported` and `needed` by percentile."""
        return {
            "ess": self.ess,
            "vif": self.vif,
            "supported": {name: self.supports(name) for name in FLOORS},
            "needed": {name: self.needed(name) for name in FLOORS},
        }


def sample(values: NumberArray, *, ordered: bool = True) -> Sampling:
    """values: in arrival order; `ordered` False: they have none (a burst), so each counts as one."""
    return Sampling(len(values), vif(values) if ordered else 1.0)


def vif(values: NumberArray) -> float:
    """Variance inflation: the integrated autocorrelation time of the values or of their ranks, whichever is longer.

    Values show dependence among the few that make the tail, ranks that of the bulk, which an outlier cannot hide.
    """
    if len(values) > _MOST:
        start = (len(values) - _MOST) // 2
        values = values[start : start + _MOST]
    return max(autocorrelation_time(values), autocorrelation_time(ranks(values)))


def autocorrelation_time(values: NumberArray) -> float:
    """tau = 1 + 2 sum of rho_k up to the first lag M >= 5 tau (Sokal 1997, Monte Carlo Methods, section 3); at least 1.

    1 for fewer than three values or equal ones. At most the number of values.
    """
    n = len(values)
    if n < 3 or np.ptp(values) == 0:
        return 1.0
    centred = values - np.mean(values)
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    covariance = np.fft.irfft(spectrum * np.conj(spectrum), size)[:n]
    times = 2.0 * np.cumsum(covariance / covariance[0]) - 1.0
    inside = np.arange(n) >= _WINDOW * times
    window = int(np.argmax(inside)) if inside.any() else n - 1
    return float(np.clip(times[window], 1.0, n))


def ranks(values: NumberArray) -> FloatArray:
    """Ranks from 0 with ties at their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    mean: FloatArray = (ends - (counts + 1) / 2.0)[inverse]
    return mean


def rank_lag1(values: NumberArray) -> tuple[float, float] | None:
    """Spearman's correlation of successive values and its two-sided p (normal: z = r sqrt(n - 1)); None below four.

    None also where all values are equal.
    """
    if len(values) < 4:
        return None
    first, second = ranks(values[:-1]), ranks(values[1:])
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    r = float(np.corrcoef(first, second)[0, 1])
    return r, math.erfc(abs(r) * math.sqrt((len(first) - 1) / 2.0))
