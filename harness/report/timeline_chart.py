"""Batch size and KV use over a run, drawn in one line of text each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.report.words import number

_BLOCKS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_ASCII = " .:-=+*#@"
#: Cells of a chart, the most that leave room for the label and the maximum; each divides the points of a timeline.
_WIDTHS = (60, 40, 30)
_LABEL, _MAXIMUM = 23, 26


def timeline_lines(
    run: Mapping[str, Any], engine: Mapping[str, Any], width: int, *, ascii_only: bool
) -> Iterator[tuple[str, str]]:
    """Label and chart of each series of a run of summary.json, and the time below; nothing where no step was taken."""
    timeline = run["engine"].get("timeline")
    if not timeline:
        return
    cells = next((cells for cells in _WIDTHS if cells + _LABEL + _MAXIMUM <= width), _WIDTHS[-1])
    largest = timeline["batch_size_max"]
    chart = sparkline(timeline["batch_size"], largest, cells, ascii_only=ascii_only)
    yield "Batch size", f"{chart}  max {number(largest)}"
    blocks, of = timeline["kv_blocks_max"], engine.get("kv_blocks")
    if blocks:
        whole = f" of {number(of)}" if isinstance(of, int) else ""
        chart = sparkline(timeline["kv_blocks"], blocks, cells, ascii_only=ascii_only)
        yield "KV blocks", f"{chart}  max {number(blocks)}{whole}"
    begin, end = (f"{timeline[name] / 1e3:.2f} s" for name in ("start_ms", "end_ms"))
    yield "", begin + end.rjust(cells - len(begin))


def sparkline(values: Sequence[float], largest: float, cells: int, *, ascii_only: bool) -> str:
    """`values` as `cells` characters, each the mean of its share, as heights up to `largest`; blank is exactly 0."""
    levels = _ASCII if ascii_only else _BLOCKS
    share = len(values) / cells
    parts = [values[round(i * share) : round((i + 1) * share)] for i in range(cells)]
    means = [sum(part) / len(part) if part else 0.0 for part in parts]
    return "".join(levels[_height(mean, largest, len(levels) - 1)] for mean in means)


def _height(value: float, largest: float, levels: int) -> int:
    if value <= 0 or largest <= 0:
        return 0
    return min(max(round(value / largest * levels), 1), levels)
