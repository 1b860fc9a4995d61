"""Arrival rates that change with time: how many requests are expected by a time, and when a number is reached.

Times are ns after t0 and numbers of requests, both float64 arrays; a curve goes on at its last rate beyond its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from harness.common.clock import NS_PER_S
from harness.common.errors import ConfigError
from harness.config.rate_text import Ramp, Step
from harness.plan.seeds import Dimension, FloatArray, Uniforms

MAX_STATE_CHANGES = 5_000_000
_CHUNK = 4096
_BISECTIONS = 54  # an interval of 2 pi, halved to the precision of a float64


class RateCurve(Protocol):
    """`expected` is the cumulative rate, `when` its inverse. end_ns: where a plan ends at the latest, None: nowhere."""

    @property
    def end_ns(self) -> int | None: ...

    def expected(self, times_ns: FloatArray) -> FloatArray: ...

    def when(self, expected: FloatArray) -> FloatArray: ...


@dataclass(frozen=True, slots=True)
class RampCurve:
    """A rate that changes linearly: a t + (b - a) t^2 / 2D."""

    start_per_ns: float
    end_per_ns: float
    end_ns: int

    @classmethod
    def of(cls, ramp: Ramp, duration_ns: int) -> RampCurve:
        return cls(float(ramp.start / NS_PER_S), float(ramp.end / NS_PER_S), duration_ns)

    def expected(self, times_ns: FloatArray) -> FloatArray:
        inside = np.clip(times_ns, 0.0, self.end_ns)
        slope = (self.end_per_ns - self.start_per_ns) / self.end_ns
        expected: FloatArray = inside * (self.start_per_ns + 0.5 * slope * inside)
        return expected + np.maximum(times_ns - self.end_ns, 0.0) * self.end_per_ns

    def when(self, expected: FloatArray) -> FloatArray:
        """The root of the quadratic in the form that does not cancel: 2y / (a + sqrt(a^2 + 2 slope y))."""
        slope = (self.end_per_ns - self.start_per_ns) / self.end_ns
        root = np.sqrt(np.maximum(self.start_per_ns**2 + 2.0 * slope * expected, 0.0))
        below = self.start_per_ns + root
        times: FloatArray = np.divide(2.0 * expected, below, out=np.zeros_like(below), where=below > 0.0)
        return times


@dataclass(frozen=True, slots=True)
class StepCurve:
    """A rate that is constant from one of `starts_ns` to the next; `before` requests are expected by each of them."""

    starts_ns: FloatArray
    before: FloatArray
    per_ns: FloatArray
    end_ns: int | None

    @classmethod
    def of(cls, steps: Sequence[Step]) -> StepCurve:
        """The sums are exact: a request that is due where a step ends is the first of the next one."""
        starts, before = [Fraction(0)], [Fraction(0)]
        for step in steps:
            starts.append(starts[-1] + step.seconds * NS_PER_S)
            before.append(before[-1] + step.seconds * step.rate)
        rates = [float(step.rate / NS_PER_S) for step in steps]
        end = math.ceil(starts[-1])
        return cls(np.array(starts[:-1], float), np.array(before[:-1], float), np.array(rates), end)

    def expected(self, times_ns: FloatArray) -> FloatArray:
        step = np.maximum(np.searchsorted(self.starts_ns, times_ns, side="right") - 1, 0)
        expected: FloatArray = self.before[step] + (times_ns - self.starts_ns[step]) * self.per_ns[step]
        return expected

    def when(self, expected: FloatArray) -> FloatArray:
        """Where the curve is flat, the end of the flat part."""
        step = np.searchsorted(self.before, expected, side="right") - 1
        rates = self.per_ns[step]
        since = np.divide(expected - self.before[step], rates, out=np.full(len(step), np.inf), where=rates > 0.0)
        times: FloatArray = self.starts_ns[step] + since
        return times


@dataclass(frozen=True, slots=True)
class SineCurve:
    """mean (1 + amplitude sin(2 pi t / period)); the first quarter period rises."""

    per_ns: float
    amplitude: float
    period_ns: float
    end_ns: int | None = None

    def expected(self, times_ns: FloatArray) -> FloatArray:
        periods = np.floor(times_ns / self.period_ns)
        phase = 2.0 * np.pi * (times_ns / self.period_ns - periods)
        expected: FloatArray = self.per_ns * self.period_ns * (periods + self._share(phase))
        return expected

    def when(self, expected: FloatArray) -> FloatArray:
        """By bisection within a period, whose shape is always the same."""
        periods, wanted = np.divmod(expected / (self.per_ns * self.period_ns), 1.0)
        low, high = np.zeros_like(wanted), np.full_like(wanted, 2.0 * np.pi)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            above = self._share(middle) > wanted
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        times: FloatArray = self.period_ns * (periods + low / (2.0 * np.pi))
        return times

    def _share(self, phase: FloatArray) -> FloatArray:
        share: FloatArray = (phase + self.amplitude * (1.0 - np.cos(phase))) / (2.0 * np.pi)
        return share


@dataclass(frozen=True, slots=True)
class OnOffChain:
    """The two-state Markov chain of an MMPP (Fischer and Meier-Hellstern 1993): rates per ns, mean stays in ns.

    It starts in its long-run state: in a burst with probability on / (on + off).
    """

    on_per_ns: float
    off_per_ns: float
    on_ns: float
    off_ns: float
    seed: int

    def path(self, expected: float, until_ns: float) -> StepCurve:
        """The drawn rate, as far as `expected` requests or `until_ns`, whichever comes first.

        Raises ConfigError where that takes more than MAX_STATE_CHANGES changes.
        """
        stream = Uniforms(self.seed, Dimension.ARRIVALS, 1)
        on = bool(stream.draw(1)[0] < self.on_ns / (self.on_ns + self.off_ns))
        stays: list[FloatArray] = []
        reached, now = 0.0, 0.0
        while reached <= expected and now <= until_ns:
            if len(stays) * _CHUNK >= MAX_STATE_CHANGES:
                raise ConfigError(f"--mmpp-on and --mmpp-off: more than {MAX_STATE_CHANGES} changes in one plan")
            drawn = np.rint(-np.log(stream.draw(_CHUNK)) * self._pattern(self.on_ns, self.off_ns, on))
            stays.append(drawn)
            now += float(drawn.sum())
            reached += float((drawn * self._pattern(self.on_per_ns, self.off_per_ns, on)).sum())
        stay = np.concatenate(stays)
        rates = np.tile(self._pattern(self.on_per_ns, self.off_per_ns, on), len(stays))
        starts = np.concatenate([[0.0], np.cumsum(stay)])
        before = np.concatenate([[0.0], np.cumsum(stay * rates)])
        return StepCurve(starts[:-1], before[:-1], rates, None)

    @staticmethod
    def _pattern(on_value: float, off_value: float, on_first: bool) -> FloatArray:
        pair = (on_value, off_value) if on_first else (off_value, on_value)
        return np.tile(np.array(pair), _CHUNK // 2)
