"""The experiment in text and as JSON: the rule of its scale, eight cells with intervals, the conclusion."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.campaign.experiment import (
    CELLS,
    FEWEST_REQUESTS,
    PUBLISHED_REQUESTS,
    Cell,
    CellSession,
    Figures,
    Scale,
)
from harness.campaign.experiment_findings import Finding, estimate, lag_effects, pretok_effects, sentences
from harness.campaign.order_interval import Estimate
from harness.report.words import rate_words, safe, time_words

SCHEMA = "isorate.experiment.schedule/1"
_MAX_WIDTH = 120
#: A unit, from how many ms on it is used, and how many ms it has.
_UNITS = ((" s", 1e4, 1e3), (" ms", 1.0, 1.0), (" us", 0.0, 1e-3))


class Column(NamedTuple):
    """A figure and its heading."""

    heading: str
    figure: str


LOAD = (
    Column("arrivals/s", "arrival_rate"),
    Column("submit wall", "submit_wall"),
    Column("lag p50", "submit_lag_p50"),
    Column("lag p99", "submit_lag_p99"),
    Column("add_request", "add_request_p50"),
)
LATENCY = (
    Column("queue wait", "queue_wait_p50"),
    Column("TTFT p50", "ttft_p50"),
    Column("TTFT p99", "ttft_p99"),
    Column("from submit", "ttft_from_submit_p50"),
    Column("its p99", "ttft_from_submit_p99"),
)


def scale_lines(scale: Scale) -> list[str]:
    """The rule by which the load was fitted to this host, and what it gave."""
    how = (
        f"{scale.requests} requests a run, as asked."
        if scale.asked
        else f"as many requests as this host serves in {scale.budget_s:g} s, from {FEWEST_REQUESTS} to "
        f"{PUBLISHED_REQUESTS}: {scale.requests} a run."
    )
    sent_ms = 1e3 * (scale.requests - 1) / scale.interval_rate
    return [
        f"The published load: {PUBLISHED_REQUESTS} requests of 259 tokens, 1 new token each, one every 1 ms, batch 16.",
        "Scaled to this host by the number of requests alone; prompts and interval stay as published unless flags say "
        "otherwise, for what is shown is the time of tokenizing against the interval.",
        f"This host serves {scale.service_rate:,.2f} requests/s: {how}",
        f"They are due within {time_words(sent_ms)}, at {scale.utilization:,.1f} times what the engine serves "
        "(1 is saturated).",
    ]


def live_line(session: CellSession) -> str:
    """One line as soon as a session has ended."""
    run = session.runs[-1] if session.runs else None
    said = (
        "no run was measured"
        if run is None
        else f"{rate_words(run.arrival_rate, '/s')}, lag p99 {time_words(run.submit_lag_p99)}, "
        f"add_request p50 {time_words(run.add_request_p50)}, TTFT p50 {time_words(run.ttft_p50)}"
    )
    return f"round {session.round + 1} {session.cell.name}: {said}"


def render(sessions: Sequence[CellSession], scale: Scale, folder: Path, console: Console | None = None) -> None:
    """Print rule, tables, conclusion and where all of it lies."""
    console = console or Console(file=sys.stdout)
    width = min(console.width, _MAX_WIDTH)

    def say(line: str, style: str = "") -> None:
        console.print(Text(line, style=style), width=width, highlight=False)

    for line in scale_lines(scale):
        say(line)
    rounds = len({one.round for one in sessions})
    tokens = sorted({one.prompt_tokens for one in sessions if one.prompt_tokens is not None})
    say(
        f"Below: medians over {rounds} round{'' if rounds == 1 else 's'} of {len(CELLS)} sessions; beneath each the "
        f"interval of order statistics. Prompt tokens a run: {' and '.join(f'{n:,}' for n in tokens) or 'not counted'}."
    )
    console.print()
    for columns in (LOAD, LATENCY):
        console.print(_table(sessions, columns), width=width)
        console.print()
    say("Conclusion", "bold")
    for line in sentences(sessions):
        say(f"- {line}")
    console.print(Text.assemble(("Results: ", "bold"), safe(folder)), soft_wrap=True, highlight=False)


def _table(sessions: Sequence[CellSession], columns: Sequence[Column]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("cell", no_wrap=True)
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for cell in CELLS:
        label = f"{cell.topology} {cell.schedule}\npretok {cell.pretok}"
        table.add_row(label, *(_cell_words(estimate(sessions, cell, column.figure), column) for column in columns))
    return table


def _cell_words(value: Estimate | None, column: Column) -> str:
    if value is None:
        return "-"
    unit, per_unit = "", 1.0
    if column.figure != "arrival_rate":
        unit, per_unit = next((unit, size) for unit, least, size in _UNITS if abs(value.median) >= least)
    median, low, high = (_figure(number / per_unit) for number in (value.median, value.low, value.high))
    return f"{median}{unit}\n{low}-{high}"


def _figure(value: float) -> str:
    """Four significant digits, and all those before the point; below 1 three places."""
    if abs(value) >= 999.95:  # which has four digits once it is rounded
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1 else f"{value:.3f}"


def experiment_json(
    sessions: Sequence[CellSession], scale: Scale, words: Sequence[str], command: str, rounds: int
) -> dict[str, Any]:
    """experiment.json: what was run, every session's figures, the cells' estimates and the findings."""
    return {
        "schema": SCHEMA,
        "command": command,
        "words": list(words),
        "rounds": rounds,
        "scale": {**asdict(scale), "utilization": scale.utilization, "rule": scale_lines(scale)},
        "cells": [
            {**cell._asdict(), **{name: _estimate(estimate(sessions, cell, name)) for name in Figures._fields}}
            for cell in CELLS
        ],
        "findings": [_finding(one) for one in (*pretok_effects(sessions), *lag_effects(sessions))],
        "conclusion": sentences(sessions),
        "sessions": [
            {**asdict(one), "cell": one.cell._asdict(), "runs": [run._asdict() for run in one.runs]} for one in sessions
        ],
    }


def _estimate(value: Estimate | None) -> dict[str, Any] | None:
    return None if value is None else value._asdict()


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "figure": finding.figure,
        "of": finding.of.name,
        "to": finding.to.name,
        "ratio": _estimate(finding.ratio),
        "excludes_one": finding.excludes_one,
        "change": finding.change.value,
    }


def sessions_of(saved: dict[str, Any]) -> tuple[Scale, list[CellSession]]:
    """Scale and sessions of an experiment.json. Raises KeyError, TypeError, ValueError for something else."""
    fields = ("requests", "service_rate", "interval_rate", "budget_s", "asked")
    scale = Scale(**{name: saved["scale"][name] for name in fields})
    if not (scale.requests >= 1 and scale.service_rate > 0 and scale.interval_rate > 0):
        raise ValueError("its scale is none")
    sessions = [
        CellSession(
            Cell(**one["cell"]), one["round"], one["folder"], one["verdict"], one["prompt_tokens"],
            tuple(Figures(**run) for run in one["runs"]),
        )
        for one in saved["sessions"]
    ]  # fmt: skip
    if any(one.cell not in CELLS for one in sessions):
        raise ValueError("a session is of no cell")
    return scale, sessions
