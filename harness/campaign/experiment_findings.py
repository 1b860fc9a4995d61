"""What the experiment shows, computed from its figures: each comparison is of sessions of the same round."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from harness.campaign.experiment import Cell, CellSession
from harness.campaign.order_interval import Estimate, median_interval

#: A ratio nearer to 1 than this is no change of the load: the verdict allows a rate to be so far off as well.
MARGIN = 0.02
#: Less than this and an interval of so few rounds decides nothing (five rounds give 0.94).
LEAST_CONFIDENCE = 0.9


class Change(Enum):
    """Whether a ratio differs from 1."""

    CHANGES = "changes"
    STAYS = "stays put"
    UNDECIDED = "undecided"


class Finding(NamedTuple):
    """A ratio of two cells: what of them, the cells (`of` over `to`), and the rounds' estimate (None: not measured)."""

    figure: str
    of: Cell
    to: Cell
    ratio: Estimate | None

    @property
    def change(self) -> Change:
        """Changed: the interval excludes 1, the median lies beyond the margin. Stays: the interval is within it."""
        ratio = self.ratio
        if ratio is None or ratio.confidence < LEAST_CONFIDENCE:
            return Change.UNDECIDED
        if self.excludes_one and abs(ratio.median - 1) > MARGIN:
            return Change.CHANGES
        if max(abs(ratio.low - 1), abs(ratio.high - 1)) <= MARGIN:
            return Change.STAYS
        return Change.UNDECIDED

    @property
    def excludes_one(self) -> bool:
        return self.ratio is not None and not self.ratio.low <= 1 <= self.ratio.high


def session_value(session: CellSession, figure: str) -> float | None:
    """The (lower) median of a figure over a session's runs."""
    values = sorted(value for run in session.runs if (value := getattr(run, figure)) is not None)
    return values[(len(values) - 1) // 2] if values else None


def estimate(sessions: Sequence[CellSession], cell: Cell, figure: str) -> Estimate | None:
    """A cell's figure over its rounds."""
    values = [session_value(one, figure) for one in sessions if one.cell == cell]
    return median_interval([value for value in values if value is not None])


def compare(sessions: Sequence[CellSession], figure: str, of: Cell, to: Cell) -> Finding:
    """The ratio of a figure, paired by round: what drifts over time is in both."""
    by_round = {(one.round, one.cell): session_value(one, figure) for one in sessions}
    ratios = [
        above / below
        for (number, cell), above in by_round.items()
        if cell == of and above is not None and (below := by_round.get((number, to)))
    ]
    return Finding(figure, of, to, median_interval(ratios))


def pretok_effects(sessions: Sequence[CellSession]) -> list[Finding]:
    """What tokenizing beforehand does to the arrival rate, in each topology and by each clock."""
    return [
        compare(sessions, "arrival_rate", Cell(topology, schedule, "on"), Cell(topology, schedule, "off"))
        for topology in ("inproc", "separate")
        for schedule in ("relative", "absolute")
    ]


def lag_effects(sessions: Sequence[CellSession]) -> list[Finding]:
    """How much later one process sends than two, by the absolute clock."""
    return [
        compare(sessions, "submit_lag_p99", Cell("inproc", "absolute", pretok), Cell("separate", "absolute", pretok))
        for pretok in ("off", "on")
    ]


_WHERE = {"inproc": "In one process", "separate": "With a submitter process"}


def sentences(sessions: Sequence[CellSession]) -> list[str]:
    """The conclusion in words, each from a finding."""
    effects = pretok_effects(sessions)
    return [*map(_rate_sentence, effects), _summing_up(effects), *map(_lag_sentence, lag_effects(sessions))]


def _rate_sentence(finding: Finding) -> str:
    where = f"{_WHERE[finding.of.topology]}, {finding.of.schedule} clock:"
    ratio = finding.ratio
    if ratio is None:
        return f"{where} not measured."
    change = {
        Change.CHANGES: f"pretok {'raises' if ratio.median > 1 else 'lowers'} the arrival rate",
        Change.STAYS: "pretok leaves the arrival rate as it is",
        Change.UNDECIDED: "whether pretok changes the arrival rate is not decided",
    }[finding.change]
    return f"{where} {change} ({_percent(ratio.median)}, {_span(ratio)})."


def _summing_up(effects: Sequence[Finding]) -> str:
    if any(one.change is Change.UNDECIDED for one in effects):
        return "So far not all four are decided: more rounds (--resume DIR --rounds N) narrow the intervals."
    moved = [f"{one.of.topology} + {one.of.schedule}" for one in effects if one.change is Change.CHANGES]
    if not moved:
        return "So the load was the same in all cells: what differs between them is the engine's doing."
    return (
        f"So under {' and '.join(moved)} tokenizing beforehand changes the load itself: latencies there are of another "
        "load, and say nothing of the engine. Elsewhere the load stays put."
    )


def _lag_sentence(finding: Finding) -> str:
    ratio = finding.ratio
    if ratio is None:
        return f"Submit lag with pretok {finding.of.pretok}: not measured in both topologies."
    return (
        f"Submit lag p99 in one process over that with a submitter process (absolute, pretok {finding.of.pretok}): "
        f"{ratio.median:,.1f} x ({ratio.low:,.1f} to {ratio.high:,.1f} x, {_confidence(ratio)})."
    )


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.2f} %"


def _span(ratio: Estimate) -> str:
    return f"{_percent(ratio.low)} to {_percent(ratio.high)}, {_confidence(ratio)}"


def _confidence(ratio: Estimate) -> str:
    rounds = f"{ratio.rounds} round{'' if ratio.rounds == 1 else 's'}"
    return f"{100 * ratio.confidence:.0f} % confidence, {rounds}"
