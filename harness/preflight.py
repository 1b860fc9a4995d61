"""What can be checked against this machine before anything starts: files, folders, cores. Leaves nothing behind."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from harness.common.errors import ConfigError
from harness.config import RunConfig
from harness.cores import allowed_cpus, default_placement


def check_machine(config: RunConfig) -> None:
    """Raises ConfigError naming the flag and what stands in the way."""
    default_placement(allowed_cpus(), config.engine_cores, config.submitter_cores, config.harness_cores)
    for flag, path in (("--prompts", config.prompts), ("--plan", config.plan)):
        if path is not None:
            _check_input(flag, path)
    _check_writable("--collector-dir", config.collector_dir, config.collector_dir)
    _check_out(config.out)


def _check_input(flag: str, path: Path) -> None:
    try:
        is_folder = path.is_dir() or not path.stat()
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror or error}") from None
    if is_folder:
        raise ConfigError(f"{flag} {path}: Is a directory")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{flag} {path}: Permission denied")


def _check_out(out: Path | None) -> None:
    """The result folder is written at the end: what would hinder that is better said now."""
    target = Path("results") if out is None else out
    flag = "the result folder" if out is None else "--out"
    try:
        if out is not None and target.is_dir() and any(target.iterdir()):
            raise ConfigError(f"{flag} {target}: the folder is there and not empty")
        place = target.absolute()
        while not os.path.lexists(place):
            place = place.parent
    except OSError as error:
        raise ConfigError(f"{flag} {target}: {error.strerror or error}") from None
    _check_writable(flag, target, place)
    if out is not None and place == target.absolute():  # the finished folder takes its place by a rename
        _check_writable(flag, target, place.parent)


def _check_writable(flag: str, path: Path, place: Path) -> None:
    """Try it: permission bits say nothing to root, nor about read-only and pseudo file systems."""
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".isorate-", dir=place))
    except OSError as error:
        raise ConfigError(f"{flag} {path}: cannot write in {place}: {error.strerror or error}") from None
