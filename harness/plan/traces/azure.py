"""Azure's LLM inference traces of 2023 and 2024: dates with 6 or 7 decimals, with or without a zone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.plan.traces.rows import Format, Reading, RowError, TraceRow, need, tokens
from harness.plan.traces.times import date_of

_COLUMNS = {"timestamp", "contexttokens", "generatedtokens"}


def _read(record: Mapping[str, Any], reading: Reading) -> Iterator[TraceRow]:
    try:
        stamp = date_of(need(record, "timestamp"))
    except ValueError as error:
        raise RowError(f"field 'timestamp' {error}") from None
    yield TraceRow(stamp, tokens(record, "contexttokens"), tokens(record, "generatedtokens"))


AZURE = Format("azure", "Azure LLM inference CSV", "csv", "", _read, lambda head: set(head) >= _COLUMNS, 0, dated=True)
