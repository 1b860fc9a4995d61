"""The verdict: all checks on all measured runs, and which part of the set-up limits what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.checks.check import Bound, Check, CheckContext, CheckResult, Grade, Reading
from harness.checks.limits import Limits

_BUSY = 0.95  # an engine busy for this share of the run is what limits it


@dataclass(frozen=True, slots=True)
class Verdict:
    """status: VALID | SUSPECT | INVALID. bound_by: what limits the figures, and why. results: every check, in order.

    limits: those that the user changed.
    """

    status: str
    bound_by: Bound
    reasons: tuple[str, ...]
    results: tuple[CheckResult, ...]
    name_run: bool
    limits: Limits

    @property
    def saturated(self) -> bool:
        """Whether the backlog grew so much that percentiles depend on how long the run lasted."""
        return any(result.check.id == "backlog" and result.reading.grade is Grade.INVALID for result in self.results)

    def to_json(self) -> dict[str, Any]:
        """The `verdict` entry of summary.json."""
        return {
            "status": self.status,
            "bound_by": self.bound_by.value,
            "bound_by_reasons": list(self.reasons),
            "saturated": self.saturated,
            "limits": self.limits.to_json(),
            "checks": [result.to_json(name_run=self.name_run) for result in self.results],
        }


def judge(checks: Sequence[Check], context: CheckContext, limits: Limits | None = None) -> Verdict:
    """Run every check; of several measured runs the worst counts, and is named."""
    limits = limits or Limits()
    results = tuple(_worst(check, context, limits) for check in checks)
    grade = max((result.reading.grade for result in results), default=Grade.PASS)
    status = {Grade.INVALID: "INVALID", Grade.WARN: "SUSPECT"}.get(grade, "VALID")
    bound, reasons = _bound(results, grade, context)
    return Verdict(status, bound, reasons, results, len(context.runs) > 1, limits)


def _worst(check: Check, context: CheckContext, limits: Limits) -> CheckResult:
    def read(of: CheckContext) -> Reading:
        return limits.apply(check.id, check.read(of))

    if not check.per_run:
        return CheckResult(check, read(context), None)
    if not context.runs:
        return CheckResult(check, Reading(None, "no measured run was started"), None)
    found = [CheckResult(check, read(replace(context, run=run)), run.record.index) for run in context.runs]
    return max(found, key=_gravity)


def _gravity(result: CheckResult) -> tuple[int, float]:
    """Grade first; then how far the value stands towards its limit."""
    reading = result.reading
    if reading.value is None:
        return reading.grade, 0.0
    return reading.grade, reading.value / reading.threshold if reading.threshold else reading.value


def _bound(results: Sequence[CheckResult], grade: Grade, context: CheckContext) -> tuple[Bound, tuple[str, ...]]:
    """What the gravest checks point at, and every check that did not pass and points there too."""
    if grade >= Grade.WARN:
        blamed = {result.check.bound for result in results if result.reading.grade is grade}
        for bound in (Bound.HOST, Bound.SUBMITTER, Bound.ENGINE):
            if bound in blamed:
                failed = [result for result in results if result.reading.grade >= Grade.WARN]
                return bound, tuple(result.reading.words for result in failed if result.check.bound is bound)
    busy = max((run.busy for run in context.runs if run.busy is not None), default=0.0)
    if busy >= _BUSY:
        return Bound.ENGINE, (f"the engine was busy for {100 * busy:.0f} % of the run",)
    return Bound.NOTHING, ()
