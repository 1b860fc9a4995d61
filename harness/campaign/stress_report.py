"""What a search found, in text and as JSON: the answer first, then every rate with its figures and the knee drawn."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.campaign.search import Outcome
from harness.campaign.stress import RateResult, StressResult, StressSettings, rates_in_order
from harness.report.words import rate_words, safe, time_words

SCHEMA = "isorate.stress/1"
_STYLES = {Outcome.HELD: "green", Outcome.FAILED: "red", Outcome.NO_LOAD: "yellow"}
_MAX_WIDTH, _FIXED = 120, 74


def live_line(result: RateResult) -> str:
    """One line as soon as a rate was tried."""
    runs = "run" if len(result.trial.runs) == 1 else "runs"
    why = f" ({result.why})" if result.why else ""
    return (
        f"{result.rate:>12,.2f}/s  {result.outcome.value}{why}, {len(result.trial.runs)} {runs}, "
        f"TTFT p99 {time_words(result.median('ttft_p99'))}, completed {rate_words(result.median('completed'), '/s')}"
    )


def answer(result: StressResult) -> str:
    """The finding as one sentence."""
    found = result.found
    if not result.tried:
        return f"No rate was tried to its end: {found.stopped}."
    held = f"The engine holds {found.held:,.2f} requests/s" if found.held else "The engine held none of the rates tried"
    fails = "" if math.isinf(found.failed) else f", and not {found.failed:,.2f}"
    limit = result.limit()
    by = "" if limit == "nothing" else f" What limits there: the {limit}."
    return f"{held}{fails}: {found.stopped}.{by}"


def render(result: StressResult, settings: StressSettings, folder: Path, console: Console | None = None) -> None:
    """Print the answer, the table of rates with the knee, and where all of it lies."""
    console = console or Console(file=sys.stdout)
    width = min(console.width, _MAX_WIDTH)
    console.print(Text(answer(result), style="bold"), width=width, highlight=False)
    console.print()
    results = rates_in_order(result.tried)
    if results:
        console.print(_table(results, width, ascii_only=console.options.ascii_only), width=width)
        console.print()
    for result_ in results:
        if result_.why:
            console.print(Text(f"{result_.rate:,.2f}/s: {result_.why}"), width=width, highlight=False)
    console.print(Text.assemble(("Results: ", "bold"), safe(folder)), soft_wrap=True, highlight=False)


def _table(results: Sequence[RateResult], width: int, *, ascii_only: bool) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for name in ("Rate/s", "", "completed", "goodput", "lag p99", "TTFT p50", "TTFT p99", "TPOT p99"):
        table.add_column(name, justify="left" if name == "" else "right", no_wrap=True)
    bar = max(width - _FIXED - 3, 0)
    if bar >= 6:
        table.add_column("TTFT p99, log scale", no_wrap=True, overflow="crop", width=bar)
    tails = [result.median("ttft_p99") for result in results]
    for result, tail in zip(results, tails, strict=True):
        cells: list[str | Text] = [
            f"{result.rate:,.2f}",
            Text(result.outcome.value, style=_STYLES[result.outcome]),
            rate_words(result.median("completed"), ""),
            rate_words(result.median("goodput"), ""),
            time_words(result.median("lag_p99")),
            time_words(result.median("ttft_p50")),
            time_words(tail),
            time_words(result.median("tpot_p99")) if result.median("tpot_p99") is not None else "-",
        ]
        if bar >= 6:
            cells.append(knee_bar(tail, tails, bar, ascii_only=ascii_only))
        table.add_row(*cells)
    return table


def knee_bar(value: float | None, all_values: Sequence[float | None], width: int, *, ascii_only: bool) -> str:
    """A bar for `value` on a log scale from half the smallest of all values to the largest, `width` cells at most."""
    known = [one for one in all_values if one is not None and one > 0]
    if value is None or value <= 0 or not known:
        return ""
    low, high = math.log(min(known) / 2), math.log(max(known))
    cells = round((math.log(value) - low) / (high - low) * width) if high > low else width
    return ("#" if ascii_only else "\u2588") * max(cells, 1)


def stress_json(result: StressResult, settings: StressSettings, command: str) -> dict[str, Any]:
    """stress.json: the answer, how it was searched, and every trial in order. Rates per s, times in ms."""
    found = result.found
    return {
        "schema": SCHEMA,
        "command": command,
        "held_rate": found.held or None,
        "failed_rate": None if math.isinf(found.failed) else found.failed,
        "stopped": found.stopped,
        "limit": result.limit(),
        "tolerance": settings.limits.tolerance,
        "trial_s": settings.trial_s,
        "trials": [_trial_json(one) for one in result.tried],
    }


def _trial_json(result: RateResult) -> dict[str, Any]:
    return {
        "rate": result.rate,
        "outcome": result.outcome.value,
        "why": result.why,
        "limit": result.limit,
        "verdict": result.trial.status,
        "bound_by": result.trial.bound_by,
        "folder": result.trial.folder.name,
        "runs": [asdict(run) for run in result.trial.runs],
    }
