"""Generators of arrival offsets: constant, renewal, and of a rate that changes. All int64 ns after t0, before t0.

The plan of n requests is the beginning of the plan of more, so that a longer run repeats a shorter one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from harness.common.errors import ConfigError
from harness.common.limits import MAX_REQUESTS
from harness.plan import arrivals
from harness.plan.arrivals import MAX_SPAN_NS, Int64Array
from harness.plan.gap_laws import GapLaw
from harness.plan.rate_curves import OnOffChain, RateCurve
from harness.plan.seeds import Dimension, FloatArray, Uniforms

_CHUNK = 1 << 16


class Schedule(Protocol):
    """A process with its settings.

    law: the distribution of its gaps in words, None where nothing is drawn.
    """

    @property
    def law(self) -> str | None: ...

    def offsets(self, limit: int | None, until_ns: int | None) -> Int64Array:
        """int64 ns after t0, sorted: at most `limit` requests, all before `until_ns`. Raises ConfigError."""
        ...

    def unit_gaps(self, times_ns: Int64Array, resolution_ns: int = 1) -> FloatArray | None:
        """Gaps of sorted arrival times, mapped so that they are exponential of mean 1 if the process is this one.

        float64[len - 1], or None where nothing is drawn. Gaps below the resolution are not told apart.
        """
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Request i at i * interval; an interval of 0 is a burst."""

    interval: Fraction
    flag: str
    law: None = None

    def offsets(self, limit: int | None, until_ns: int | None) -> Int64Array:
        count = limit
        if until_ns is not None:
            fit = math.ceil(Fraction(until_ns) / self.interval)
            count = _checked(fit if limit is None else min(fit, limit))
        assert count is not None
        return arrivals.offsets_ns(self.interval, count, self.flag)

    def unit_gaps(self, times_ns: Int64Array, resolution_ns: int = 1) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Renewal:
    """Independent gaps of one law; the first is drawn, too: t0 is the process's start, not its first arrival."""

    gap_law: GapLaw
    mean_ns: float
    seed: int

    @property
    def law(self) -> str:
        return self.gap_law.name

    def offsets(self, limit: int | None, until_ns: int | None) -> Int64Array:
        stream = Uniforms(self.seed, Dimension.ARRIVALS)
        bound = MAX_SPAN_NS + 1 if until_ns is None else until_ns
        parts: list[Int64Array] = []
        count, now = 0, 0
        while limit is None or count < limit:
            want = _CHUNK if limit is None else min(_CHUNK, limit - count)
            gaps = np.rint(self.gap_law.quantile(stream.draw(want)) * self.mean_ns)
            inside = int(np.searchsorted(np.cumsum(gaps), bound - now))  # in float64, where no sum overflows
            part = now + np.cumsum(gaps[:inside].astype(np.int64))
            parts.append(part)
            count = _checked(count + inside)
            if inside < want:
                return _ended(np.concatenate(parts), until_ns)
            now = int(part[-1])
        return np.concatenate(parts)

    def unit_gaps(self, times_ns: Int64Array, resolution_ns: int = 1) -> FloatArray:
        """Equal gaps, and those below the resolution, are spread over the part of the law that they stand for.

        (Of a gamma law of shape 0.1 one gap in eight is below 1 ns.) In an order without a meaning: in the order of
        time, the spread ones would rise from the first to the last, which is autocorrelation.
        """
        gaps = np.diff(times_ns)
        gaps[gaps < resolution_ns] = 0
        values = self.gap_law.hazard(gaps / self.mean_ns)
        whole, cell, counts = np.unique(gaps, return_inverse=True, return_counts=True)
        tied = np.flatnonzero((counts > 1) | (whole == 0))
        upper = np.where(whole[tied] == 0, resolution_ns - 0.5, whole[tied] + 0.5)
        low, high = np.zeros(len(whole)), np.zeros(len(whole))
        low[tied] = self._below(np.maximum(whole[tied] - 0.5, 0.0))
        high[tied] = self._below(upper)
        order = np.lexsort((Uniforms(0, Dimension.ARRIVALS, 2).draw(len(gaps)), cell))
        rank = np.empty(len(gaps))
        rank[order] = np.arange(len(gaps)) - (np.cumsum(counts) - counts)[cell[order]] + 0.5
        spread = np.minimum(low[cell] + (high - low)[cell] * rank / counts[cell], 1.0 - 2.0**-53)
        return np.where(high[cell] > 0.0, -np.log1p(-spread), values)

    def _below(self, gaps: FloatArray) -> FloatArray:
        """The share of gaps below these."""
        share: FloatArray = -np.expm1(-self.gap_law.hazard(gaps / self.mean_ns))
        return share


