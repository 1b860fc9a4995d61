"""Records of a dataset file: JSON Lines, a JSON list, CSV or Parquet, each with the place it came from."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.common.errors import ConfigError
from harness.common.limits import MAX_REQUESTS
from harness.plan import files
from harness.plan.files import BOM, decode_lines, read_bytes

#: The longest cell of a CSV.
_MAX_CELL = 2**31 - 1
#: Text packs 3 to 20 times. What unpacks to more than so many times its size, beyond the first bytes, is a bomb.
_MAX_RATIO, _ROOMY_BYTES = 50, 256 * 1024**2
#: Rows of a Parquet file that are unpacked at a time: a cell repeated by its dictionary takes its full size each time.
_PARQUET_ROWS = 256


class Record(NamedTuple):
    """One record: `where` names flag, file and line (or row); fields by name."""

    where: str
    fields: Mapping[str, Any]


def read_records(path: Path, flag: str) -> list[Record]:
    """All records of a file, by its name: .parquet, .csv, .json (a list of objects), else JSON Lines; .gz is unpacked.

    A .json or .jsonl file that begins with [ is a list, with { JSON Lines. Blank lines are skipped. Raises ConfigError
    naming file and line.
    """
    where = f"{flag} {path}"
    data = read_bytes(path, flag)
    suffix = path.suffix.lower()
    if suffix == ".gz":
        data, suffix = _unpacked(data, where), Path(path.stem).suffix.lower()
    readers: dict[str, Callable[[bytes, str], Iterator[Record]]] = {".parquet": _parquet, ".csv": _csv}
    reader = readers.get(suffix) or (_json_list if data.lstrip()[:1] == b"[" else _json_lines)
    records = list(reader(data, where))
    if not records:
        raise ConfigError(f"{where}: the file holds no record")
    return records


def _unpacked(data: bytes, where: str) -> bytes:
    """The content of a gzip file, never more than MAX_TEXT_BYTES of it, nor than text could be packed to its size."""
    most = _most_unpacked(data)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            content = file.read(most + 1)
    except (OSError, EOFError, zlib.error):
        raise ConfigError(f"{where}: not a gzip file, or damaged") from None
    if len(content) > most:
        raise _too_much(most, where)
    return content.removeprefix(BOM)


def _most_unpacked(packed: bytes) -> int:
    return min(files.MAX_TEXT_BYTES, max(_ROOMY_BYTES, _MAX_RATIO * len(packed)))


def _too_much(most: int, where: str) -> ConfigError:
    hint = "" if most == files.MAX_TEXT_BYTES else f", more than {_MAX_RATIO} times its size: unpack it yourself"
    return ConfigError(f"{where}: the unpacked file exceeds {most} bytes{hint}")


def _json_lines(data: bytes, where: str) -> Iterator[Record]:
    for number, line in enumerate(decode_lines(data, where), 1):
        if line.strip():
            yield _record(_parsed(line, f"{where}, line {number}"), f"{where}, line {number}")


def _json_list(data: bytes, where: str) -> Iterator[Record]:
    value = _parsed("\n".join(decode_lines(data, where)), where)
    if not isinstance(value, list):
        raise ConfigError(f"{where}: must be a list of objects")
    for number, item in enumerate(value, 1):
        yield _record(item, f"{where}, record {number}")


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        what = str(error) if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise ConfigError(f"{where}: not valid JSON ({what})") from None


def _record(value: object, where: str) -> Record:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: must be an object, not {type_word(value)}")
    return Record(where, value)


def _csv(data: bytes, where: str) -> Iterator[Record]:
    decode_lines(data, where)  # names the line that is not UTF-8
    csv.field_size_limit(_MAX_CELL)
    rows = csv.reader(io.StringIO(data.decode("utf-8"), newline=""), strict=True)
    try:
        header = next((row for row in rows if row), [])
        once(header, f"{where}, line {rows.line_num}")
        for row in rows:
            if not row:
                continue
            place = f"{where}, line {rows.line_num}"
            if len(row) != len(header):
                raise ConfigError(f"{place}: {len(row)} cells, the header has {len(header)}")
            yield Record(place, dict(zip(header, row, strict=True)))
    except csv.Error as error:
        raise ConfigError(f"{where}, line {rows.line_num}: not valid CSV ({error})") from None


def _parquet(data: bytes, where: str) -> Iterator[Record]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(f"{where}: Parquet needs the package pyarrow, which is not installed") from None
    row, unpacked, most = 0, 0, _most_unpacked(data)
    try:
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(data))
        about = file.metadata
        size = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
        if size > files.MAX_TEXT_BYTES or about.num_rows > MAX_REQUESTS:
            raise ConfigError(f"{where}: {about.num_rows} rows of {size} bytes are too many")
        once(file.schema_arrow.names, where)
        for batch in file.iter_batches(_PARQUET_ROWS):
            unpacked += sum(_decoded_bytes(column) for column in batch.columns)
            if unpacked > most:
                raise _too_much(most, where)
            for fields in batch.to_pylist():
                row += 1
                yield Record(f"{where}, row {row}", fields)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:  # also dates that Python has none of
        raise ConfigError(f"{where}: cannot be read as Parquet ({' '.join(str(error).split())[:120]})") from None


def _decoded_bytes(column: Any) -> int:
    """What a pyarrow column takes once every cell has a copy of its value."""
    return int((column.dictionary_decode() if hasattr(column, "dictionary_decode") else column).nbytes)


def once(names: list[str], where: str) -> None:
    """Raises ConfigError for a column that is there twice: which of them is meant?"""
    if len(set(names)) != len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise ConfigError(f"{where}: the column {twice[:40]!r} is there twice")


def type_word(value: object) -> str:
    """What a JSON value is, as a complaint names it."""
    words = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null",
             int: "a number", float: "a number", bytes: "bytes"}  # fmt: skip
    return words.get(type(value), type(value).__name__)
