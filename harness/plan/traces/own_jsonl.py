"""isorate's own JSON Lines: the stamp's name says its unit, and `offset_ns` is the time after t0 itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.plan.traces.rows import Format, Reading, TraceRow, hash_ids, stamp, text, tokens, unit_scale
from harness.plan.traces.times import UNITS

OFFSET = "offset_ns"
_STAMPS = {OFFSET: "ns"} | {f"timestamp_{unit}": unit for unit in UNITS}


def stamp_field(head: Mapping[str, Any]) -> Mapping[str, str]:
    """{"timestamp": the field that holds it}: the one of the first record, for all records."""
    return {"timestamp": next((name for name in _STAMPS if name in head), OFFSET)}


def _read(record: Mapping[str, Any], reading: Reading) -> Iterator[TraceRow]:
    name = reading.labels["timestamp"]
    when = stamp(record, name, reading._replace(scale=unit_scale(_STAMPS[name])))
    output = tokens(record, "output_length")
    prompt = record.get("prompt")
    if prompt is None:
        length = tokens(record, "input_length")
        yield TraceRow(when, length, output, hash_ids(record, "hash_ids", length, reading.block_tokens))
        return
    said = tokens(record, "input_length") if "input_length" in record else None
    yield TraceRow(when, said, output, prompt=text(prompt, "prompt"))


def _recognise(head: Mapping[str, Any]) -> bool:
    return any(name in head for name in _STAMPS)


OWN_JSONL = Format("jsonl", "isorate JSON Lines", "json", "", _read, _recognise, 512, labels_of=stamp_field)
