"""Sessions of the self-test: each a process of its own, as a user would start it, and its requests' stamps."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.campaign.trial import run_trial
from harness.common.clock import monotonic_ns
from harness.common.collector import Int64Array
from harness.common.errors import RunError
from harness.report.reading import read_summary
from harness.selftest.occupancy import Occupancy, OccupancyWatch

BASE = (
    "--engine", "null", "--pretok", "--max-new-tokens", "1", "--max-batch-size", "1",
    "--warmup-runs", "1", "--warmup-requests", "20",
)  # fmt: skip
_MEASURED_RUN = 1  # after one warm-up


@dataclass(frozen=True, slots=True)
class Measured:
    """One session. run: its measured run in summary.json. stamps: int64[n] ns by name, such as t_wire, of all requests;
    steps: int64[m] by name, such as t_end, of all steps.
    occupancy: where it was asked for."""

    summary: Mapping[str, Any]
    run: Mapping[str, Any]
    stamps: Mapping[str, Int64Array]
    steps: Mapping[str, Int64Array]
    occupancy: Occupancy | None = None

    def metric_ms(self, name: str, statistic: str) -> float | None:
        """A figure of a metric, in ms; None where it was not measured."""
        values = self.run["metrics"].get(name)
        return values[statistic] if values and values["count"] else None


@dataclass(slots=True)
class Sessions:
    """Runs sessions below `folder` and remembers what all of them tell. words: more flags for each of them.
    Owned by: the main thread."""

    folder: Path
    words: Sequence[str] = ()
    clocks: list[Mapping[str, Any]] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)

    def run(self, name: str, words: Sequence[str], watch: bool = False) -> Measured:
        """Run a session of BASE, `words` and the flags of all to its end.

        Raises RunError where not every request completed, and as `run_trial`.
        """
        folder = self.folder / name
        watcher = OccupancyWatch(folder, _MEASURED_RUN, monotonic_ns) if watch else None
        if watcher is not None:
            watcher.start()
        try:
            trial = run_trial([*BASE, *words, *self.words], folder)
        finally:
            occupancy = watcher.stop() if watcher is not None else None
        self.verdicts.append(trial.status)
        summary = read_summary(folder / "summary.json")
        self.clocks.append(summary["manifest"].get("clocks", {}))
        stamps, steps = read_stamps(folder / "requests.csv"), read_steps(folder / "steps.npz")
        return Measured(summary, summary["runs"][_MEASURED_RUN], stamps, steps, occupancy)


def read_steps(path: Path) -> dict[str, Int64Array]:
    """The columns of the measured run's steps by name."""
    with np.load(path, allow_pickle=False) as file:
        columns = {name: file[name].astype(np.int64) for name in file.files}
    return {name: values[columns["run"] == _MEASURED_RUN] for name, values in columns.items()}


def read_stamps(path: Path) -> dict[str, Int64Array]:
    """The stamps of the measured run's requests by name. Raises RunError where one did not complete."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["run"] == str(_MEASURED_RUN)]
    left = [row for row in rows if row["status"] != "completed"]
    if left or not rows:
        what = f"request {left[0]['request']} ended as {left[0]['status']}" if left else "no request was measured"
        raise RunError(f"{path}: {what}; the self-test needs all of them")
    names = [name for name in rows[0] if name.startswith("t_")]
    return {name.removesuffix("_ns"): np.array([int(row[name]) for row in rows], dtype=np.int64) for name in names}
