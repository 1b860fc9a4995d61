"""BurstGPT's CSV in both layouts, read by the columns' names; a failed call has 0 response tokens and stays a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.plan.traces.rows import Format, Reading, TraceRow, stamp, tokens

_COLUMNS = {"timestamp", "request tokens", "response tokens"}


def _read(record: Mapping[str, Any], reading: Reading) -> Iterator[TraceRow]:
    yield TraceRow(stamp(record, "timestamp", reading), tokens(record, "request tokens"),
                   tokens(record, "response tokens"))  # fmt: skip


BURSTGPT = Format("burstgpt", "BurstGPT CSV", "csv", "s", _read, lambda head: set(head) >= _COLUMNS, 0)
