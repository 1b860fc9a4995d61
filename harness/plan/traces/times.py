"""Times of a trace, exact to the last digit that the file has: no float ever holds one."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from harness.common.clock import NS_PER_MS, NS_PER_S

#: ns of one of each unit that stamps may count in.
UNITS = {"s": NS_PER_S, "ms": NS_PER_MS, "us": 1000, "ns": 1}

#: A time in ns: an int wherever it is whole ns, which nearly all are.
Stamp = int | Fraction

#: Decimal places and digits beyond which a number is damaged, or would only eat memory.
_MAX_PLACES, _MAX_DIGITS = 30, 30
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?", re.ASCII)
_DATE = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,30}))?"
    r"(Z|[+-][0-9]{2}:?[0-9]{2})?",
    re.ASCII,
)


class NotFinite:
    """What stands in a parsed record for JSON's NaN, Infinity and -Infinity."""

    def __init__(self, word: str) -> None:
        self._word = word

    def __str__(self) -> str:
        return self._word


def stamp_of(value: object, scale: Fraction) -> Stamp:
    """`value` (an int, a Decimal, or decimal text from a CSV file) times `scale`, in ns and exactly.

    Raises ValueError, worded to follow a field's name.
    """
    if isinstance(value, str):
        value = _decimal(value.strip())
    if isinstance(value, NotFinite) or (isinstance(value, Decimal) and not value.is_finite()):
        raise ValueError(f"must be finite, not {value}")
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        word = {type(None): "null", bool: "true or false", list: "a list", dict: "an object"}.get(type(value), "that")
        raise ValueError(f"must be a number, not {word}")
    if isinstance(value, int):
        if abs(value) >= 10**_MAX_DIGITS:
            raise ValueError("is out of all range")
        return _whole(value * scale) if scale.denominator != 1 else value * scale.numerator
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)  # it is finite
    if (value and value.adjusted() >= _MAX_DIGITS) or exponent > _MAX_DIGITS:
        raise ValueError("is out of all range")
    if exponent < -_MAX_PLACES:
        raise ValueError(f"has more than {_MAX_PLACES} decimal places")
    return _whole(Fraction(value) * scale)


def date_of(text: str) -> Stamp:
    """A date `YYYY-MM-DD hh:mm:ss[.fraction][zone]` as ns since 1970; without a zone it is read as UTC.

    Raises ValueError, worded to follow a field's name.
    """
    match = _DATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"must be a date like 2023-11-16 18:17:03.9799600, not {text[:40]!r}")
    year, month, day, hour, minute, second = (int(match[i]) for i in range(1, 7))
    try:
        moment = datetime.datetime(year, month, day, hour, minute, second)
    except ValueError as error:
        raise ValueError(f"is no date: {error}") from None
    days = moment.toordinal() - datetime.date(1970, 1, 1).toordinal()
    seconds = days * 86400 + hour * 3600 + minute * 60 + second - _zone_s(match[8])
    digits = match[7] or ""
    if len(digits.rstrip("0")) <= 9:
        return seconds * NS_PER_S + int(digits[:9].ljust(9, "0"))
    return seconds * NS_PER_S + Fraction(int(digits) * NS_PER_S, 10 ** len(digits))


def _zone_s(zone: str | None) -> int:
    """Seconds that a zone is ahead of UTC."""
    if zone is None or zone == "Z":
        return 0
    ahead = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
    return -ahead if zone[0] == "-" else ahead


def _decimal(text: str) -> Decimal | int:
    if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
        return int(text)
    if text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        raise ValueError(f"must be finite, not {text}")
    if not text:
        raise ValueError("is empty")
    if not _NUMBER.fullmatch(text) or len(text) > 100:
        raise ValueError(f"must be a number, not {text[:40]!r}")
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"must be a number, not {text[:40]!r}") from None


def _whole(value: Fraction) -> Stamp:
    return value.numerator if value.denominator == 1 else value


def round_half_even(numerator: int, denominator: int) -> int:
    """numerator / denominator to the nearest integer, ties to even; the denominator is positive."""
    quotient, rest = divmod(numerator, denominator)
    if 2 * rest > denominator or (2 * rest == denominator and quotient % 2):
        return quotient + 1
    return quotient
