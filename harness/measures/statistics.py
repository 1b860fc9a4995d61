"""Summaries of one array of figures. Percentiles are NumPy's default (linear interpolation, Hyndman-Fan type 7)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

NumberArray = npt.NDArray[np.int64] | npt.NDArray[np.float64]

_QUANTILES = (50.0, 90.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class Summary:
    """What is said of an array; every field but `count` is None where the array is empty. `std` is the population's."""

    count: int
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p99_9: float | None = None
    max: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def percentile(values: NumberArray, q: float) -> float | None:
    """The q-th percentile (0..100) as `numpy.percentile` gives it; None where there is no value."""
    return float(np.percentile(values, q)) if len(values) else None


def summarize(values: NumberArray, divisor: float = 1.0) -> Summary:
    """Summarize an array in units of `divisor` (1e6: ns in, ms out). Statistics are taken before the division."""
    if len(values) == 0:
        return Summary(count=0)
    p50, p90, p95, p99, p99_9 = (float(value) / divisor for value in np.percentile(values, _QUANTILES))
    return Summary(
        count=len(values),
        mean=float(np.mean(values)) / divisor,
        std=float(np.std(values)) / divisor,
        min=float(np.min(values)) / divisor,
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        p99_9=p99_9,
        max=float(np.max(values)) / divisor,
    )
