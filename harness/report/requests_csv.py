"""requests.csv: one row a request of every started run (DESIGN section 7)."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from harness.common.collector import Int64Array
from harness.common.stamps import STAMPS, FinishReason, Status
from harness.measures.records import RunRecord

_COUNTS = ("prompt_tokens", "cached_tokens", "output_tokens", "preemptions", "preempted_ns")
COLUMNS = (
    "run",
    "request",
    "status",
    "finish_reason",
    "error",
    *_COUNTS,
    *(f"{stamp}_ns" for stamp in STAMPS),
)
#: With more rows than this, over all runs, the table is `requests_parquet`.
MAX_CSV_ROWS = 1_000_000
_CHUNK = 50_000  # rows turned into Python objects at a time: bounds memory


def write_requests_csv(path: Path, runs: Iterable[RunRecord]) -> None:
    """Write the rows, runs numbered as in summary.json's `runs[]`; stamps in ns, 0 = not stamped. Raises OSError."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for run in runs:
            for begin in range(0, run.rows, _CHUNK):
                writer.writerows(zip(*_lists(run, begin, min(begin + _CHUNK, run.rows)), strict=True))


def _lists(run: RunRecord, begin: int, end: int) -> Iterator[Sequence[object]]:
    """The columns as Python lists: a whole column converts at once, a cell at a time is slow."""
    for column in columns_of(run, begin, end):
        yield column.tolist() if isinstance(column, np.ndarray) else column


def columns_of(run: RunRecord, begin: int, end: int) -> list[Sequence[str] | Int64Array]:
    """The columns of rows begin..end-1, in the order of COLUMNS: words as lists, numbers as int64 arrays."""
    part = slice(begin, end)
    statuses = [Status(code).word for code in range(len(Status))]
    errors = [""] * (end - begin)
    for i in np.flatnonzero(run.error_code[part]):
        errors[i] = run.error_text(begin + int(i))
    return [
        np.full(end - begin, run.index, dtype=np.int64),
        np.arange(begin, end, dtype=np.int64),
        [statuses[code] if 0 <= code < len(statuses) else f"unknown {code}" for code in run.status[part].tolist()],
        _finish_words(run, part),
        errors,
        *(run.columns[name][part] for name in _COUNTS),
        *(run.columns[name][part] for name in STAMPS),
    ]


def _finish_words(run: RunRecord, part: slice) -> list[str]:
    words = {int(reason): reason.word for reason in FinishReason}
    return [words.get(code, f"unknown {code}") for code in run.columns["finish_reason"][part].tolist()]
