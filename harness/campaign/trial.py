"""One run of a campaign: a process of its own, as a user would start it, and the figures of its summary."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.common.errors import ConfigError, RunError

#: A run that finds its parent's pid here ends, and saves what it has, when that parent dies.
PARENT_VARIABLE = "ISORATE_CAMPAIGN_PID"

_ROOT = Path(__file__).resolve().parents[2]
_FINISHED = (0, 3)  # done; done but INVALID


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What a campaign wants to know of one measured run. Rates per s, times in ms, None where not measured.

    met: all objectives were kept, None without objectives. growth: `harness.measures.slo.backlog_growth`.
    """

    met: bool | None
    growth: float | None
    offered: float | None
    completed: float | None
    goodput: float | None
    lag_p99: float | None
    ttft_p50: float | None
    ttft_p99: float | None
    tpot_p99: float | None
    busy: float | None


@dataclass(frozen=True, slots=True)
class Trial:
    """A session at one point of a campaign. status, bound_by: its verdict. runs: its measured runs, in order."""

    folder: Path
    status: str
    bound_by: str
    runs: tuple[RunFigures, ...]


def run_trial(words: Sequence[str], folder: Path) -> Trial:
    """Run `isorate run WORDS --out FOLDER` to its end. SIGINT reaches it once, and it saves what it measured.

    Raises ConfigError with its line where it refused the input, RunError where it failed, KeyboardInterrupt where it
    was interrupted.
    """
    environment = dict(os.environ, **{PARENT_VARIABLE: str(os.getpid())})
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "harness", "run", *words, "--out", os.fspath(folder), "--quiet", "--allow-invalid"]
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        _, stderr = process.communicate()
    except BaseException:  # Ctrl-C reached this process alone: hand it on, and wait until the run is saved
        process.send_signal(signal.SIGINT)
        process.communicate()
        raise
    _check(process.returncode, stderr, folder)
    return read_trial(folder)


def _check(code: int, stderr: str, folder: Path) -> None:
    if code in _FINISHED:
        return
    lines = [line for line in stderr.strip().splitlines() if line.strip()]
    end = f"signal {signal.Signals(-code).name}; the next start saves what it measured" if code < 0 else f"code {code}"
    last = lines[-1].removeprefix("isorate: ") if lines else f"it ended with {end}"
    if code == 2:
        raise ConfigError(last)
    if code == 130:
        raise KeyboardInterrupt
    kept = f" (what it measured is in {folder})" if folder.exists() else ""
    raise RunError(f"a run of the campaign failed: {last}{kept}")


def read_trial(folder: Path) -> Trial:
    """The trial of a result folder. Raises ConfigError where its summary cannot be read."""
    from harness.report.reading import read_summary

    summary = read_summary(folder / "summary.json")
    runs = tuple(_figures(run) for run in summary["runs"] if not run["warmup"])
    verdict = summary["verdict"]
    return Trial(folder, verdict["status"], verdict["bound_by"], runs)


def _figures(run: Mapping[str, Any]) -> RunFigures:
    metrics, slo = run["metrics"], run.get("slo") or {}

    def at(name: str, statistic: str) -> float | None:
        values = metrics.get(name)
        return values[statistic] if values and values["count"] else None

    return RunFigures(
        met=slo.get("met"),
        growth=run.get("backlog_growth"),
        offered=run["rate"]["offered"],
        completed=run["rate"]["completed"],
        goodput=slo.get("goodput"),
        lag_p99=at("submit_lag", "p99"),
        ttft_p50=at("ttft", "p50"),
        ttft_p99=at("ttft", "p99"),
        tpot_p99=at("tpot", "p99"),
        busy=run["engine"]["busy_fraction"],
    )
