"""Is a stream of arrivals what it was said to be? Figures of sorted int64 ns arrays: of the plan, of what was sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.common.clock import NS_PER_MS, NS_PER_S
from harness.common.collector import Int64Array
from harness.plan.schedules import Schedule
from harness.plan.seeds import FloatArray

#: Upper 5 % and 1 % points of A*^2 where the mean is estimated (Stephens 1974, J. Am. Stat. Assoc. 69:730; his table
#: of 1986, which SciPy has, says 1.321 and 1.959).
AD_LIMIT_5, AD_LIMIT_1 = 1.341, 1.957
#: |z| that 5 % of normal values exceed; the lag-1 autocorrelation of n independent gaps has a deviation of 1 / sqrt(n).
NORMAL_5 = 1.96
#: Fewer gaps say nothing about a distribution.
MIN_GAPS = 20
WINDOWS_NS: Mapping[str, int] = {"10ms": 10 * NS_PER_MS, "100ms": 100 * NS_PER_MS, "1s": NS_PER_S}
_MIN_WINDOWS = 10
_ROUNDING_NS = 2  # gaps of a constant rate differ by no more, and that has a pattern but no meaning
_LARGEST = 700.0  # exp(-700) is the smallest float64 that is worth the name
_SMALLEST = 1e-12  # a gap of 0 ns stands for one below half a ns
#: Shorter gaps are no longer than a send call and its wake-up: no sender keeps them, and late ones catch up on nothing.
_SHORTEST_KEPT_NS = 100_000
_BURST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class ArrivalFigures:
    """What a stream of arrivals looks like; None: not defined for it, or not known.

    rate: per s. cv: of the gaps. lag1: autocorrelation of consecutive gaps. dispersion: variance over mean of counts by
    window (1 for Poisson). law: of the gaps, in words. anderson_darling, law_lag1: of gaps that the law maps to
    exponential ones. phase_z: Rayleigh's n R^2 of the phases within a second (exceeded with probability exp(-z) if
    they are uniform and independent, which Poisson arrivals are).
    """

    gaps: int
    rate: float | None
    cv: float | None
    lag1: float | None
    dispersion: Mapping[str, float | None]
    law: str | None
    anderson_darling: float | None
    law_lag1: float | None
    phase_z: float | None

    @property
    def lag1_limit(self) -> float | None:
        """|law_lag1| that 5 % of streams exceed."""
        return NORMAL_5 / math.sqrt(self.gaps) if self.gaps else None

    def to_json(self) -> dict[str, Any]:
        """One entry of `arrivals` in summary.json."""
        tested = self.anderson_darling is not None
        return {
            "gaps": self.gaps,
            "rate": self.rate,
            "cv": self.cv,
            "lag1": self.lag1,
            "dispersion": dict(self.dispersion),
            "law": self.law,
            "anderson_darling": self.anderson_darling,
            "anderson_darling_limit": AD_LIMIT_5 if tested else None,
            "law_lag1": self.law_lag1,
            "law_lag1_limit": self.lag1_limit if tested else None,
            "phase_z": self.phase_z,
        }


@dataclass(frozen=True, slots=True)
class ArrivalShift:
    """How the sent stream differs from the planned one: squared coefficients of variation of the gaps (None: no mean
    gap), and catch-up bursts, which are gaps below 10 % of the planned ones.
    """

    gaps: int
    planned_ca2: float | None
    actual_ca2: float | None
    bursts: int

    @property
    def delta_ca2(self) -> float | None:
        if self.planned_ca2 is None or self.actual_ca2 is None:
            return None
        return self.actual_ca2 - self.planned_ca2

    def to_json(self) -> dict[str, Any]:
        """The entry `shift` of `arrivals` in summary.json."""
        return {"gaps": self.gaps, "planned_ca2": self.planned_ca2, "actual_ca2": self.actual_ca2,
                "delta_ca2": self.delta_ca2, "bursts": self.bursts}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ArrivalReport:
    """The self-check of one run. process: the word of `--arrival`, None for a plan file."""

    process: str | None
    plan: ArrivalFigures
    actual: ArrivalFigures
    shift: ArrivalShift

    def to_json(self) -> dict[str, Any]:
        """`arrivals` of a run in summary.json."""
        return {
            "process": self.process,
            "plan": self.plan.to_json(),
            "actual": self.actual.to_json(),
            "shift": self.shift.to_json(),
        }


def check_arrivals(
    planned_ns: Int64Array, sent_rows: Any, sent_ns: Int64Array, process: str | None, schedule: Schedule | None
) -> ArrivalReport:
    """planned_ns: int64[N], after t0. sent_rows: bool[N]. sent_ns: int64, ns after t0 of those that were sent."""
    actual = np.sort(sent_ns)
    return ArrivalReport(
        process=process,
        plan=figures(planned_ns, schedule),
        actual=figures(actual, schedule, _resolution_ns(planned_ns)),
        shift=shift(planned_ns[sent_rows], actual),
    )


def _resolution_ns(planned_ns: Int64Array) -> int:
    """How short a gap a sender can keep: what its own send calls take, or a tenth of the mean gap if that is less."""
    mean = int(planned_ns[-1] - planned_ns[0]) // max(len(planned_ns) - 1, 1) if len(planned_ns) else 0
    return max(1, min(_SHORTEST_KEPT_NS, mean // 10))


def figures(times_ns: Int64Array, schedule: Schedule | None, resolution_ns: int = 1) -> ArrivalFigures:
    """Figures of sorted arrival times, ns after t0; `schedule` says what they should be, None: nobody knows.

    The test of the law does not tell gaps below the resolution apart.
    """
    gaps = np.diff(times_ns)
    span = int(times_ns[-1] - times_ns[0]) if len(times_ns) else 0
    square = squared_cv(gaps)
    enough = len(gaps) >= MIN_GAPS and span > 0
    unit = schedule.unit_gaps(times_ns, resolution_ns) if schedule is not None and enough else None
    return ArrivalFigures(
        gaps=len(gaps),
        rate=len(gaps) * NS_PER_S / span if span else None,
        cv=None if square is None else math.sqrt(square),
        lag1=lag1(gaps) if len(gaps) and np.ptp(gaps) > _ROUNDING_NS else None,
        dispersion={name: dispersion(times_ns, window) for name, window in WINDOWS_NS.items()},
        law=None if schedule is None else schedule.law,
        anderson_darling=None if unit is None else anderson_darling(unit),
        law_lag1=None if unit is None else lag1(np.minimum(unit, _LARGEST)),
        phase_z=phase_z(times_ns) if len(gaps) >= MIN_GAPS else None,
    )


def anderson_darling(gaps: FloatArray) -> float:
    """A*^2 = A^2 (1 + 0.6 / n) against an exponential distribution of unknown mean (Stephens 1974)."""
    n = len(gaps)
    mean = float(np.minimum(gaps, _LARGEST).mean())
    scaled = np.sort(np.clip(gaps / (mean or 1.0), _SMALLEST, _LARGEST))
    ranks = 2.0 * np.arange(1, n + 1) - 1.0
    terms = ranks * (np.log(-np.expm1(-scaled)) - scaled[::-1])
    return float(-n - terms.sum() / n) * (1.0 + 0.6 / n)


def squared_cv(gaps: Int64Array) -> float | None:
    """Variance over squared mean, Ca^2 of queueing theory; None without a mean."""
    mean = float(gaps.mean()) if len(gaps) else 0.0
    return float(gaps.var()) / mean**2 if mean > 0.0 else None


def lag1(values: Int64Array | FloatArray) -> float | None:
    """Autocorrelation at lag 1 (the usual estimate, over n); None for fewer than three values or equal ones."""
    if len(values) < 3:
        return None
    centred = values - values.mean()
    total = float((centred**2).sum())
    return float((centred[1:] * centred[:-1]).sum()) / total if total > 0.0 else None


def dispersion(times_ns: Int64Array, window_ns: int) -> float | None:
    """Variance over mean of the counts in the whole windows from 0 to the last arrival; None for fewer than ten.

    Empty windows are counted but not stored: a plan may last a year.
    """
    windows = int(times_ns[-1]) // window_ns if len(times_ns) else 0
    if windows < _MIN_WINDOWS:
        return None
    index = times_ns[(times_ns >= 0) & (times_ns < windows * window_ns)] // window_ns
    counts = np.unique(index, return_counts=True)[1].astype(np.float64)
    mean = float(counts.sum()) / windows
    if mean == 0.0:
        return None
    return (float((counts**2).sum()) - windows * mean**2) / (windows - 1) / mean


def phase_z(times_ns: Int64Array, period_ns: int = NS_PER_S) -> float | None:
    """Rayleigh's statistic n R^2 of the phases within a period, over whole periods; None for fewer than ten.

    (In part of a period the phases of any stream crowd together.)
    """
    periods = int(times_ns[-1]) // period_ns if len(times_ns) else 0
    inside = times_ns[(times_ns >= 0) & (times_ns < periods * period_ns)]
    if periods < _MIN_WINDOWS or len(inside) == 0:
        return None
    angles = (inside % period_ns) * (2.0 * math.pi / period_ns)
    return float(np.cos(angles).sum() ** 2 + np.sin(angles).sum() ** 2) / len(inside)


def shift(planned_ns: Int64Array, actual_ns: Int64Array) -> ArrivalShift:
    """Compare the planned and the actual times of the same requests, both sorted."""
    planned, actual = np.diff(planned_ns), np.diff(actual_ns)
    bursts = (planned >= _SHORTEST_KEPT_NS) & (actual < _BURST_SHARE * planned)
    return ArrivalShift(len(planned), squared_cv(planned), squared_cv(actual), int(np.count_nonzero(bursts)))
