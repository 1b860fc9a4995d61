"""How much memory a session took: the peak of each process, and what that is a request."""

from __future__ import annotations

import os
from typing import Any

from harness.common.collector import CollectorShape, collector_bytes
from harness.common.processes import peak_rss_bytes
from harness.report.session_info import SessionInfo


def memory_json(info: SessionInfo, shape: CollectorShape) -> dict[str, Any]:
    """Bytes. `peak_rss` by process, as /proc had it after the runs, with shared pages (the collector's above all).

    `report`: of the process that writes this report, up to here. `collector`: the stamps' file, which every process
    maps. `peak_rss_per_request` over the rows of all runs; large where there are few, for it holds the programs too.
    """
    peaks: dict[str, int | None] = dict(info.manifest.get("peak_rss_bytes") or {})
    peaks["report"] = peak_rss_bytes(os.getpid())
    rows = max(shape.rows, 1)
    return {
        "rows": shape.rows,
        "collector": collector_bytes(shape),
        "peak_rss": peaks,
        "peak_rss_per_request": {name: None if peak is None else round(peak / rows, 1) for name, peak in peaks.items()},
    }
