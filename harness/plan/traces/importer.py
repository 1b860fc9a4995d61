"""From a trace file to its rows in order of time, with the figures that say whether they were read rightly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from harness.common.errors import ConfigError
from harness.common.limits import MAX_REQUESTS
from harness.plan.arrivals import MAX_SPAN_NS
from harness.plan.traces.guard import check_rate
from harness.plan.traces.own_jsonl import OFFSET
from harness.plan.traces.registry import find_format
from harness.plan.traces.rows import Complaints, Format, Reading, RowError, TraceRow, shown, unit_scale
from harness.plan.traces.source import Source, open_source
from harness.plan.traces.times import Stamp
from harness.plan.traces.timing import Timing, timing_of


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How a file is to be read, None: as its format has it.

    multiplier: seconds that a stamp's 1 is; labels: the fields' names; both for vLLM's traces only.
    """

    format: str | None = None
    unit: str | None = None
    sort: bool = False
    block_tokens: int | None = None
    multiplier: Fraction | None = None
    labels: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace. rows: non-decreasing stamps, which count from `origin` (ns); unit: "s" .. or where it is stated.

    was_sorted: whether rows had to be moved. timing: of the whole file, at the recorded speed.
    """

    path: Path
    format: Format
    unit: str
    rows: list[TraceRow]
    origin: Stamp
    block_tokens: int
    timing: Timing
    was_sorted: bool
    warnings: tuple[str, ...]


def read_trace(path: Path, options: TraceOptions) -> Trace:
    """Read a trace file. Raises ConfigError, one line, that names the file and every bad line and field.

    Refused are records that are no rows, stamps that are missing, not finite, negative or (without `sort`) go back, and
    a mean rate that only another unit explains.
    """
    source = open_source(path)
    kind = find_format(source, options.format)
    _check_options(path, kind, options)
    labels = kind.labels_of(source.head) if kind.labels_of else options.labels or {}
    block_tokens = options.block_tokens or kind.block_tokens
    reading = Reading(options.unit or kind.unit, _scale(kind, options), block_tokens, labels)
    rows, was_sorted = _ordered(source, kind, reading, options.sort)
    starts_at_t0 = kind.kind == "npz" or labels.get("timestamp") == OFFSET
    origin: Stamp = 0 if starts_at_t0 else rows[0].stamp
    if rows[-1].stamp - origin > MAX_SPAN_NS:
        doubt = f": is the unit {reading.unit} right?" if kind.unit else ""
        raise ConfigError(f"--trace {path}: the trace spans more than 366 days{doubt}")
    timing = timing_of(np.fromiter((round(row.stamp - origin) for row in rows), dtype=np.int64, count=len(rows)))
    confirmed = options.unit is not None or options.multiplier is not None
    unit = reading.unit if options.multiplier is None else f"{options.multiplier} s"
    warnings = [] if not kind.unit else check_rate(str(path), timing, reading.scale, unit, confirmed)
    warnings += timing.head_warnings()
    return Trace(path, kind, unit or _stated_unit(kind, labels), rows, origin, reading.block_tokens, timing, was_sorted,
                 tuple(warnings))  # fmt: skip


def _check_options(path: Path, kind: Format, options: TraceOptions) -> None:
    """No option is accepted and ignored."""
    if options.unit and not kind.unit:
        raise ConfigError(f"--trace-unit: the stamps of {path} ({kind.title}) state their unit themselves")
    if options.block_tokens and not kind.block_tokens:
        raise ConfigError(f"--trace-block-size: {path} ({kind.title}) has no block ids")
    for flag, value in (("--trace-multiplier", options.multiplier), ("--trace-labels", options.labels)):
        if value and kind.name != "vllm":
            raise ConfigError(f"{flag} needs --trace-format vllm, {path} is read as {kind.name}")


def _scale(kind: Format, options: TraceOptions) -> Fraction:
    if options.multiplier is not None:
        return options.multiplier * unit_scale("s")
    return unit_scale(options.unit or kind.unit or "ns")


def _stated_unit(kind: Format, labels: Mapping[str, str]) -> str:
    return "dates" if kind.dated else labels.get("timestamp", OFFSET)


def _ordered(source: Source, kind: Format, reading: Reading, sort: bool) -> tuple[list[TraceRow], bool]:
    """All rows by time, and whether any had to be moved. Raises ConfigError."""
    complaints = Complaints(str(source.path))
    rows: list[TraceRow] = []
    last: Stamp | None = None
    moved = False
    for place, row in _rows(source, kind, reading, complaints):
        if last is not None and row.stamp < last:
            moved = True
            if not sort:
                gap = shown(round(last - row.stamp))
                complaints.add(place, f"the time goes back by {gap} ns (--sort puts the rows in order)")
        last = row.stamp
        rows.append(row)
        if len(rows) > MAX_REQUESTS:
            raise ConfigError(f"--trace {source.path}: more than {MAX_REQUESTS} rows: cut a part of it out")
    complaints.raise_any()
    if not rows:
        raise ConfigError(f"--trace {source.path}: the trace holds no row")
    if moved:
        rows.sort(key=lambda row: row.stamp)  # stable: rows of one time keep the file's order
    return rows, moved


def _rows(source: Source, kind: Format, reading: Reading, complaints: Complaints) -> Iterator[tuple[str, TraceRow]]:
    """Every good row with its place; what is wrong with the others goes to `complaints`."""
    records: Iterator[tuple[str, Mapping[str, Any]]] = (
        iter([("the file", {"path": source.path})]) if source.kind == "npz" else source.records(complaints)
    )
    for place, record in records:
        try:
            for row in kind.read(record, reading):
                yield place, row
        except RowError as error:
            complaints.add(place, str(error))
