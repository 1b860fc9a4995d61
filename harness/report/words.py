"""Values as a person reads them: units, thousands, CPU lists, and text from users and models made harmless."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

NOT_MEASURED = "not measured"


def safe(text: object, *, ascii_only: bool = False) -> str:
    """`text` with control, format and bidirectional characters spelled out, so that it cannot drive a terminal."""
    shown = "".join(_spelled(char) if unicodedata.category(char)[0] == "C" else char for char in str(text))
    return shown.encode("ascii", "backslashreplace").decode() if ascii_only else shown


def _spelled(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def time_unit(summary: Mapping[str, Any]) -> str:
    """us or ms for a metric's line, by its median, or by its maximum where the median is 0."""
    scale = abs(summary["p50"]) or abs(summary["max"])
    return "us" if scale < 1.0 else "ms"


def time_in(value_ms: float | None, unit: str) -> str:
    """A time given in ms, as a number in `unit`: to 10 us in ms, to 0.1 us in us, finer where it is small."""
    if value_ms is None:
        return "-"
    value = value_ms * 1e3 if unit == "us" else value_ms
    size = abs(value)
    if size >= 10_000:
        return f"{value:,.0f}"
    if size >= (100 if unit == "us" else 1000):
        return f"{value:,.1f}"
    if 0 < size < 0.1:
        return f"{value:.3f}"
    return f"{value:.2f}"


def time_words(value_ms: float | None) -> str:
    """A time given in ms, with the unit that reads best."""
    if value_ms is None:
        return NOT_MEASURED
    unit = "us" if 0 < abs(value_ms) < 1.0 else "ms"
    return f"{time_in(value_ms, unit)} {unit}"


def rate_words(value: float | None, unit: str) -> str:
    """A rate per second with thousands, e.g. `1,000.04/s`."""
    if value is None:
        return NOT_MEASURED
    return f"{value:,.2f}{unit}" if abs(value) < 10_000 else f"{value:,.0f}{unit}"


def number(value: float | None) -> str:
    """A check's value or limit: whole numbers as such, else to three places, one from 10 on."""
    if value is None:
        return "-"
    if float(value).is_integer():
        return f"{int(value):,}"
    if abs(value) < 0.001:
        return "<0.001"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3f}"


def switch(value: Any) -> str:
    """on, off, a value's own words, or that nobody said."""
    if value is None:
        return "not available"
    if isinstance(value, bool):
        return "on" if value else "off"
    return safe(value)


def cpu_list(cpus: Iterable[int] | None) -> str:
    """CPU numbers as taskset takes them: 0-3,8."""
    numbers = sorted(cpus or ())
    if not numbers:
        return "not known"
    ranges: list[list[int]] = []
    for cpu in numbers:
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def described(value: Any) -> str:
    """A small mapping in one line, `_ns` values as times."""
    if not isinstance(value, Mapping):
        return safe(value)
    return ", ".join(_pair(str(key), item) for key, item in value.items() if item is not None)


def _pair(key: str, value: Any) -> str:
    if key.endswith("_ns") and isinstance(value, int | float) and not isinstance(value, bool):
        return f"{safe(key[:-3]).replace('_', ' ')} {time_words(value / 1e6)}"
    return f"{safe(key).replace('_', ' ')} {described(value) if isinstance(value, Mapping) else switch(value)}"
