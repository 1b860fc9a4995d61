"""Limits of checks that the user changed: read from TOML, refused where they name nothing, applied to every reading."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from harness.checks.check import Reading
from harness.common.errors import ConfigError

_KEYS = ("warn", "invalid")
_OFF = "off"
MAX_BYTES = 1 << 20


class Change(NamedTuple):
    """New limits of one check, in its unit: None leaves the declared one, inf takes it away."""

    check: str
    warn: float | None = None
    invalid: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The given limits by name; "off" for one that was taken away."""
        given = {"warn": self.warn, "invalid": self.invalid}
        return {key: _OFF if math.isinf(value) else value for key, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Limits:
    """All changes, and the file that they came from ("" for none)."""

    file: str = ""
    changes: tuple[Change, ...] = ()

    def apply(self, check_id: str, reading: Reading) -> Reading:
        """The reading with the limits that were set for its check."""
        for change in self.changes:
            if change.check == check_id:
                warn, invalid = change.warn, change.invalid
                return replace(
                    reading,
                    warn_above=reading.warn_above if warn is None else _limit(warn),
                    invalid_above=reading.invalid_above if invalid is None else _limit(invalid),
                )
        return reading

    def to_json(self) -> dict[str, Any]:
        """`{"file": ..., "changed": {check: {"warn": number | "off", "invalid": ...}}}`."""
        return {"file": self.file, "changed": {change.check: change.to_json() for change in self.changes}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Limits:
        """Read what `to_json` gave. Raises KeyError, TypeError or ValueError for something else."""
        changes = [
            Change(check, **{key: math.inf if value == _OFF else float(value) for key, value in given.items()})
            for check, given in data["changed"].items()
        ]
        return cls(str(data["file"]), tuple(changes))


def _limit(value: float) -> float | None:
    return None if math.isinf(value) else value


def read_limits(path: Path, known: Collection[str]) -> Limits:
    """Read a limits file: a table a check, `warn` and `invalid` in the check's unit, or "off".

    Raises ConfigError naming the file, the line and what is wrong there.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe gives its content once, and we read it twice
        raise ConfigError(f"{path}: not a regular file")
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES >> 20} MiB, this is no limits file")
    try:
        text = raw.decode("utf-8")
        tables = tomllib.loads(text)
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    return Limits(str(path), tuple(_change(path, text, check, table, known) for check, table in tables.items()))


def _change(path: Path, text: str, check: str, table: object, known: Collection[str]) -> Change:
    line = _line_of(text, check, 1)
    where = f"{path}, line {line}"
    if check not in known:
        raise ConfigError(f"{where}: there is no check {check!r}{_nearest(check, known)}")
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: {check} must be a table with warn and invalid, not {table!r}")
    values: dict[str, float] = {}
    for key, value in table.items():
        where = f"{path}, line {_line_of(text, key, line)}"
        if key not in _KEYS:
            raise ConfigError(f"{where}: {check} has no {key!r}, there are {' and '.join(_KEYS)}")
        values[key] = _number(where, f"{check}.{key}", value)
    if not values:
        raise ConfigError(f"{where}: {check} sets neither warn nor invalid")
    change = Change(check, **values)
    if change.warn is not None and change.invalid is not None and not change.warn <= change.invalid:
        raise ConfigError(f"{path}, line {line}: {check} warns above {change.warn:g}, which is INVALID already")
    return change


def _number(where: str, name: str, value: object) -> float:
    if value == _OFF:
        return math.inf
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    raise ConfigError(f'{where}: {name} must be a number from 0 on or "{_OFF}", not {value!r}')


def _line_of(text: str, word: str, first: int) -> int:
    """The line, counted from 1, in which a key stands first from line `first` on; `first` where it is spelled oddly."""
    for number, line in enumerate(text.splitlines(), start=1):
        if number >= first and re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", line.partition("#")[0]):
            return number
    return first


def _nearest(word: str, known: Collection[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=1)
    return f", did you mean {close[0]}?" if close else f": there are {', '.join(sorted(known))}"
