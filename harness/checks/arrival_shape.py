"""Is the plan what its arrival process says, and did the gaps leave as planned? Limits: docs/load.md."""

from __future__ import annotations

import numpy as np

from harness.checks.check import Bound, Check, CheckContext, Reading
from harness.common.clock import NS_PER_S
from harness.measures.arrival_check import AD_LIMIT_1, AD_LIMIT_5, MIN_GAPS, ArrivalFigures
from harness.measures.metrics import RunMetrics, offered_rate

#: Values are in limits: A*^2 is INVALID at twice its 1 % point, a plan that no luck explains.
_PLAN_INVALID = 2.0 * AD_LIMIT_1 / AD_LIMIT_5
#: Rayleigh's z of a chance of 1 in 1000: no part of the pass mark, so it adds no false alarm to those of the other two.
_PHASE_LIMIT = 6.908
#: Ca^2 may move by 1 % of its own, and of a constant rate by what moves a mean wait less than can be measured.
_CA2_FLOOR, _CA2_SHARE = 0.001, 0.01
_BURST_SHARE = 0.001
_SHARE_OF_TTFT = 0.05
_HIGHEST_LOAD = 0.95  # Kingman's formula has a pole at 1, and "busy" overstates the load of a batching engine


def _plan_shape(context: CheckContext) -> Reading:
    report = context.measured.arrivals
    if context.measured.record.gated:
        return Reading(None, "requests wait for the ends of others: no process plans them")
    plan = report.plan
    if report.process is None:
        return Reading(None, "the plan does not say what process it is of")
    if plan.law is None:
        return Reading(None, f"the arrivals are {report.process}: nothing is drawn")
    if plan.anderson_darling is None:
        return Reading(None, f"{plan.gaps} gaps say nothing about a distribution, {MIN_GAPS} would")
    name, value = max(_shape_ratios(plan), key=lambda pair: pair[1])
    lag = plan.law_lag1 or 0.0
    words = f"the planned gaps have A*^2 {plan.anderson_darling:.3f} against {plan.law} and lag-1 {lag:+.3f}"
    return Reading(value, f"{words}, {value:.2f} of the limit of {name}", warn_above=1.0, invalid_above=_PLAN_INVALID)


def _shape_ratios(plan: ArrivalFigures) -> list[tuple[str, float]]:
    """Every statistic of the shape in units of its limit."""
    ratios = [("A*^2", (plan.anderson_darling or 0.0) / AD_LIMIT_5)]
    if plan.law_lag1 is not None and plan.lag1_limit:
        ratios.append(("lag-1", abs(plan.law_lag1) / plan.lag1_limit))
    if plan.law == "exponential" and plan.phase_z is not None:  # of other laws phases are uniform but not independent
        ratios.append(("the phase within a second", plan.phase_z / _PHASE_LIMIT))
    return ratios


def _gap_shift(context: CheckContext) -> Reading:
    run = context.measured
    if context.reacts:
        return Reading(None, "requests wait for the ends of others: the gaps are not the submitter's to keep")
    shift = run.arrivals.shift
    delta = shift.delta_ca2
    if delta is None or shift.planned_ca2 is None:
        return Reading(None, "the plan has no gaps between requests")
    if shift.gaps < MIN_GAPS:
        return Reading(None, f"{shift.gaps} gaps say nothing about their variation, {MIN_GAPS} would")
    limit = max(_CA2_FLOOR, _CA2_SHARE * shift.planned_ca2)
    bursts = shift.bursts / shift.gaps / _BURST_SHARE
    words = (
        f"the gaps' squared variation is {shift.actual_ca2:.4f} where the plan has {shift.planned_ca2:.4f} "
        f"(+-{limit:.4f} allowed), {shift.bursts} of {shift.gaps:,} gaps fell below a tenth of the planned"
    )
    wait = _predicted_wait_ns(run, delta)
    ttft = _mean_ttft_ns(run)
    if abs(delta) > limit and wait is not None and ttft and wait > _SHARE_OF_TTFT * ttft:
        share = wait / ttft
        words += f", which moves the mean wait by up to {100 * share:.1f} % of TTFT"
        return Reading(share / _SHARE_OF_TTFT, words, invalid_above=1.0)
    return Reading(max(abs(delta) / limit, bursts), words, warn_above=1.0)


def _predicted_wait_ns(run: RunMetrics, delta_ca2: float) -> float | None:
    """Kingman: the mean wait of GI/G/1 is rho / (1 - rho) S (Ca^2 + Cs^2) / 2 at most, and S is rho / rate."""
    rate = offered_rate(run.record.columns["t_send"][run.record.sent])
    if run.busy is None or not rate:
        return None
    load = min(run.busy, _HIGHEST_LOAD)
    return load**2 / (1.0 - load) / rate * NS_PER_S * abs(delta_ca2) / 2.0


def _mean_ttft_ns(run: RunMetrics) -> float | None:
    values = run.values["ttft"]
    return None if values is None or len(values) == 0 else float(np.mean(values))


PLAN_SHAPE = Check(
    id="plan_shape",
    name="Plan shape",
    unit="x limit",
    advice="One correct random plan in ten exceeds a limit by chance, none in ten thousand is INVALID: take another "
    "--arrival-seed, and report a process of isorate that does so with several.",
    measure=_plan_shape,
    rule="V5",
    source="Stephens 1974; Lancet; RFC 2330",
)
GAP_SHIFT = Check(
    id="gap_shift",
    name="Gaps sent vs planned",
    unit="x limit",
    advice="The submitter changed the arrival process, and queueing answers to that: give it a core of its own "
    "(--submitter-cores), lower the rate, or use --pacer compiled.",
    measure=_gap_shift,
    rule="V6",
    source="Kingman 1961; vLLM issue 45502",
    bound=Bound.SUBMITTER,
)
