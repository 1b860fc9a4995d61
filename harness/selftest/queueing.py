"""A single-server session against theory: Lindley request by request, D/D/1 exactly, M/D/1 in distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from scipy.stats import binom

from harness.common.collector import Int64Array
from harness.theory.autocorrelation import FloatArray, Interval, integrated_time, mean_interval
from harness.theory.lindley import lindley_starts
from harness.theory.md1 import md1_cdf, md1_mean_wait, md1_quantile

#: What a service may be off its predicted start or end at p99 (C10 of the measurement notes): 100 us, or 2 % of it.
LINDLEY_FLOOR_NS = 100_000
LINDLEY_SHARE = 0.02
#: A wait below this share of a service is that of a request which found the server free, or all but.
NEXT_TO_NOTHING = 0.1
SURE, VERY_SURE = 0.95, 0.999


@dataclass(frozen=True, slots=True)
class Served:
    """Requests of a single server in the order of their arrival, int64[n] ns each.

    arrivals: t_tokenized, when the engine could begin. starts: t_scheduled, when its step loop did. ends:
    t_first_token. freed: when the step loop was done with the request, its result sent. service_ns: what the null
    engine was told that a service takes.
    """

    arrivals: Int64Array
    starts: Int64Array
    ends: Int64Array
    freed: Int64Array
    service_ns: int

    @classmethod
    def of(
        cls, tokenized: Int64Array, scheduled: Int64Array, first_token: Int64Array, freed: Int64Array, service_ns: int
    ) -> Served:
        """In order of arrival, whatever the order of the rows."""
        order = np.argsort(tokenized, kind="stable")
        return cls(tokenized[order], scheduled[order], first_token[order], freed[order], service_ns)

    @property
    def waits_ns(self) -> Int64Array:
        """What the report calls queue wait (post-tok)."""
        waits: Int64Array = self.starts - self.arrivals
        return waits


class Residuals(NamedTuple):
    """Measured less predicted, ns at p50, p99 and the most, of the starts and of the ends of all services."""

    start_p50: float
    start_p99: float
    start_max: float
    end_p50: float
    end_p99: float
    end_max: float


def lindley_limit_ns(service_ns: int) -> float:
    """max(100 us, 2 % of a service)."""
    return max(LINDLEY_FLOOR_NS, LINDLEY_SHARE * service_ns)


def lindley_residuals(served: Served) -> Residuals:
    """How far off Lindley's recursion the services were, without signs.

    Ends: the recursion knows the arrivals and the scripted service time, and nothing of what the server did. Starts: it
    knows the services as recorded, which last until the result is on its way; so W_{i+1} = max(0, freed_i - A_{i+1}),
    and what is left is the time in which a free server leaves a request that is there.
    """
    scripted = lindley_starts(served.arrivals, np.full(len(served.arrivals), served.service_ns, dtype=np.int64))
    recorded = np.maximum(served.arrivals, np.concatenate((served.arrivals[:1], served.freed[:-1])))
    start = np.abs(served.starts - recorded)
    end = np.abs(served.ends - (scripted + served.service_ns))
    return Residuals(*np.percentile(start, (50, 99, 100)).tolist(), *np.percentile(end, (50, 99, 100)).tolist())


class Share(NamedTuple):
    """How many waits were at most `wait` (in services): by the closed form, measured, and the half widths of its 95 and
    99.9 % intervals, corrected for autocorrelation."""

    wait: float
    theory: float
    measured: float
    half: float
    wide_half: float

    @property
    def inside(self) -> bool:
        return abs(self.measured - self.theory) <= self.half

    @property
    def far_outside(self) -> bool:
        return abs(self.measured - self.theory) > self.wide_half


class Md1Result(NamedTuple):
    """One M/D/1 session. mean, wide: the mean wait in services with its 95 and 99.9 % intervals. theory: what it should
    be. shares: up to NEXT_TO_NOTHING, and at the quantiles of the closed form that were asked for.
    """

    load: float
    seed: int
    mean: Interval
    wide: Interval
    theory: float
    shares: tuple[Share, ...]

    @property
    def inside(self) -> bool:
        return self.mean.holds(self.theory)

    @property
    def far_outside(self) -> bool:
        return not self.wide.holds(self.theory)


def md1_result(served: Served, load: float, seed: int, probabilities: tuple[float, ...] = (0.9, 0.99)) -> Md1Result:
    """Compare the waits of a session with Poisson arrivals to M/D/1 at the planned load. Raises ValueError for fewer
    than 4 requests."""
    waits = served.waits_ns / served.service_ns
    levels = (NEXT_TO_NOTHING, *(md1_quantile(load, p) for p in probabilities))
    return Md1Result(
        load, seed, mean_interval(waits, SURE), mean_interval(waits, VERY_SURE), md1_mean_wait(load),
        tuple(_share(waits, level, md1_cdf(load, level)) for level in levels),
    )  # fmt: skip


def _share(waits: FloatArray, level: float, theory: float) -> Share:
    below = (waits <= level).astype(np.float64)
    deviation = math.sqrt(theory * (1.0 - theory) * integrated_time(below) / len(below))
    halves = [NormalDist().inv_cdf(0.5 + sure / 2.0) * deviation for sure in (SURE, VERY_SURE)]
    return Share(level, theory, float(below.mean()), *halves)


def enough_inside(count: int) -> int:
    """Of `count` independent 95 % intervals so many hold the truth but for two cases in a hundred; 8 of 10."""
    return int(binom.ppf(0.02, count, SURE))


def overload_slope(served: Served, interval_ns: int) -> float:
    """Slope of the waits of D/D/1 beyond its capacity, measured over predicted, which is W_i = i (S - T)."""
    waits = served.waits_ns
    slope = float(np.polyfit(np.arange(len(waits)), waits, 1)[0])
    return slope / (served.service_ns - interval_ns)
