"""Finds the collector of a session that another process runs."""

from __future__ import annotations

import threading
from pathlib import Path

from harness.common.collector import Collector, read_header
from harness.common.errors import CollectorError

SHM = Path("/dev/shm")
_SEARCH_S = 0.02


def attach_to(final: Path, stop: threading.Event, folder: Path = SHM, *, writable: bool = False) -> Collector | None:
    """The collector in `folder` of the session that will publish its results as `final`. Waits for it until `stop` is
    set; None then."""
    while not stop.wait(_SEARCH_S):
        for path in folder.glob("isorate-*.collector"):
            try:
                if read_header(path).meta.get("final") == str(final):
                    return Collector.attach(path, writable=writable)
            except (CollectorError, OSError, ValueError):  # another's, or not whole yet
                continue
    return None
