"""The records of a trace file with their places: CSV by its header's names, JSON Lines, or one JSON document."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from harness.common.errors import ConfigError
from harness.plan.files import read_bytes
from harness.plan.tables import once
from harness.plan.traces.rows import Complaints, Kind, RowError
from harness.plan.traces.times import NotFinite

#: Largest trace file: all of it is read before t0.
MAX_FILE_BYTES = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class Source:
    """A trace file in memory. head: the header's columns (casefolded) or the first record, for recognising the format.

    An npz file's text is empty: the format reads the file itself.
    """

    path: Path
    kind: Kind
    text: str
    head: Mapping[str, Any]

    def records(self, complaints: Complaints) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """(place, record) of each record; bad ones go to `complaints`. Blank lines are no records."""
        if self.kind == "csv":
            return _csv_records(self.text, complaints)
        return _json_records(self.text, complaints)


def open_source(path: Path) -> Source:
    """Read the file and tell its kind by its first bytes. Raises ConfigError naming the file."""
    data = read_bytes(path, "--trace", MAX_FILE_BYTES)
    if data[:2] == b"PK":
        return Source(path, "npz", "", {})
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"--trace {path}, line {line}: not valid UTF-8") from None
    del data
    start = text.lstrip()[:1]
    if not start:
        raise ConfigError(f"--trace {path}: the file is empty")
    kind: Kind = "json" if start in "{[" else "csv"
    if kind == "csv":
        line, fields = next(_csv_rows(text))
        once(_header(fields), f"--trace {path}, line {line}")
        head: Mapping[str, Any] = dict.fromkeys(_header(fields))
    else:
        complaints = Complaints(str(path))
        head = next((record for _, record in _json_records(text, complaints)), {})
        if not head:
            complaints.raise_any()
    return Source(path, kind, text, head)


def _header(fields: list[str]) -> list[str]:
    return [name.strip().casefold() for name in fields]


def _csv_rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """(first line, fields) of every row that is not blank. A row in quotes that never end is the reader's to report."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, [f"\0{error}"]
            continue
        if any(field.strip() for field in fields):
            yield line, fields


def _csv_records(text: str, complaints: Complaints) -> Iterator[tuple[str, Mapping[str, Any]]]:
    rows = _csv_rows(text)
    names = _header(next(rows)[1])
    for line, fields in rows:
        if len(fields) == 1 and fields[0].startswith("\0"):
            complaints.add(f"line {line}", f"not valid CSV ({fields[0][1:]})")
        elif len(fields) != len(names):
            complaints.add(f"line {line}", f"{len(fields)} fields, the header has {len(names)}")
        else:
            yield f"line {line}", dict(zip(names, fields, strict=True))


def _json_records(text: str, complaints: Complaints) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A file whose first line is a whole value is JSON Lines; else it is one document, an object or a list of them."""
    lines = io.StringIO(text, newline="\n")
    first = next((line for line in lines if line.strip()), "")
    try:
        is_lines = isinstance(_parse(first), dict)
    except RowError:
        is_lines = False
    if is_lines or "\n" not in text.strip():
        lines.seek(0)
        yield from _json_lines(lines, complaints)
        return
    try:
        document = _parse(text)
    except RowError as error:
        complaints.add("line 1", f"neither the first line nor the whole file is JSON ({error})")
        return
    for index, record in enumerate(document if isinstance(document, list) else [document], start=1):
        if isinstance(record, dict):
            yield f"record {index}", record
        else:
            complaints.add(f"record {index}", "not a JSON object")


def _json_lines(lines: io.StringIO, complaints: Complaints) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = _parse(line)
        except RowError as error:
            complaints.add(f"line {number}", f"not valid JSON ({error})")
            continue
        records = record if isinstance(record, list) else [record]  # a whole file in one line
        for index, one in enumerate(records, start=1):
            place = f"line {number}" if len(records) == 1 else f"line {number}, record {index}"
            if isinstance(one, dict):
                yield place, one
            else:
                complaints.add(place, "not a JSON object")


def _parse(text: str) -> Any:
    """JSON with exact numbers: whole ones are int, others Decimal. Raises RowError."""
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=NotFinite)
    except json.JSONDecodeError as error:
        raise RowError(error.msg) from None
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise RowError(type(error).__name__) from None
