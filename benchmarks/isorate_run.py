"""Runs isorate as a user would and hands back its summary: what the benchmarks of this folder share."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def measure(*arguments: str) -> dict[str, Any]:
    """The last measured run of summary.json, with the verdict's status under "verdict". Raises RuntimeError."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "harness", *arguments, "--out", str(out), "--allow-invalid", "--quiet"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
        summary = json.loads((out / "summary.json").read_text())
    run: dict[str, Any] = summary["runs"][-1]
    return {**run, "verdict": summary["verdict"]["status"]}


def us(run: dict[str, Any], metric: str, percentile: str) -> float:
    """A percentile of a metric in microseconds; NaN where it was not measured."""
    figures = run["metrics"].get(metric)
    value = None if figures is None else figures[percentile]
    return float("nan") if value is None else value * 1000.0


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
