"""WEKA's agentic traces: `t` in seconds, `in`, `out`, blocks of 64 tokens; rows stand alone or nested in `requests`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.plan.traces.rows import Format, Reading, RowError, TraceRow, hash_ids, stamp, tokens


def _read(record: Mapping[str, Any], reading: Reading) -> Iterator[TraceRow]:
    nested = record.get("requests")
    if nested is None:
        yield _row(record, reading)
        return
    if not isinstance(nested, list):
        raise RowError("field 'requests' must be a list")
    for index, one in enumerate(nested):
        if not isinstance(one, dict):
            raise RowError(f"requests[{index}] must be an object")
        try:
            yield _row(one, reading)
        except RowError as error:
            raise RowError(f"requests[{index}] {error}") from None


def _row(record: Mapping[str, Any], reading: Reading) -> TraceRow:
    length = tokens(record, "in")
    ids = hash_ids(record, "hash_ids", length, reading.block_tokens)
    return TraceRow(stamp(record, "t", reading), length, tokens(record, "out"), ids)


def _recognise(head: Mapping[str, Any]) -> bool:
    return {"t", "in", "out"} <= set(head) or isinstance(head.get("requests"), list)


WEKA = Format("weka", "WEKA agentic JSON", "json", "s", _read, _recognise, 64)
