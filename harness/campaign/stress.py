"""`isorate stress`: the highest arrival rate that an engine holds under its objectives, found by runs at many rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.campaign.search import Found, Limits, Outcome, Tried, search
from harness.campaign.trial import RunFigures, Trial, run_trial

#: A backlog that grows by more than this share of the time is an engine that does not keep up.
MAX_GROWTH = 0.005
MIN_REQUESTS = 40
#: A load is astray if its rate is off by more, or its submit lag p99 exceeds this share of the shortest objective.
MAX_RATE_ERROR, MAX_LAG_SHARE = 0.02, 0.10
#: How often a rate is run again whose load was disturbed, as by somebody else on the machine.
LOAD_ATTEMPTS = 3
#: After the last send of an overloaded run, wait for so many times the longest objective, and at least so long.
_DRAIN_LIMITS, _MIN_DRAIN_S = 4.0, 2.0


@dataclass(frozen=True, slots=True)
class StressSettings:
    """How to search. trial_s: seconds of load a run; repeats: runs that decide near the limit, the majority counts.

    shortest_limit_s, longest_limit_s: of the objectives. words: the run's own flags, without a rate.
    """

    limits: Limits
    trial_s: float
    repeats: int
    shortest_limit_s: float
    longest_limit_s: float
    words: tuple[str, ...]
    folder: Path


@dataclass(frozen=True, slots=True)
class RateResult:
    """A rate that was tried: what became of it, why, and its session. limit: who set it ("engine", "submitter", "host",
    "nothing")."""

    rate: float
    outcome: Outcome
    why: str
    limit: str
    sure: bool
    trial: Trial

    def median(self, name: str) -> float | None:
        """The median over the runs of a figure of `RunFigures`; None where no run has it."""
        values = sorted(value for run in self.trial.runs if (value := getattr(run, name)) is not None)
        return values[len(values) // 2] if values else None


@dataclass(frozen=True, slots=True)
class StressResult:
    """What was found, and every rate in the order in which it was tried."""

    found: Found
    tried: tuple[RateResult, ...]

    def limit(self) -> str:
        """What limits at the lowest rate that failed; nothing where none did."""
        failing = [one for one in self.tried if one.rate == self.found.failed or one.outcome is Outcome.NO_LOAD]
        return failing[-1].limit if failing else "nothing"


def stress(
    settings: StressSettings,
    tell: Callable[[RateResult], None],
    tried: list[RateResult],
    run: Callable[[Sequence[str], Path], Trial] = run_trial,
) -> StressResult:
    """Search. Every result is appended to `tried` and told at once, so that an interrupted search keeps them.

    Raises what `run` raises.
    """

    def attempt(rate: float, sure: bool) -> Tried:
        for _ in range(LOAD_ATTEMPTS):
            folder = settings.folder / f"{len(tried):02d}-{rate:.6g}"
            result = judge(rate, sure, run(trial_words(settings, rate, sure), folder), settings.shortest_limit_s)
            tried.append(result)
            tell(result)
            if result.outcome is not Outcome.NO_LOAD:
                break
        overloaded = result.outcome is Outcome.FAILED
        return Tried(rate, result.outcome, result.median("completed") if overloaded else None)

    return StressResult(search(attempt, settings.limits), tuple(tried))


def trial_words(settings: StressSettings, rate: float, sure: bool) -> list[str]:
    """The flags of one session: the user's own, and what the search decides."""
    requests = max(MIN_REQUESTS, math.ceil(rate * settings.trial_s))
    drain_s = max(_DRAIN_LIMITS * settings.longest_limit_s, _MIN_DRAIN_S)
    return [
        *settings.words, "--rate", repr(rate), "--num-requests", str(requests), "--drain-timeout", f"{drain_s:g}",
        "--repeat-runs", str(settings.repeats if sure else 1),
    ]  # fmt: skip


def judge(rate: float, sure: bool, trial: Trial, shortest_limit_s: float) -> RateResult:
    """Whether the engine held a rate: most runs kept all objectives, and their backlog did not grow.

    A run that kept its objectives only because it ended before the queue was long enough is told by the growth. Where
    the load of most runs was not the one that was asked for (a rate that is off, or a submit lag that is a good part of
    the shortest objective), nothing is said of the engine. The run's own verdict is stricter, and is in its report.
    """
    astray = [why for run in trial.runs if (why := _why_no_load(rate, run, shortest_limit_s))]
    if 2 * len(astray) > len(trial.runs):
        limit = trial.bound_by if trial.bound_by in ("submitter", "host") else "submitter"
        return RateResult(rate, Outcome.NO_LOAD, astray[0], limit, sure, trial)
    reasons = [_why_failed(run) for run in trial.runs]
    failed = [reason for reason in reasons if reason]
    if not trial.runs:
        return RateResult(rate, Outcome.FAILED, "no run was measured", "engine", sure, trial)
    if 2 * len(failed) > len(reasons):
        return RateResult(rate, Outcome.FAILED, failed[0], "engine", sure, trial)
    return RateResult(rate, Outcome.HELD, "", "nothing", sure, trial)


def _why_no_load(rate: float, run: RunFigures, shortest_limit_s: float) -> str:
    if run.offered is None or abs(run.offered / rate - 1.0) > MAX_RATE_ERROR:
        return f"the load was not what was asked for: {run.offered or 0.0:,.2f}/s were offered"
    if run.lag_p99 is None or run.lag_p99 / 1e3 > MAX_LAG_SHARE * shortest_limit_s:
        return f"the load was not what was asked for: submit lag p99 {run.lag_p99 or 0.0:,.2f} ms"
    return ""


def _why_failed(run: RunFigures) -> str:
    growing = run.growth is not None and run.growth > MAX_GROWTH
    if growing:
        assert run.growth is not None
        return f"saturated: E2E grows by {1e3 * run.growth:.0f} ms a second"
    return "" if run.met else "objectives missed"


def rates_in_order(results: Sequence[RateResult]) -> list[RateResult]:
    """By rate, the last trial of each rate only."""
    return sorted({result.rate: result for result in results}.values(), key=lambda result: result.rate)


def so_far(results: Sequence[RateResult], why: str) -> StressResult:
    """What a search knows that was ended by `why`: the highest rate that held below all that failed."""
    last = rates_in_order(results)
    failed = min((one.rate for one in last if one.outcome is Outcome.FAILED), default=math.inf)
    held = max((one.rate for one in last if one.outcome is Outcome.HELD and one.rate < failed), default=0.0)
    return StressResult(Found(held, failed, why), tuple(results))
