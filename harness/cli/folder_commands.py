"""`report DIR` and `recover DIR`: what the command line does with a result folder that is there already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.common.errors import ConfigError


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


def read_summary(path: Path) -> dict[str, Any]:
    """The parsed summary.json. Raises ConfigError naming the file where it is none, or of another version."""
    from harness.report.summary import SCHEMA

    try:
        summary = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: not JSON, or cut short") from None
    schema = summary.get("schema") if isinstance(summary, dict) else None
    if schema != SCHEMA:
        raise ConfigError(f"{path}: its schema is {schema!r}, this isorate reads {SCHEMA!r}")
    return dict(summary)


def _render(summary: dict[str, Any], folder: Path, all_checks: bool) -> None:
    from rich.console import Console

    from harness.report.terminal import render_terminal

    render_terminal(summary, Console(), folder, all_checks=all_checks)
