"""outputs.jsonl: the token ids that each request of the measured runs got, and their text where it was decoded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.common.collector import Int64Array
from harness.measures.records import RunRecord


def write_outputs(
    path: Path, runs: Iterable[RunRecord], outputs: Mapping[int, Int64Array], texts: Mapping[int, str] | None
) -> None:
    """One line a request: run, request, token_ids, text (null: not decoded). Both maps go by collector row.

    Raises OSError.
    """
    with open(path, "w", encoding="utf-8") as file:
        for run in runs:
            if run.warmup:
                continue
            for i in range(run.rows):
                row = run.first_row + i
                token_ids = outputs[row].tolist() if row in outputs else []
                text = None if texts is None else texts.get(row)
                line = {"run": run.index, "request": i, "token_ids": token_ids, "text": text}
                file.write(json.dumps(line) + "\n")
