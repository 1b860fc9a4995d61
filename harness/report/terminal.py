"""The terminal summary, printed from summary.json's content alone. Text is never parsed as markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.report.figures import figures_table, is_supported
from harness.report.header_lines import ended_line, host_lines, load_lines, setup_lines
from harness.report.ledger_bar import ledger_table
from harness.report.timeline_chart import timeline_lines
from harness.report.verdict_lines import print_verdict
from harness.report.words import number, rate_words, safe, time_words

_MAX_WIDTH = 120
_STDERR_LINES = 10
_RUN_COLUMNS = (("submit_lag", "p99"), ("ttft", "p50"), ("ttft", "p99"))


def render_terminal(
    summary: Mapping[str, Any], console: Console, folder: Path | None = None, *, all_checks: bool = False
) -> None:
    """Print the summary. folder: where the report is now, if not where it was written. all_checks: the passed ones too.
    """
    if console.is_terminal:
        _render(summary, console, folder, all_checks)
        return
    with console.capture() as capture:
        _render(summary, console, folder, all_checks)
    for line in capture.get().splitlines():  # a file wants no padding to the screen's edge
        console.out(line.rstrip(), highlight=False)


def _render(summary: Mapping[str, Any], console: Console, folder: Path | None, all_checks: bool) -> None:
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
    print_verdict(summary, console, width, ascii_only=ascii_only, all_checks=all_checks)
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
            *(_supported(metrics[name], percentile) for name, percentile in _RUN_COLUMNS),
        )
    return table


def _supported(metric: Mapping[str, Any], percentile: str) -> str:
    return time_words(metric[percentile]) if is_supported(metric, percentile) else "n/a"


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
