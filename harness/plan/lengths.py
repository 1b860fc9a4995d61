"""Lengths in tokens, fixed or drawn: what `--input-len` and `--output-len` mean."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.common.errors import ConfigError
from harness.config.length_text import INTEGER, MAX_LENGTH, LengthSpec
from harness.plan.files import decode_lines, read_bytes
from harness.plan.tables import once

Int32Array = npt.NDArray[np.int32]


class Lengths(NamedTuple):
    """values: int32[N], at least 1. raised, capped: how many were drawn below `low`, above `high`, and moved there."""

    values: Int32Array
    raised: int
    capped: int


def draw_lengths(spec: LengthSpec, count: int, random: np.random.Generator, flag: str) -> Lengths:
    """`count` lengths, rounded to the nearest integer and moved into low..high; a file's are cycled.

    uniform: integers a..b, both included. normal: mean a, standard deviation b. lognormal: the same two of the length
    itself, not of its logarithm: sigma^2 = ln(1 + (b/a)^2), mu = ln(a) - sigma^2 / 2. zipf: P(k) proportional to k^-a,
    k = 1, 2, ... Raises ConfigError naming `flag` for a file that cannot be used.
    """
    if spec.kind == "fixed":
        return Lengths(np.full(count, int(spec.a), dtype=np.int32), 0, 0)
    if spec.kind == "file":
        values = np.array(read_lengths(Path(spec.path).expanduser(), spec.column, flag), dtype=np.int32)
        return Lengths(np.resize(values, count), 0, 0)
    drawn: npt.NDArray[np.int64] | npt.NDArray[np.float64]
    if spec.kind == "uniform":
        drawn = random.integers(int(spec.a), int(spec.b), size=count, endpoint=True)
    elif spec.kind == "normal":
        drawn = np.rint(random.normal(spec.a, spec.b, size=count))
    elif spec.kind == "lognormal":
        variance = math.log1p((spec.b / spec.a) ** 2)
        drawn = np.rint(random.lognormal(math.log(spec.a) - variance / 2, math.sqrt(variance), size=count))
    else:
        drawn = random.zipf(spec.a, size=count)
    values = np.clip(drawn, spec.low, spec.high).astype(np.int32)
    return Lengths(values, int(np.count_nonzero(drawn < spec.low)), int(np.count_nonzero(drawn > spec.high)))


def read_lengths(path: Path, column: str, flag: str) -> list[int]:
    """The lengths of a file: one integer a line, JSON Lines (.jsonl) or CSV (.csv).

    `column` names the field of JSON objects or the column of a CSV; it may be left out where there is one only. Blank
    lines are skipped. Raises ConfigError naming file, line and field.
    """
    lines = decode_lines(read_bytes(path, flag), f"{flag} {path}")
    suffix = path.suffix.lower()
    if suffix == ".csv":
        cells = _csv_cells(lines, column, f"{flag} {path}")
    elif suffix in (".jsonl", ".json", ".ndjson"):
        cells = _json_cells(lines, column, f"{flag} {path}")
    elif column:
        raise ConfigError(f"{flag} {path}: only .csv and .jsonl files have columns")
    else:
        cells = ((number, "the line", line.strip()) for number, line in enumerate(lines, 1) if line.strip())
    lengths = [_length(cell, f"{flag} {path}, line {number}: {field}") for number, field, cell in cells]
    if not lengths:
        raise ConfigError(f"{flag} {path}: the file holds no length")
    return lengths


def _csv_cells(lines: list[str], column: str, where: str) -> Iterator[tuple[int, str, object]]:
    rows = csv.reader(lines)
    header = next((row for row in rows if row), [])
    names = [name.strip() for name in header]
    if not names:
        return
    once(names, where)
    if not column and len(names) == 1 and INTEGER.fullmatch(names[0]):  # one column without a header
        yield rows.line_num, "the line", names[0]
        place = 0
    else:
        place = names.index(_only(names, column, where))
    for row in rows:
        if row:
            if place >= len(row):
                raise ConfigError(f"{where}, line {rows.line_num}: column {names[place]!r} is missing")
            yield rows.line_num, f"column {names[place]!r}" if names[place] else "the line", row[place].strip()


def _json_cells(lines: list[str], column: str, where: str) -> Iterator[tuple[int, str, object]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise ConfigError(f"{where}, line {number}: not valid JSON") from None
        field = "the line"
        if isinstance(value, dict):
            name = _only(list(value), column, f"{where}, line {number}")
            field, value = f"field {name!r}", value[name]
        yield number, field, value


def _only(names: list[str], column: str, where: str) -> str:
    """The column that was asked for, or the only one. Raises ConfigError naming those that there are."""
    shown = ", ".join(repr(name) for name in names[:12]) or "none"
    if column and column not in names:
        raise ConfigError(f"{where}: there is no column {column!r}; there are {shown}")
    if not column and len(names) != 1:
        raise ConfigError(f"{where}: say which column as file:PATH#COLUMN; there are {shown}")
    return column or names[0]


def _length(value: object, where: str) -> int:
    number = int(value) if isinstance(value, str) and INTEGER.fullmatch(value) else value
    if type(number) is not int or not 1 <= number <= MAX_LENGTH:
        raise ConfigError(f"{where} must be an integer from 1 to {MAX_LENGTH}, not {str(value)[:40]!r}")
    return number
