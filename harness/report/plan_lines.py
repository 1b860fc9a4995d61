"""The description of a load in words, for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.report.header_lines import gate_words
from harness.report.words import number, rate_words, safe, time_words

_LABEL = 18
_DUE = 40
_WIDTH = 80
_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def print_plan(described: Mapping[str, Any], remarks: Sequence[str]) -> None:
    """Print the lines of `plan_lines` on stdout."""
    for line in plan_lines(described, remarks):
        print(line)


def plan_lines(described: Mapping[str, Any], remarks: Sequence[str]) -> Iterator[str]:
    """What a load is, one fact a line, and its first rows; `remarks` are whole sentences."""
    yield "Plan"
    for label, text in _facts(described):
        first, *more = textwrap.wrap(text, _WIDTH - _LABEL - 2, break_long_words=True) or [""]
        yield f"  {label:<{_LABEL}}{first}"
        yield from (" " * (_LABEL + 2) + line for line in more)
    for remark in remarks:
        yield from textwrap.wrap(safe(remark), _WIDTH - 2, initial_indent="  ", subsequent_indent="    ")
    yield "First rows"
    gated = bool(described.get("gated_requests"))
    due = "due" if gated else "offset (ms)"
    yield f"  {'request':>8}{due:>{_DUE if gated else 18}}{'prompt tokens':>15}{'new tokens':>12}"
    for row in described["first_rows"]:
        yield (f"  {row['request']:>8}{_due(row) if gated else format(row['offset_ns'] / 1e6, '>18,.6f')}"
               f"{row['prompt_tokens']:>15,}{row['max_new_tokens']:>12,}")  # fmt: skip


def _due(row: Mapping[str, Any]) -> str:
    """When a row of a gated plan is due: at a time of its own, or after an earlier one's end."""
    when = f"{row['offset_ns'] / 1e6:,.6f} ms"
    if row["after"] is not None:
        when = f"{row['think_ns'] / 1e6:,.6f} ms after {row['after']}'s end"
    return f"{when:>{_DUE}}"


def _facts(described: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    arrivals = described["arrivals"]
    yield "Requests", f"{number(described['num_requests'])}, {described['schedule']}, as {described['payload']}"
    yield from _gated_timing(described) if described.get("gated_requests") else _timing(described, arrivals)
    if "max_concurrency" in described:
        yield "Cap", f"at most {number(described['max_concurrency'])} in flight"
    yield "Prompt tokens", _spread(described["prompt_lengths"])
    yield "New tokens", f"at most {_spread(described['output_lengths'])}"
    yield "Largest frame", size_words(described["largest_frame_bytes"])
    memory = described["memory_bytes"]
    parts = ", ".join(f"{name} {size_words(value)}" for name, value in memory.items() if name != "total")
    yield "Memory", f"{size_words(memory['total'])} ({parts})"
    yield "SHA-256", described["sha256"]
    if "out" in described:
        yield "Written to", safe(described["out"])


def _timing(described: Mapping[str, Any], arrivals: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Span", f"{arrivals['span_s']:,.9g} s"
    yield "Rate", _rate(described["nominal_rate"], arrivals)
    if arrivals["smallest_gap_ns"] is not None:
        cv = "" if arrivals["gap_cv"] is None else f", coefficient of variation {arrivals['gap_cv']:.4g}"
        yield "Gaps", f"smallest {time_words(arrivals['smallest_gap_ns'] / 1e6)}{cv}"
    known = [f"{value:.4g} in {name} windows" for name, value in arrivals["dispersion"].items() if value is not None]
    if known:
        yield "Dispersion", ", ".join(known)


def _gated_timing(described: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Of requests that wait for the ends of others no span, gaps or dispersion are planned."""
    yield "Timing", gate_words(described)
    if described["nominal_rate"] is not None:
        yield "Rate", f"{rate_words(described['nominal_rate'], '/s')} nominal, of first turns"


def _rate(nominal: float | None, arrivals: Mapping[str, Any]) -> str:
    if nominal is None:
        return "burst" if not arrivals["span_s"] else "not defined"
    return f"{rate_words(nominal, '/s')} nominal"


def _spread(spread: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{name} {number(spread[name])}" for name in ("min", "p50", "p90", "p99", "max"))
    return f"{number(spread['total'])} in all; {shown}"


def size_words(nbytes: int) -> str:
    """A size in the largest unit that it fills."""
    for unit, size in _UNITS:
        if nbytes >= size:
            return f"{nbytes / size:,.1f} {unit}"
    return f"{nbytes:,} bytes"
