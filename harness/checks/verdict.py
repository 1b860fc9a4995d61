"""The verdict: all checks on all measured runs, and which part of the set-up limits what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.checks.check import Bound, Check, CheckContext, CheckResult, Grade, Reading

_SATURATED = 0.95  # an engine busy for this share of the run is what limits it


@dataclass(frozen=True, slots=True)
class Verdict:
    """status: VALID | SUSPECT | INVALID. bound_by: what limits the figures. results: every check, in order."""

    status: str
    bound_by: Bound
    results: tuple[CheckResult, ...]
    name_run: bool

    def to_json(self) -> dict[str, Any]:
        """The `verdict` entry of summary.json."""
        return {
            "status": self.status,
            "bound_by": self.bound_by.value,
            "checks": [result.to_json(name_run=self.name_run) for result in self.results],
        }


def judge(checks: Sequence[Check], context: CheckContext) -> Verdict:
    """Run every check; of several measured runs the worst counts, and is named."""
    results = tuple(_worst(check, context) for check in checks)
    grade = max((result.reading.grade for result in results), default=Grade.PASS)
    status = {Grade.INVALID: "INVALID", Grade.WARN: "SUSPECT"}.get(grade, "VALID")
    return Verdict(status, _bound(results, grade, context), results, name_run=len(context.runs) > 1)


def _worst(check: Check, context: CheckContext) -> CheckResult:
    if not check.per_run:
        return CheckResult(check, check.read(context), None)
    if not context.runs:
        return CheckResult(check, Reading(None, "no measured run was started"), None)
    found = [CheckResult(check, check.read(replace(context, run=run)), run.record.index) for run in context.runs]
    return max(found, key=_gravity)


def _gravity(result: CheckResult) -> tuple[int, float]:
    """Grade first; then how far the value stands towards its limit."""
    reading = result.reading
    if reading.value is None:
        return reading.grade, 0.0
    return reading.grade, reading.value / reading.threshold if reading.threshold else reading.value


def _bound(results: Sequence[CheckResult], grade: Grade, context: CheckContext) -> Bound:
    if grade >= Grade.WARN:
        blamed = {result.check.bound for result in results if result.reading.grade is grade}
        for bound in (Bound.HOST, Bound.SUBMITTER, Bound.ENGINE):
            if bound in blamed:
                return bound
    busy = [run.busy for run in context.runs if run.busy is not None]
    return Bound.ENGINE if busy and max(busy) >= _SATURATED else Bound.NOTHING
