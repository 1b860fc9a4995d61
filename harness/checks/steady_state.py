"""Does the run measure a state, or a change of state? Warm-up within it, its two halves, a backlog that grows."""

from __future__ import annotations

from harness.checks.check import Bound, Check, CheckContext, Reading
from harness.measures.steady import MIN_BATCHES, MIN_HALF

#: Processes whose rate changes as planned: nothing is steady, by intent.
_CHANGING = ("ramp", "steps", "sine", "mmpp", "burst")
_HALF_LIMIT = 5.0
_MOST_TRUNCATED = 50.0


def _why_not(context: CheckContext) -> str | None:
    if context.measured.burst:
        return "a burst has no steady state"
    if context.session.plan.get("trace"):
        return "the rate of a trace changes as recorded"
    process = context.measured.arrivals.process
    return f"the rate of {process} changes as planned" if process in _CHANGING else None


def _truncation(context: CheckContext) -> Reading:
    truncated, reason = context.measured.steady.truncated, _why_not(context)
    if reason is not None:
        return Reading(None, reason)
    if truncated is None:
        return Reading(None, f"MSER-5 needs {5 * MIN_BATCHES} values of TTFT")
    share = 100.0 * truncated
    words = f"MSER-5 finds TTFT's steady state after {share:.1f} % of the run"
    if share >= _MOST_TRUNCATED:
        words = "MSER-5 finds no steady state of TTFT in the first half of the run"
    return Reading(share, words, warn_above=_MOST_TRUNCATED - 1e-9)


def _halves(context: CheckContext) -> Reading:
    steady, reason = context.measured.steady, _why_not(context)
    if reason is not None:
        return Reading(None, reason)
    if steady.shift is None or steady.noise is None:
        return Reading(None, f"a comparison of halves needs {2 * MIN_HALF} values of TTFT")
    shift, noise = 100.0 * steady.shift, 100.0 * steady.noise
    words = f"the median TTFT moves by {shift:+.1f} % between the halves, chance alone by up to {noise:.1f} %"
    return Reading(abs(shift), words, warn_above=max(_HALF_LIMIT, noise))


def _backlog(context: CheckContext) -> Reading:
    growth, reason = context.measured.backlog_growth, _why_not(context)
    if reason is not None or growth is None:
        return Reading(None, reason or "too few requests finished")
    words = f"E2E grows by {1e3 * growth:,.1f} ms a second"
    if 100.0 * growth > (BACKLOG.invalid_above or 0.0):
        words += ": the engine is saturated, and every percentile depends on how long the run lasts"
    return Reading(100.0 * max(growth, 0.0), words)


WARM_UP = Check(
    id="warm_up",
    name="Run before steady state",
    unit="%",
    advice="The run is one long transient: let it last longer (--num-requests, --duration), or warm up more "
    "(--warmup-requests).",
    measure=_truncation,
    rule="V19",
    source="MSER-5 (White 1997)",
    warn_above=_MOST_TRUNCATED - 1e-9,
)
HALVES = Check(
    id="halves",
    name="Median TTFT, both halves",
    unit="%",
    advice="What was measured changed while it was measured: warm up more (--warmup-requests), see what else runs, "
    "or let it last longer.",
    measure=_halves,
    rule="V19",
    source="ours: 5 %, and more than chance",
    warn_above=_HALF_LIMIT,
)
BACKLOG = Check(
    id="backlog",
    name="Growth of the backlog",
    unit="%",
    advice="The engine does not keep up with the load: lower the rate, or look for the highest one that it holds with "
    "`isorate stress`.",
    measure=_backlog,
    rule="V19",
    source="MLPerf LoadGen's scheduled and completed rates: 99 % and 95 %, as growth 1 / 0.99 - 1 and 1 / 0.95 - 1",
    warn_above=100.0 * (1 / 0.99 - 1),
    invalid_above=100.0 * (1 / 0.95 - 1),
    bound=Bound.ENGINE,
)
