"""What a check is: one small declared thing that turns a run into a value, a limit and a sentence of what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Any

from harness.measures.ledger import Audit
from harness.measures.metrics import RunMetrics
from harness.report.session_info import SessionInfo


class Grade(IntEnum):
    """Outcome of one check, in order of gravity."""

    NOT_APPLICABLE = 0
    PASS = 1
    WARN = 2
    INVALID = 3

    @property
    def word(self) -> str:
        return "N/A" if self is Grade.NOT_APPLICABLE else self.name


class Bound(Enum):
    """Which part of the set-up limits what was measured; earlier members explain later ones."""

    HOST = "host"
    SUBMITTER = "submitter"
    ENGINE = "engine"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What a check may look at: one measured run, all of them, and the session.

    `run` is None for checks of the whole session. runs: the measured ones. counters: the collector's control words.
    audit: of all runs, warm-up runs too. ended: the word of the session's end.
    """

    session: SessionInfo
    counters: Mapping[str, int]
    runs: tuple[RunMetrics, ...]
    audit: Audit
    ended: str
    run: RunMetrics | None = None
    warmups: tuple[RunMetrics, ...] = ()

    @property
    def reacts(self) -> bool:
        """Whether ends of requests decide when others leave: a cap or a closed loop."""
        return self.reacts_in(self.measured)

    def reacts_in(self, run: RunMetrics) -> bool:
        """The same of any run."""
        return run.record.gated or self.session.plan.get("max_concurrency") is not None

    @property
    def measured(self) -> RunMetrics:
        """The run of a check whose scope is a run."""
        if self.run is None:
            raise ValueError("this check looks at one run, and got the session")
        return self.run


@dataclass(frozen=True, slots=True)
class Reading:
    """A check's value in its unit, the limits above which it warns or is INVALID, and the value in words."""

    value: float | None
    words: str
    warn_above: float | None = None
    invalid_above: float | None = None

    @property
    def grade(self) -> Grade:
        """Which limits the value exceeds; a value of None does not apply."""
        if self.value is None:
            return Grade.NOT_APPLICABLE
        if self.invalid_above is not None and self.value > self.invalid_above:
            return Grade.INVALID
        if self.warn_above is not None and self.value > self.warn_above:
            return Grade.WARN
        return Grade.PASS

    @property
    def threshold(self) -> float | None:
        """The limit that the value is judged against: the one it broke, else the first one it would break."""
        limits = [limit for limit in (self.warn_above, self.invalid_above) if limit is not None]
        if self.grade is Grade.INVALID:
            return self.invalid_above
        return min(limits, default=None)


@dataclass(frozen=True, slots=True)
class Check:
    """A declared check. `advice` is one sentence of what to do when it does not pass; `bound` what a breach points at.

    rule: its number in docs/trust.md, "own" for one that is not among those. source: where the limits come from.
    warn_above, invalid_above: limits that do not depend on the run; a reading with limits of its own brings them.
    per_run: measured on every measured run, the worst of which counts; else once on the session.
    """

    id: str
    name: str
    unit: str
    advice: str
    measure: Callable[[CheckContext], Reading]
    rule: str
    source: str
    warn_above: float | None = None
    invalid_above: float | None = None
    bound: Bound = Bound.NOTHING
    per_run: bool = True

    def read(self, context: CheckContext) -> Reading:
        """Measure, with the declared limits where the reading has none."""
        reading = self.measure(context)
        if reading.warn_above is not None or reading.invalid_above is not None:
            return reading
        return replace(reading, warn_above=self.warn_above, invalid_above=self.invalid_above)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check with what it found. `run` is the worst run's index, None for a check of the session."""

    check: Check
    reading: Reading
    run: int | None

    def to_json(self, *, name_run: bool) -> dict[str, Any]:
        """The entry of `verdict.checks`; `name_run` says which of several runs the value is of."""
        grade = self.reading.grade
        words = self.reading.words
        if name_run and self.run is not None:
            words = f"run {self.run}: {words}"
        return {
            "id": self.check.id,
            "rule": self.check.rule,
            "name": self.check.name,
            "value": self.reading.value,
            "unit": self.check.unit,
            "threshold": self.reading.threshold,
            "warn_above": self.reading.warn_above,
            "invalid_above": self.reading.invalid_above,
            "status": grade.word,
            "run": self.run,
            "source": self.check.source,
            "explanation": f"{words}. {self.check.advice}" if grade >= Grade.WARN else f"{words}.",
        }
