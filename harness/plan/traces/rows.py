"""What an importer makes of a record: a row of a trace, or a complaint that names the line and the field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from harness.common.errors import ConfigError
from harness.plan.traces.times import UNITS, Stamp, stamp_of

#: Most complaints that the one line of an error lists.
MAX_COMPLAINTS = 8
#: A count beyond this is a damaged field, not a length.
MAX_LENGTH = 2**31 - 1
_MAX_HASH_ID = 2**63 - 1

Kind = Literal["csv", "json", "npz"]


class TraceRow(NamedTuple):
    """One request of a trace.

    stamp: ns, exact (an int, a Fraction where the file is finer). input_tokens: None where `prompt`, a text, decides.
    hash_ids: one a block of the prompt; equal ids are equal blocks.
    """

    stamp: Stamp
    input_tokens: int | None
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    prompt: str | None = None


class RowError(Exception):
    """What is wrong with one record; the text names the field."""


class Reading(NamedTuple):
    """How the records are to be read. unit: name of the stamps' unit; scale: ns a stamp's 1 is; labels: vLLM's."""

    unit: str
    scale: Fraction
    block_tokens: int
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Format:
    """One trace format. `unit` is what its stamps count in unless told otherwise; empty: the stamps say it themselves.

    recognise: by the header's columns (casefolded) or the first record, of the same `kind`; None: only by its name.
    read: the rows of one record, raising RowError. block_tokens: tokens that a hash id stands for.
    dated: stamps are dates. labels_of: the labels of a Reading, by the first record.
    """

    name: str
    title: str
    kind: Kind
    unit: str
    read: Callable[[Mapping[str, Any], Reading], Iterable[TraceRow]]
    recognise: Callable[[Mapping[str, Any]], bool] | None
    block_tokens: int = 512
    dated: bool = False
    labels_of: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = None


@dataclass(slots=True)
class Complaints:
    """The bad lines of a file, each named; a file with any is refused as a whole, before anything is sent."""

    path: str
    texts: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, where: str, what: str) -> None:
        self.count += 1
        if len(self.texts) < MAX_COMPLAINTS:
            self.texts.append(f"{where}: {what}")

    def raise_any(self) -> None:
        """Raises ConfigError, one line, where there is any complaint."""
        if self.texts:
            more = f"; and {self.count - len(self.texts)} more" if self.count > len(self.texts) else ""
            raise ConfigError(f"--trace {self.path}, {'; '.join(self.texts)}{more}")


def need(record: Mapping[str, Any], name: str) -> Any:
    """The value of a field that must be there. Raises RowError."""
    if name not in record:
        raise RowError(f"field '{name}' is missing")
    return record[name]


def stamp(record: Mapping[str, Any], name: str, reading: Reading) -> Stamp:
    """A time, in ns, exactly. Raises RowError for what is missing, no finite number, or negative."""
    value = need(record, name)
    try:
        parsed = stamp_of(value, reading.scale)
    except ValueError as error:
        raise RowError(f"field '{name}' {error}") from None
    if parsed < 0:
        raise RowError(f"field '{name}' must not be negative, and is {shown(value)}")
    return parsed


def tokens(record: Mapping[str, Any], name: str) -> int:
    """A number of tokens, 0 or more. Raises RowError."""
    value = need(record, name)
    if isinstance(value, str):
        text = value.strip()
        value = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else value
    if isinstance(value, bool) or not isinstance(value, int):
        raise RowError(f"field '{name}' must be a whole number of tokens, not {shown(value)}")
    if not 0 <= value <= MAX_LENGTH:
        raise RowError(f"field '{name}' must be from 0 to {MAX_LENGTH} tokens, not {shown(value)}")
    return value


def hash_ids(record: Mapping[str, Any], name: str, input_tokens: int, block_tokens: int) -> tuple[int, ...]:
    """The ids of the prompt's blocks; () where the field is not there. Raises RowError for more than the prompt has."""
    value = record.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise RowError(f"field '{name}' must be a list of block ids")
    if any(isinstance(one, bool) or not isinstance(one, int) or abs(one) > _MAX_HASH_ID for one in value):
        raise RowError(f"field '{name}' must hold whole numbers of at most 64 bits")
    if len(value) > -(-input_tokens // block_tokens):
        raise RowError(f"field '{name}' holds {len(value)} blocks of {block_tokens} tokens, the prompt has "
                       f"{input_tokens} tokens (--trace-block-size sets another size)")  # fmt: skip
    return tuple(value)


def text(value: object, name: str) -> str:
    """A string that messages can carry. Raises RowError."""
    if not isinstance(value, str):
        raise RowError(f"field '{name}' must be a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RowError(f"field '{name}' holds half of a surrogate pair, which UTF-8 cannot carry") from None
    return value


def shown(value: object) -> str:
    """A value as a complaint shows it: short."""
    text = repr(value) if isinstance(value, str) else "null" if value is None else str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def unit_scale(unit: str) -> Fraction:
    """ns of one of a unit's."""
    return Fraction(UNITS[unit])
