"""Did repeated runs get the same load? Only then is a difference between them the engine's."""

from __future__ import annotations

from collections.abc import Sequence

from harness.checks.check import Check, CheckContext, Reading

_CA2_FLOOR = 0.1  # 1 % of it is the 0.001 that rule V6 allows a constant rate


def _repeat_load(context: CheckContext) -> Reading:
    runs = [run for run in context.runs if run.counts["completed"]]
    if len(runs) < 2:
        return Reading(None, "there are no two runs to compare")
    tokens = _half_range([run.tokens["completion"] / run.counts["completed"] for run in runs])
    found = [("output tokens a request", tokens)]
    if not context.reacts_in(runs[0]):
        found.append(("the offered rate", _half_range([run.rate["offered"] or 0.0 for run in runs])))
        squares = [run.arrivals.shift.actual_ca2 or 0.0 for run in runs]
        middle = max((max(squares) + min(squares)) / 2.0, _CA2_FLOOR)
        found.append(("the gaps' squared variation", 100.0 * (max(squares) - min(squares)) / 2.0 / middle))
    name, value = max(found, key=lambda pair: pair[1])
    return Reading(value, f"{len(runs)} runs of one plan differ most in {name}: by {value:.3f} % from the middle")


def _half_range(values: Sequence[float]) -> float:
    """How far the extremes are from their middle, %."""
    middle = (max(values) + min(values)) / 2.0
    return 100.0 * (max(values) - min(values)) / 2.0 / middle if middle else 0.0


REPEAT_LOAD = Check(
    id="repeat_load",
    name="Load of repeated runs",
    unit="%",
    advice="The runs did not get one load, so they cannot be compared: see the checks of the submitter, and of "
    "requests that did not complete.",
    measure=_repeat_load,
    rule="V20",
    source="MLPerf TEST09 (10 % of output tokens); 1 % is ours",
    warn_above=1.0,
    invalid_above=10.0,
    per_run=False,
)
