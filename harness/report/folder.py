"""Files of a result folder appear whole or not at all, and the folder appears under its name when all are on disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from harness.common.errors import RunError


def write_file(path: Path, write: Callable[[Path], None], kept: str) -> None:
    """Let `write` fill a temporary file, force it to disk, then give it its name.

    kept: where the measurements are while this file is not written. Raises RunError naming the file and that place.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        write(temporary)
        _sync(temporary)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror or error}; {kept}") from error


def publish(staging: Path, final: Path, kept: str) -> None:
    """Give the staging folder its final name in one step; nothing to do where it has it. Raises RunError."""
    try:
        _sync(staging)
        if staging.resolve() != final.resolve():
            final.parent.mkdir(parents=True, exist_ok=True)
            os.rename(staging, final)
        _sync(final.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"cannot name the result folder {final}: {reason}; the report is in {staging}; {kept}"
        ) from error


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
