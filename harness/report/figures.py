"""The table of latencies: which metric each line shows, under the published name where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.table import Table

from harness.common.stamps import CAP_WAIT
from harness.report.words import NOT_MEASURED, time_in, time_unit


class Line(NamedTuple):
    """A line of the table: its label, the metric, what lies between which stamps, and why it may be absent."""

    label: str
    metric: str
    meaning: str
    absent: str = NOT_MEASURED


LINES = (
    Line("Cap wait", "cap_wait", "intended -> slot"),
    Line("Submit lag", "submit_lag", "slot -> send"),
    Line("Drift", "drift", "send - (t0 + offset)"),
    Line("add_request latency", "add_request", "send -> sent"),
    Line("Tokenize", "tokenize", "tokenize_start -> tokenized"),
    Line("Queue wait (post-tok)", "queue_wait_post_tok", "tokenized -> scheduled"),
    Line("Prefill->first token", "prefill_to_first", "scheduled -> delivered"),
    Line("TTFT", "ttft", "intended -> delivered"),
    Line("TTFT from submit", "ttft_from_submit", "send -> delivered"),
    Line("Transit", "transit", "send -> wire"),
    Line("Wire offset", "wire_offset", "intended -> wire"),
    Line("Ingress wait", "ingress_wait", "wire -> ingress"),
    Line("GIL wait", "gil_wait", "wire -> ingress, nothing ahead"),
    Line("Delivery", "delivery", "first_token -> delivered"),
    Line("TPOT", "tpot", "per token after the first"),
    Line("ITL", "itl", "token -> next token"),
    Line("E2E", "e2e", "intended -> finished"),
)
_COLUMNS = ("p50", "p95", "p99", "max")
_WIDE, _WIDE_WITH_NEEDS = 100, 120


def figures_table(run: Mapping[str, Any], width: int, *, pretok: bool, relative: bool) -> Table:
    """The latencies of one run of summary.json."""
    needs = {
        name for metric in run["metrics"].values() for name in _COLUMNS if metric and not is_supported(metric, name)
    }
    wide = width >= (_WIDE_WITH_NEEDS if needs else _WIDE)
    brief = "p50" in needs
    columns = (*_COLUMNS, "mean") if wide else _COLUMNS
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("Latency", min_width=21, no_wrap=True)
    table.add_column("", min_width=2, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", min_width=7 if needs else 9, no_wrap=True)
    if wide:
        table.add_column("from -> to", style="dim", no_wrap=True)
    for line in LINES:
        if line.metric == "drift" and not relative:
            continue
        if line.metric == CAP_WAIT and CAP_WAIT not in run["metrics"]:  # an open loop without a cap
            continue
        cells = _cells(
            line, run["metrics"].get(line.metric), columns, brief=brief, before_run=pretok and line.metric == "tokenize"
        )
        table.add_row(line.label, *cells, *([line.meaning] if wide else []))
    return table


def _cells(
    line: Line, summary: Mapping[str, Any] | None, columns: tuple[str, ...], *, brief: bool, before_run: bool
) -> list[str]:
    if before_run:
        return ["", "pretok", *[""] * (len(columns) - 1)]
    if summary is None or not summary["count"]:
        return ["", line.absent, *[""] * (len(columns) - 1)]
    unit = time_unit(summary)
    return [unit, *(_figure(summary, name, unit, brief=brief) for name in columns)]


def _figure(summary: Mapping[str, Any], name: str, unit: str, *, brief: bool) -> str:
    """A figure, or how many requests a percentile needs that these do not support; brief where many have to say it."""
    if is_supported(summary, name):
        return time_in(summary[name], unit)
    needs = f"needs {_short(summary['needed'][name])}"
    return needs if brief else f"n/a ({needs})"


def is_supported(summary: Mapping[str, Any], name: str) -> bool:
    """Whether a metric's sample is large enough for a figure; mean, max and those of older versions always are."""
    supported: Mapping[str, bool] = summary.get("supported") or {}
    return supported.get(name, True)


def _short(count: int) -> str:
    """A count in at most five characters."""
    for size, suffix in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{-(-count * 10 // size) / 10:g}{suffix}" if count < 100 * size else f"{-(-count // size)}{suffix}"
    return str(count)
