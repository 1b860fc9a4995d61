"""A result folder as arrays: the requests of a run, the engine's steps, and what the probes saw."""

from __future__ import annotations

import csv
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path
from typing import Any

import numpy as np

from harness.common.collector import Int64Array
from harness.common.errors import ConfigError
from harness.common.stamps import STAMPS, STEP_COLUMNS
from harness.measures.contention import PROBES_FILE, RunProbes, SessionProbes
from harness.report.steps_file import STEPS_FILE

COUNTS = ("prompt_tokens", "cached_tokens", "output_tokens", "preemptions", "preempted_ns")
_CHUNK = 50_000

@dataclass(frozen=True, slots=True)
class RequestTable:
    """The R requests of one run. columns: int64[R] by stamp (without `_ns`) and count; 0 = not stamped."""

    run: int
    columns: Mapping[str, Int64Array]
    status: Sequence[str]
    error: Sequence[str]

    @property
    def rows(self) -> int:
        return len(self.status)


@dataclass(frozen=True, slots=True)
class Folder:
    """What `explain` looks at. steps, probes: None where the folder has none (an older run, or probes were off)."""

    summary: Mapping[str, Any]
    requests: RequestTable
    steps: Mapping[str, Int64Array] | None
    probes: RunProbes | None


def read_folder(folder: Path, run: int | None) -> Folder:
    """Read a run of a result folder; without `run`, its first measured one. Raises ConfigError naming what is wrong."""
    from harness.report.reading import read_summary

    summary = read_summary(folder / "summary.json")
    there = {entry["run"]: entry["warmup"] for entry in summary["runs"]}
    if run is None:
        run = next((number for number, warmup in there.items() if not warmup), None)
    if run is None or run not in there:
        known = ", ".join(map(str, there)) or "none"
        raise ConfigError(
            f"explain {folder}: there is no {'measured run' if run is None else f'run {run}'}, but {known}"
        )
    requests = _read_requests(folder, run)
    return Folder(summary, requests, _read_steps(folder, run), _read_probes(folder, requests))


def _read_requests(folder: Path, run: int) -> RequestTable:
    names = {**{f"{stamp}_ns": stamp for stamp in STAMPS}, **{name: name for name in COUNTS}}
    parquet = folder / "requests.parquet"
    try:
        table = (
            _from_parquet(parquet, run, names) if parquet.exists() else _from_csv(folder / "requests.csv", run, names)
        )
    except OSError as error:
        raise ConfigError(f"{error.filename or folder}: {error.strerror or error}") from None
    except (ValueError, KeyError, OverflowError, csv.Error) as error:
        raise ConfigError(f"explain {folder}: the requests cannot be read ({error})") from None
    if table.rows == 0:
        raise ConfigError(f"explain {folder}: run {run} has no requests")
    return table


def _from_csv(path: Path, run: int, names: Mapping[str, str]) -> RequestTable:
    """A chunk of rows is Python objects at a time: bounds memory."""
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        place = {name: i for i, name in enumerate(next(reader, []))}
        known = [name for name in names if name in place]  # older files have fewer stamps
        parts: list[Int64Array] = []
        status: list[str] = []
        error: list[str] = []
        while chunk := list(islice(reader, _CHUNK)):
            cells = list(zip(*chunk, strict=True))
            if len(cells) != len(place):
                raise ValueError(f"rows of {len(cells)} cells, the header has {len(place)}")
            mine = _integers(cells[place["run"]]) == run
            parts.append(np.array([_integers(cells[place[name]])[mine] for name in known]))
            status += map(sys.intern, compress(cells[place["status"]], mine))
            error += map(sys.intern, compress(cells[place["error"]], mine))
    array = np.concatenate(parts, axis=1) if parts else np.zeros((len(known), 0), dtype=np.int64)
    return RequestTable(run, {names[name]: array[i] for i, name in enumerate(known)}, status, error)


def _integers(cells: Sequence[str]) -> Int64Array:
    return np.fromiter(map(int, cells), dtype=np.int64, count=len(cells))


def _from_parquet(path: Path, run: int, names: Mapping[str, str]) -> RequestTable:
    import pyarrow.parquet

    there = set(pyarrow.parquet.read_schema(path).names)
    known = [name for name in names if name in there]
    table = pyarrow.parquet.read_table(path, columns=["run", "status", "error", *known], filters=[("run", "=", run)])
    columns = {names[name]: table[name].to_numpy().astype(np.int64, copy=False) for name in known}
    return RequestTable(run, columns, _words(table["status"]), _words(table["error"]))


def _words(column: Any) -> list[str]:
    """The words of an arrow column; rows of the same word share one string. Raises ValueError for a row without one."""
    if column.null_count:
        raise ValueError("a request has no status or no error text")
    words: list[str] = []
    for chunk in column.dictionary_encode().chunks:
        words += np.array(chunk.dictionary.to_pylist(), dtype=object)[chunk.indices.to_numpy()].tolist()
    return words


def _read_steps(folder: Path, run: int) -> dict[str, Int64Array] | None:
    path = folder / STEPS_FILE
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            steps = {name: np.asarray(file[name], dtype=np.int64) for name in STEP_COLUMNS}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: cannot read the steps ({type(error).__name__})") from None
    if len({len(column) for column in steps.values()}) != 1:
        raise ConfigError(f"{path}: cannot read the steps (columns of different lengths)")
    of_run = steps["run"] == run
    return {name: column[of_run] for name, column in steps.items()}


def _read_probes(folder: Path, requests: RequestTable) -> RunProbes | None:
    path = folder / PROBES_FILE
    if not path.exists():
        return None
    stamps = np.concatenate([requests.columns[name] for name in STAMPS if name in requests.columns])
    stamped = stamps[stamps != 0]
    if len(stamped) == 0:
        return None
    return SessionProbes.load(path).of_run(int(stamped.min()), int(stamped.max()))
