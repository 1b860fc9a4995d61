"""A line of the self-test: what was expected, what was measured, and whether that will do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """part: the word of --only. expected, measured: as text with units. passed: None for a figure that is told and not
    judged. value, limit: the numbers behind the text, for --json.
    """

    part: str
    name: str
    expected: str
    measured: str
    passed: bool | None
    value: float | None = None
    limit: float | None = None

    @property
    def word(self) -> str:
        return "" if self.passed is None else "PASS" if self.passed else "FAIL"

    def to_json(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "name": self.name,
            "expected": self.expected,
            "measured": self.measured,
            "status": self.word or "INFO",
            "value": self.value,
            "limit": self.limit,
        }


def at_most(part: str, name: str, value: float | None, limit: float, unit: str) -> Line:
    """Passes where the value is there and within the limit."""
    measured = "not measured" if value is None else f"{value:,.4g} {unit}"
    passed = value is not None and value <= limit
    return Line(part, name, f"<= {limit:,.4g} {unit}", measured, passed, value, limit)


def told(part: str, name: str, text: str, value: float | None = None) -> Line:
    """A figure without a judgement."""
    return Line(part, name, "", text, None, value)
