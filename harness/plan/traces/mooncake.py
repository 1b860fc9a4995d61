"""Mooncake's JSON Lines, and the formats that share its fields: stamp, two lengths, ids of prefix blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.plan.traces.rows import Format, Reading, TraceRow, hash_ids, stamp, tokens


def read_labelled(record: Mapping[str, Any], reading: Reading) -> Iterator[TraceRow]:
    """One row of `timestamp`, `input_length`, `output_length` and perhaps `hash_ids`, by the labels of `reading`."""
    names = {name: reading.labels.get(name, name) for name in LABELS}
    length = tokens(record, names["input_length"])
    yield TraceRow(
        stamp(record, names["timestamp"], reading),
        length,
        tokens(record, names["output_length"]),
        hash_ids(record, names["hash_ids"], length, reading.block_tokens),
    )


#: The fields that vLLM's timed traces may call otherwise.
LABELS = ("timestamp", "input_length", "output_length", "hash_ids")


def _recognise(head: Mapping[str, Any]) -> bool:
    return "timestamp" in head and "input_length" in head and "chat_id" not in head


MOONCAKE = Format("mooncake", "Mooncake JSON Lines", "json", "ms", read_labelled, _recognise, 512)
