"""The terminal summary, printed from summary.json's content alone. Text is never parsed as markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.report.figures import figures_table
from harness.report.header_lines import ended_line, host_lines, load_lines, setup_lines
from harness.report.ledger_bar import ledger_table
from harness.report.timeline_chart import timeline_lines
from harness.report.words import number, rate_words, safe, time_words

_STYLES = {"VALID": "bold green", "SUSPECT": "bold yellow", "INVALID": "bold red", "PASS": "green", "WARN": "yellow"}
_MAX_WIDTH = 120
_STDERR_LINES = 10


def render_terminal(summary: Mapping[str, Any], console: Console, folder: Path | None = None) -> None:
    """Print the summary. folder: where the report is now, if not where it was written."""
    if console.is_terminal:
        _render(summary, console, folder)
        return
    with console.capture() as capture:
        _render(summary, console, folder)
    for line in capture.get().splitlines():  # a file wants no padding to the screen's edge
        console.out(line.rstrip(), highlight=False)


def _render(summary: Mapping[str, Any], console: Console, folder: Path | None) -> None:
    width = min(console.width, _MAX_WIDTH)
    ascii_only = console.options.ascii_only
    measured = [run for run in summary["runs"] if not run["warmup"]]
    _heading(console, f"isorate {safe(summary['run_id'])}", width, ascii_only)
    _print(console, _grid([*setup_lines(summary), *host_lines(summary)], ascii_only), width)
    if measured:
        run = _median_run(measured)
        if len(measured) > 1:
            _print(console, _runs_table(measured), width)
            console.print(Text(f"Below: run {run['run']}, the one whose median TTFT is the median."), highlight=False)
        _run(summary, run, console, width, ascii_only)
    _verdict(summary, console, width, ascii_only)
    _end(summary, console, folder, ascii_only)


def _run(summary: Mapping[str, Any], run: Mapping[str, Any], console: Console, width: int, ascii_only: bool) -> None:
    _print(console, _grid(load_lines(summary, run), ascii_only), width)
    relative = summary["plan"]["schedule"] == "relative"
    pretok = bool(summary["plan"].get("pretokenized"))
    _print(console, figures_table(run, width, pretok=pretok, relative=relative), width)
    if run["ledger"]["mean"] is not None:
        _print(console, ledger_table(run["ledger"], width, ascii_only=ascii_only), width)
    charts = list(timeline_lines(run, summary["engine"], width, ascii_only=ascii_only))
    if charts:
        _print(console, _grid(charts, ascii_only), width)


def _verdict(summary: Mapping[str, Any], console: Console, width: int, ascii_only: bool) -> None:
    verdict = summary["verdict"]
    status = (verdict["status"], _STYLES.get(verdict["status"], ""))
    line = Text.assemble(("Verdict: ", "bold"), status, f"   bound by: {verdict['bound_by']}")
    console.print(line, highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("", min_width=7, no_wrap=True)
    table.add_column("Check", min_width=27, no_wrap=True)
    table.add_column("value", justify="right", min_width=9, no_wrap=True)
    table.add_column("limit", justify="right", min_width=9, no_wrap=True)
    table.add_column("", no_wrap=True)
    for check in verdict["checks"]:
        grade = Text(check["status"], style=_STYLES.get(check["status"], "dim"))
        table.add_row(grade, check["name"], number(check["value"]), number(check["threshold"]), check["unit"])
    console.print(table, width=width)
    failed = [check for check in verdict["checks"] if check["status"] in ("WARN", "INVALID")]
    if failed:
        console.print()
    for check in failed:
        _print_hanging(console, check, width, ascii_only)
    console.print()


def _print_hanging(console: Console, check: Mapping[str, Any], width: int, ascii_only: bool) -> None:
    """A check that did not pass, explained beneath the table with a hanging indent."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=7, no_wrap=True)
    grid.add_column(overflow="fold")
    words = Text(safe(f"{check['name']}: {check['explanation']}", ascii_only=ascii_only))
    grid.add_row(Text(check["status"], style=_STYLES.get(check["status"], "")), words)
    console.print(grid, width=width)


def _end(summary: Mapping[str, Any], console: Console, folder: Path | None, ascii_only: bool) -> None:
    ended = ended_line(summary)
    if ended is not None:
        console.print(Text(safe(f"Ended early: {ended}", ascii_only=ascii_only), style="bold red"), soft_wrap=True)
        for name, tail in summary.get("stderr_tails", {}).items():
            lines = str(tail).splitlines()[-_STDERR_LINES:]
            for line in (f"Last words of the {name}:", *(f"  {line}" for line in lines)) if lines else ():
                console.print(Text(safe(line, ascii_only=ascii_only)), soft_wrap=True)
    if summary["not_started"]:
        runs = ", ".join(map(str, summary["not_started"]))
        console.print(Text(f"Never started: run {runs}"), highlight=False)
    for label, text in (("Repeat", summary["command"]), ("Results", folder or summary["folder"])):
        shown = Text.assemble((f"{label}: ", "bold"), safe(text, ascii_only=ascii_only))
        console.print(shown, soft_wrap=True, highlight=False)


def _median_run(runs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The run whose TTFT p50 is the (lower) median; runs without one come last."""
    ranked = sorted(runs, key=lambda run: (not run["metrics"]["ttft"]["count"], run["metrics"]["ttft"]["p50"] or 0.0))
    with_ttft = [run for run in ranked if run["metrics"]["ttft"]["count"]] or ranked
    return with_ttft[(len(with_ttft) - 1) // 2]


def _runs_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in ("Run", "completed", "offered", "submit lag p99", "TTFT p50", "TTFT p99"):
        table.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        metrics = run["metrics"]
        table.add_row(
            str(run["run"]),
            number(run["counts"]["completed"]),
            rate_words(run["rate"]["offered"], "/s"),
            time_words(metrics["submit_lag"]["p99"]),
            time_words(metrics["ttft"]["p50"]),
            time_words(metrics["ttft"]["p99"]),
        )
    return table


def _grid(lines: Iterable[tuple[str, str]], ascii_only: bool) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=21, no_wrap=True)
    grid.add_column(overflow="fold")
    for label, words in lines:
        grid.add_row(Text(label, style="bold"), Text(safe(words, ascii_only=ascii_only)))
    return grid


def _heading(console: Console, title: str, width: int, ascii_only: bool) -> None:
    rule = "-" if ascii_only else "\u2500"
    console.print(Text(f"{rule * 2} {title} ".ljust(width, rule), style="bold"), overflow="crop", no_wrap=True)


def _print(console: Console, table: Table, width: int) -> None:
    console.print(table, width=width, highlight=False)
    console.print()
