"""The folder of a campaign: made before the first run, its result written after every run, so that nothing is lost."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.common.errors import ConfigError, IsorateError, RunError
from harness.report.strict_json import strict_dumps
from harness.session.workspace import absolute


def make_folder(out: Path | None, kind: str) -> Path:
    """A new, empty folder: `out`, or results/KIND-TIME. Raises ConfigError where it exists or cannot be made."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = absolute((out or Path("results") / f"{kind}-{stamp}-{os.getpid()}").expanduser())
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(f"--out {folder}: it is there already") from None
    except OSError as error:
        raise ConfigError(f"--out {folder}: {error.strerror or error}") from None
    return folder


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a campaign's JSON in one step. Raises RunError naming the file."""
    partial = path.with_suffix(".partial")
    try:
        partial.write_text(strict_dumps(result), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror or error}; the runs are kept in their folders") from None


def save_last(path: Path, result: Mapping[str, Any], failures: list[IsorateError]) -> None:
    """Write the last state; a fault goes to `failures` (once), for what is known is still to be printed."""
    try:
        write_result(path, result)
    except RunError as error:
        if not any(str(known) == str(error) for known in failures):
            failures.append(error)


def remove_empty(folder: Path) -> None:
    """Remove the folder of a campaign that was refused before anything was in it."""
    with contextlib.suppress(OSError):
        folder.rmdir()
