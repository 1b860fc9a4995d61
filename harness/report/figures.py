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
_WIDE = 100


def figures_table(run: Mapping[str, Any], width: int, *, pretok: bool, relative: bool) -> Table:
    """The latencies of one run of summary.json."""
    wide = width >= _WIDE
    columns = (*_COLUMNS, "mean") if wide else _COLUMNS
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("Latency", min_width=21, no_wrap=True)
    table.add_column("", min_width=2, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", min_width=9, no_wrap=True)
    if wide:
        table.add_column("from -> to", style="dim", no_wrap=True)
    for line in LINES:
        if line.metric == "drift" and not relative:
            continue
        if line.metric == CAP_WAIT and CAP_WAIT not in run["metrics"]:  # an open loop without a cap
            continue
        cells = _cells(line, run["metrics"].get(line.metric), columns, before_run=pretok and line.metric == "tokenize")
        table.add_row(line.label, *cells, *([line.meaning] if wide else []))
    return table


def _cells(line: Line, summary: Mapping[str, Any] | None, columns: tuple[str, ...], *, before_run: bool) -> list[str]:
    if before_run:
        return ["", "pretok", *[""] * (len(columns) - 1)]
    if summary is None or not summary["count"]:
        return ["", line.absent, *[""] * (len(columns) - 1)]
    unit = time_unit(summary)
    return [unit, *(time_in(summary[name], unit) for name in columns)]
