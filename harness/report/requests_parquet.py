"""requests.parquet: what requests.csv holds, for runs of more rows than a text file serves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from harness.measures.records import RunRecord
from harness.report.requests_csv import COLUMNS, columns_of

WORDS = ("status", "finish_reason", "error")
_ROW_GROUP = 131_072  # rows that exist as a table at a time: bounds memory


def schema() -> pa.Schema:
    """The columns of requests.csv under the same names: words as dictionaries of strings, numbers as int64."""
    word = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([(name, word if name in WORDS else pa.int64()) for name in COLUMNS])


def write_requests_parquet(path: Path, runs: Iterable[RunRecord]) -> None:
    """Write the rows in groups, runs numbered as in summary.json's `runs[]`; stamps in ns, 0 = not stamped.

    Raises OSError.
    """
    form = schema()
    with pq.ParquetWriter(path, form, compression="zstd", use_dictionary=list(WORDS)) as writer:
        for run in runs:
            for begin in range(0, run.rows, _ROW_GROUP):
                columns = columns_of(run, begin, min(begin + _ROW_GROUP, run.rows))
                arrays = [
                    pa.array(column, type=pa.string()).dictionary_encode() if name in WORDS else pa.array(column)
                    for name, column in zip(COLUMNS, columns, strict=True)
                ]
                writer.write_table(pa.Table.from_arrays(arrays, schema=form))
