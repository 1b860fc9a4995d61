"""The ledger as a bar a person can read: one line a part, each bar beginning where the one above ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from harness.report.words import NOT_MEASURED

_COLOURS = ("red", "magenta", "yellow", "cyan", "blue", "bright_black", "bright_yellow", "green", "bright_magenta")
_LABEL, _TIME, _SHARE, _GAPS = 14, 10, 5, 6


def ledger_table(ledger: Mapping[str, Any], width: int, *, ascii_only: bool) -> Table:
    """The ledger of means beside the ledger of the request at p99, in ms; both sides' parts sum to their TTFT."""
    mean, at_p99 = ledger["mean"], ledger["p99_request"]
    bar = max(8, (width - _LABEL - 2 * (_TIME + _SHARE + _GAPS)) // 2)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("TTFT ledger", min_width=_LABEL, no_wrap=True)
    for time_heading, heading in (("mean ms", ""), ("p99 ms", f"request {at_p99['request']}")):
        table.add_column(time_heading, justify="right", min_width=_TIME, no_wrap=True)
        table.add_column("", justify="right", min_width=_SHARE, no_wrap=True)
        table.add_column(heading, min_width=bar, max_width=bar, no_wrap=True, overflow="crop")
    position = [0.0, 0.0]
    for index, name in enumerate(ledger["parts"]):
        cells: list[str | Text] = [name]
        for side, entry in enumerate((mean, at_p99)):
            value, total = entry["parts"][name], entry["ttft"]
            if value is None:
                cells += ["-", "", NOT_MEASURED]
                continue
            drawn = part_bar(position[side], value, total, bar, ascii_only=ascii_only)
            cells += [f"{value:,.3f}", _share(value, total), Text(drawn, style=_COLOURS[index % len(_COLOURS)])]
            position[side] += value
        table.add_row(*cells)
    totals = [cell for entry in (mean, at_p99) for cell in (f"{entry['ttft']:,.3f}", "100 %", "")]
    table.add_row("TTFT", *totals, style="bold")
    return table


def part_bar(begin: float, length: float, total: float, width: int, *, ascii_only: bool) -> str:
    """A bar from `begin` on, `length` of `total` long, in `width` cells; a part too short for a cell is a tick."""
    block, tick = ("#", "|") if ascii_only else ("\u2588", "\u258f")
    if total <= 0 or length <= 0:
        return ""
    first, last = (min(max(round(at / total * width), 0), width) for at in (begin, begin + length))
    return " " * first + block * (last - first) if last > first else " " * min(first, width - 1) + tick


def _share(value: float, total: float) -> str:
    if total <= 0:
        return ""
    share = 100.0 * value / total
    return "<1 %" if 0 < share < 0.5 else f"{share:.0f} %"
