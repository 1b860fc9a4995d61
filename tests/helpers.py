"""What several test files need: waiting with a deadline and running the command line as users do.

Import it as `from helpers import ...` (pyproject.toml puts tests/ on the path).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parent.parent

T = TypeVar("T")


def wait_until(condition: Callable[[], T], deadline_s: float = 5.0, what: str = "the condition") -> T:
    """Poll until `condition` returns something true and return that; fail with `what` when the deadline passes.

    Tests wait for what they need and never for a fixed time: a sleep is too long on a fast machine and too short on
    a busy one.
    """
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"waited {deadline_s:g} s in vain for {what} (last: {value!r})")
        time.sleep(0.01)


def child_env(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment a child Python needs to find this checkout's packages from any working directory."""
    env = dict(os.environ)
    path = [str(ROOT), *env.get("PYTHONPATH", "").split(os.pathsep)]
    env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(entry for entry in path if entry))
    env["PYTHONSAFEPATH"] = "1"  # as run.sh has it
    env.update(extra or {})
    return env


def cli_command(args: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The argument vector that run.sh ends in."""
    return [sys.executable, "-m", "harness", *map(os.fspath, args)]


def run_cli(
    args: Sequence[str | os.PathLike[str]],
    cwd: str | os.PathLike[str] | None = None,
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `isorate ARGS` to its end and return exit code, stdout and stderr (never raises on the exit code)."""
    return subprocess.run(
        cli_command(args),
        cwd=cwd,
        env=child_env(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def start_cli(
    args: Sequence[str | os.PathLike[str]],
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start `isorate ARGS` in a process group of its own, for tests that send it signals. The caller ends it."""
    return subprocess.Popen(
        cli_command(args),
        cwd=cwd,
        env=child_env(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run_python(code: str, cwd: str | os.PathLike[str] | None = None, timeout: float = 60.0) -> str:
    """Run `code` in a fresh interpreter that sees our packages; returns stdout, fails with stderr."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=child_env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
