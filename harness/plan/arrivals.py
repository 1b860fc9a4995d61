"""When each request is due: exact offsets after t0 from an interval or a rate, by integer arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from harness.common.clock import NS_PER_MS, NS_PER_S
from harness.common.errors import ConfigError

Int64Array = npt.NDArray[np.int64]

#: Longest plan: 366 days. What is beyond is a mistyped flag, and far beyond it int64 ns would overflow.
MAX_SPAN_NS = 366 * 24 * 3600 * NS_PER_S

_INT64_MAX = 2**63 - 1


def interval_of_ms(interval_ms: float) -> Fraction:
    """Nanoseconds between requests, exactly what was written: 0.1 ms is 100,000 ns, not 0.1's binary neighbour."""
    return Fraction(repr(float(interval_ms))) * NS_PER_MS


def interval_of_rate(rate: float) -> Fraction:
    """Nanoseconds between requests at `rate` requests per second, exactly."""
    return NS_PER_S / Fraction(repr(float(rate)))


def offsets_ns(interval: Fraction, count: int, flag: str) -> Int64Array:
    """int64[count]: request i at round(i * interval) ns after t0 (ties to even), no error accumulates. 0 is a burst.

    Raises ConfigError naming `flag` where the interval is negative, under 1 ns (but 0), or the plan exceeds 366 days.
    """
    if interval < 0 or 0 < interval < 1:
        raise ConfigError(f"{flag}: requests closer than 1 ns cannot be planned (0 ms between them is a burst)")
    if interval * max(count - 1, 1) > MAX_SPAN_NS:
        raise ConfigError(f"{flag}: the plan of {count} requests would take more than 366 days")
    whole, rest = divmod(interval.numerator, interval.denominator)
    if 2 * rest * count > _INT64_MAX or 2 * interval.denominator > _INT64_MAX:
        return offsets_ns_plain(interval, count)
    index = np.arange(count, dtype=np.int64)
    quotient, remainder = np.divmod(index * rest, interval.denominator)
    offsets = index * whole + quotient
    twice = 2 * remainder
    up = (twice > interval.denominator) | ((twice == interval.denominator) & (offsets % 2 == 1))
    return np.asarray(offsets + up, dtype=np.int64)


def offsets_ns_plain(interval: Fraction, count: int) -> Int64Array:
    """The same, one exact fraction a request and no int64 products: the oracle, and the way out for odd rates."""
    return np.fromiter((round(i * interval) for i in range(count)), dtype=np.int64, count=count)


def nominal_rate(offsets: Int64Array) -> float | None:
    """Requests per second that a plan asks for: its gaps over its span; None for a burst or a single request."""
    span = int(offsets[-1]) - int(offsets[0]) if len(offsets) else 0
    return None if span == 0 else (len(offsets) - 1) * NS_PER_S / span