@dataclass(frozen=True, slots=True)
class Varying:
    """Arrivals of a rate that changes: evenly, where the expected number reaches 0, 1, 2, ...; or Poisson, by the
    change of time that makes its gaps exponential (Cinlar 1975, p. 96). chain: the rate itself is drawn (MMPP).
    """

    curve: RateCurve | None
    even: bool
    seed: int
    chain: OnOffChain | None = None

    @property
    def law(self) -> str | None:
        return None if self.even else "exponential after time change"

    def offsets(self, limit: int | None, until_ns: int | None) -> Int64Array:
        ends = [end for end in (until_ns, self.curve.end_ns if self.curve else None) if end is not None]
        bound = min(ends, default=MAX_SPAN_NS + 1)
        most = math.inf
        if limit is None:
            most = float(self._reach(math.inf, bound).expected(np.array([float(bound)]))[0])
        numbers = self._even_numbers(limit, most) if self.even else self._poisson_numbers(limit, most)
        times = self._reach(float(numbers.max(initial=0.0)), bound).when(numbers)
        offsets = np.rint(times[times < bound]).astype(np.int64)
        offsets = offsets[offsets < bound]  # rounded up to it
        return offsets if len(offsets) == limit else _ended(offsets, bound if ends else None)

    def unit_gaps(self, times_ns: Int64Array, resolution_ns: int = 1) -> FloatArray | None:
        if self.even:
            return None
        last = float(times_ns[-1]) if len(times_ns) else 0.0
        return np.diff(self._reach(math.inf, last).expected(times_ns.astype(np.float64)))

    def _reach(self, expected: float, until_ns: float) -> RateCurve:
        if self.chain is not None:
            return self.chain.path(expected, until_ns)
        assert self.curve is not None
        return self.curve

    @staticmethod
    def _even_numbers(limit: int | None, most: float) -> FloatArray:
        count = _checked(math.ceil(min(most, MAX_REQUESTS + 1))) if limit is None else limit
        return np.arange(count, dtype=np.float64)

    def _poisson_numbers(self, limit: int | None, most: float) -> FloatArray:
        """Sums of exponential gaps: `limit` of them, or all up to `most`."""
        stream = Uniforms(self.seed, Dimension.ARRIVALS)
        parts: list[FloatArray] = [np.zeros(0)]
        count, total = 0, 0.0
        while total <= most and (limit is None or count < limit):
            want = _CHUNK if limit is None else min(_CHUNK, limit - count)
            sums = np.cumsum(np.concatenate([[total], -np.log(stream.draw(want))]))[1:]
            kept = sums[sums <= most]
            parts.append(kept)
            count, total = _checked(count + len(kept)), float(sums[-1])
        return np.concatenate(parts)


def _checked(count: int) -> int:
    if count > MAX_REQUESTS:
        raise ConfigError(
            f"the plan would have more than {MAX_REQUESTS} requests: shorten it (--num-requests, --duration, or the "
            "steps of --rate)"
        )
    return count


def _ended(offsets: Int64Array, until_ns: int | None) -> Int64Array:
    """A plan whose time is over before its number of requests: fine where a time was asked for."""
    if until_ns is None:
        raise ConfigError(f"--num-requests: the plan would take more than 366 days ({len(offsets)} requests fit)")
    return offsets
