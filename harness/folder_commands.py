"""`report DIR` and `recover DIR`: what the command line does with a result folder that is there already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.common.errors import ConfigError


def report(folder: Path) -> int:
    """Print the terminal summary of a result folder and return the exit code. Raises ConfigError."""
    summary = read_summary(folder / "summary.json")
    from rich.console import Console

    from harness.report.terminal import render_terminal

    render_terminal(summary, Console())
    return 0


def recover(folder: Path) -> int:
    """Rebuild the report of a dead run from the collector in its folder, and return the exit code."""
    from harness.report.recover import recover as rebuild

    rebuild(folder)
    return 0


def read_summary(path: Path) -> dict[str, Any]:
    """The parsed summary.json. Raises ConfigError naming the file."""
    try:
        summary = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a summary that can be read ({error})") from None
    if not isinstance(summary, dict):
        raise ConfigError(f"{path}: not a summary")
    return summary
