"""`report DIR` and `recover DIR`: what the command line does with a result folder that is there already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.report.reading import read_summary


def report(folder: Path, *, all_checks: bool = False) -> int:
    """Print the terminal summary of a result folder; exit code 0 whatever its verdict was. Raises ConfigError."""
    summary = read_summary(folder / "summary.json")
    _render(summary, folder, all_checks)
    return 0


def recover(folder: Path, *, all_checks: bool = False) -> int:
    """Rebuild and print the report of a dead run from the collector in its folder; exit code 0 once that is done.

    Raises ConfigError where the folder holds no such run, CollectorError or RunError for damaged files.
    """
    from harness.report.recover import recover as rebuild

    outcome = rebuild(folder)
    _render(dict(outcome.summary), folder, all_checks)
    return 0


def _render(summary: dict[str, Any], folder: Path, all_checks: bool) -> None:
    from rich.console import Console

    from harness.report.terminal import render_terminal

    render_terminal(summary, Console(), folder, all_checks=all_checks)
