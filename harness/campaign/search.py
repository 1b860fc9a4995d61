"""The search for the highest rate that holds: growth until one fails, then cuts. It knows no engine and no clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

GROWTH = 2.0
#: The first rate tried below one that failed: what it completed, less this share.
_BELOW_COMPLETED = 0.98


class Outcome(Enum):
    """What became of a rate: the engine held it, or did not, or the load itself could not be given."""

    HELD = "held"
    FAILED = "failed"
    NO_LOAD = "no load"


class Tried(NamedTuple):
    """A rate with its outcome and the rate that the engine completed, where that is known."""

    rate: float
    outcome: Outcome
    completed: float | None


class Found(NamedTuple):
    """held: the highest rate that held (0: none did). failed: the lowest above it that did not (inf: none failed).
    stopped: why the search ended, in words."""

    held: float
    failed: float
    stopped: str


class Limits(NamedTuple):
    """start: first rate. low, high: rates beyond which nothing is tried. tolerance: relative width that is enough.
    most: trials at the most."""

    start: float
    low: float
    high: float
    tolerance: float
    most: int


@dataclass(slots=True)
class _Bracket:
    """What is known: the highest rate that held and the lowest that failed, and whether repeated runs said so."""

    held: float = 0.0
    failed: float = math.inf
    held_sure: bool = False
    failed_sure: bool = False
    completed: float | None = None  # of the last rate that failed: the engine's capacity, if it was overloaded

    def learn(self, tried: Tried, sure: bool) -> None:
        """Take an outcome in; where it contradicts an earlier one, that one is forgotten."""
        if tried.outcome is Outcome.HELD:
            if tried.rate >= self.failed:
                self.failed, self.failed_sure = math.inf, False
            self.held, self.held_sure = tried.rate, sure
        else:
            if tried.rate <= self.held:
                self.held, self.held_sure = 0.0, False
            self.failed, self.failed_sure, self.completed = tried.rate, sure, tried.completed


def search(attempt: Callable[[float, bool], Tried], limits: Limits) -> Found:
    """Find the highest rate that holds. `attempt(rate, sure)` runs a rate; sure: on repeated runs.

    From `start` the rate doubles until one fails (or halves until one holds), a run each. Then the interval between the
    two is cut, on repeated runs, until failed / held <= 1 + tolerance: first just below what the overloaded engine
    completed, then in the middle (of the ratio). Repeated runs judge both ends of the answer before it is given.
    """
    bracket = _Bracket()
    for _ in range(limits.most):
        step = _next(bracket, limits)
        if step is None:
            return Found(bracket.held, bracket.failed, _why(bracket, limits))
        tried = attempt(step.rate, step.sure)
        if tried.outcome is Outcome.NO_LOAD:
            stopped = f"the load could not be given at {step.rate:g}/s, so the engine's limit is not known"
            return Found(bracket.held, bracket.failed, stopped)
        bracket.learn(tried, step.sure)
    return Found(bracket.held, bracket.failed, f"{limits.most} rates were tried")


class _Step(NamedTuple):
    rate: float
    sure: bool


def _next(bracket: _Bracket, limits: Limits) -> _Step | None:
    """The rate to try next; None where the answer is as narrow as was asked for, or lies beyond the bounds."""
    held, failed = bracket.held, bracket.failed
    hint = None if bracket.completed is None else bracket.completed * _BELOW_COMPLETED
    if hint is not None and max(held, limits.low) < hint < failed:
        bracket.completed = None  # a hint is used once
        return _Step(hint, sure=True)
    if math.isinf(failed) and held < limits.high:
        return _Step(min(held * GROWTH or limits.start, limits.high), sure=False)
    if held == 0.0 and failed > limits.low:
        return _Step(max(failed / GROWTH, limits.low), sure=False)
    if held > 0.0 and not math.isinf(failed) and failed > held * (1 + limits.tolerance):
        return _Step(math.sqrt(held * failed), sure=True)
    if held > 0.0 and not bracket.held_sure:
        return _Step(held, sure=True)
    if not math.isinf(failed) and not bracket.failed_sure:
        return _Step(failed, sure=True)
    return None


def _why(bracket: _Bracket, limits: Limits) -> str:
    if bracket.held == 0.0:
        return f"no rate down to {limits.low:g}/s held"
    if math.isinf(bracket.failed):
        return f"the highest rate that may be tried, {limits.high:g}/s, held"
    return f"the lowest rate that failed is within {100 * limits.tolerance:g} % of the highest that held"
