"""steps.npz: the engine's step table, an int64 array a column, for `isorate explain` and one's own analysis."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from harness.common.stamps import STEP_COLUMNS
from harness.measures.records import RunRecord

STEPS_FILE = "steps.npz"


def write_steps(path: Path, runs: Iterable[RunRecord]) -> None:
    """Write the steps of all runs, in order; `run` says which run one belongs to. Raises OSError."""
    tables = [run.steps for run in runs]
    none = np.zeros(0, dtype=np.int64)
    arrays: dict[str, Any] = {name: np.concatenate([none, *(table[name] for table in tables)]) for name in STEP_COLUMNS}
    with open(path, "wb") as file:
        np.savez_compressed(file, **arrays)
