"""requests.csv: one row a request of every started run (DESIGN section 7)."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from harness.common.stamps import STAMPS, FinishReason, Status
from harness.records import RunRecord

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
_CHUNK = 50_000  # rows turned into Python objects at a time: bounds memory


def write_requests_csv(path: Path, runs: Iterable[RunRecord]) -> None:
    """Write the rows, runs numbered as in summary.json's `runs[]`; stamps in ns, 0 = not stamped. Raises OSError."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for run in runs:
            for begin in range(0, run.rows, _CHUNK):
                writer.writerows(zip(*_chunk(run, begin, min(begin + _CHUNK, run.rows)), strict=True))


def _chunk(run: RunRecord, begin: int, end: int) -> list[Sequence[object]]:
    """The columns of rows begin..end-1 as Python lists: a whole column converts at once, a cell at a time is slow."""
    part = slice(begin, end)
    statuses = [Status(code).word for code in range(len(Status))]
    errors = [""] * (end - begin)
    for i in np.flatnonzero(run.error_code[part]):
        errors[i] = run.error_text(begin + int(i))
    return [
        [run.index] * (end - begin),
        range(begin, end),
        [statuses[code] if 0 <= code < len(statuses) else f"unknown {code}" for code in run.status[part].tolist()],
        _finish_words(run, part),
        errors,
        *(run.columns[name][part].tolist() for name in _COUNTS),
        *(run.columns[name][part].tolist() for name in STAMPS),
    ]


def _finish_words(run: RunRecord, part: slice) -> list[str]:
    words = {int(reason): reason.word for reason in FinishReason}
    return [words.get(code, f"unknown {code}") for code in run.columns["finish_reason"][part].tolist()]
