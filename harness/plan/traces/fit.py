"""Rows beyond the engine's context, and empty ones: kept, scaled, clipped or skipped, and each counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

LengthPolicy = Literal["keep", "scale", "clip", "skip"]
EmptyPolicy = Literal["keep", "skip"]


class Lengths(NamedTuple):
    """Tokens of a row's prompt and of its output."""

    input: int
    output: int


@dataclass(slots=True)
class FitCounts:
    """What the policies met. no_prompt and no_output count rows with 0 tokens of either; a row may be in both."""

    no_prompt: int = 0
    no_output: int = 0
    empty_skipped: int = 0
    beyond_context: int = 0


@dataclass(slots=True)
class Fit:
    """Decides on rows one by one. context: most tokens (prompt + output) of a row; None: not known, nothing exceeds it.

    Owned by: the thread that builds the plan.
    """

    context: int | None
    lengths: LengthPolicy
    empty: EmptyPolicy
    counts: FitCounts

    def apply(self, row: Lengths) -> Lengths | None:
        """What is sent for a row; None: it is left out."""
        self.counts.no_prompt += row.input == 0
        self.counts.no_output += row.output == 0
        if self.empty == "skip" and 0 in row:
            self.counts.empty_skipped += 1
            return None
        if self.context is None or sum(row) <= self.context:
            return row
        self.counts.beyond_context += 1
        if self.lengths == "skip":
            return None
        if self.lengths == "scale":
            return scaled(row, self.context)
        return clipped(row, self.context) if self.lengths == "clip" else row


def scaled(row: Lengths, context: int) -> Lengths:
    """Both lengths by the one factor that fills the context exactly; what was there keeps at least one token."""
    output = row.output * context // sum(row)
    output = min(max(output, min(row.output, 1)), context - min(row.input, 1))
    return Lengths(context - output, output)


def clipped(row: Lengths, context: int) -> Lengths:
    """The longer length is cut until both fit; the shorter one keeps what it has, up to half the context."""
    half = context // 2
    if row.output <= half:
        return Lengths(context - row.output, row.output)
    if row.input <= context - half:
        return Lengths(row.input, context - row.input)
    return Lengths(context - half, half)
