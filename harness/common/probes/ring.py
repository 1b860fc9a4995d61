"""A ring of the collector: one writer, rows of eight int64 cells, the newest rows kept, and the overwritten counted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harness.common.collector import RING_CELLS, Int64Array

#: Cells of a ring's head; cell 0 counts the rows written. EXACT: its times need no GIL to be taken.
EXACT, SHORTEST, SLEEPS, PERIOD = 1, 2, 3, 4
#: How long a probe sleeps while the control word `probes_rest` is set, before it looks again.
REST_NS = 50_000_000


class RingWriter:
    """Writes rows from Python. The row is whole before the count says that it is there; there is one writer."""

    def __init__(self, ring: Int64Array) -> None:
        """ring: int64[1 + rows, 8], see `Collector.rings`."""
        self._cells = memoryview(ring).cast("B").cast("q")
        self._rows = len(ring) - 1

    def write(self, *values: int) -> None:
        """Append a row of at most eight values; a ring without rows only counts it."""
        count = self._cells[0]
        if self._rows:
            base = (1 + count % self._rows) * RING_CELLS
            for i, value in enumerate(values):
                self._cells[base + i] = value
        self._cells[0] = count + 1


class RingRows(NamedTuple):
    """rows: int64[n, 8], oldest first, a copy. lost: how many older rows were overwritten. head: int64[8], a copy."""

    rows: Int64Array
    lost: int
    head: Int64Array


def read_ring(ring: Int64Array) -> RingRows:
    """What a ring holds, after its writer has ended. A count that cannot be (a damaged file) reads as an empty ring."""
    count, room, head = int(ring[0, 0]), len(ring) - 1, np.array(ring[0])
    if count <= room:
        return RingRows(np.array(ring[1 : 1 + max(count, 0)]), 0, head)
    start = count % room if room else 0
    return RingRows(np.concatenate([ring[1 + start :], ring[1 : 1 + start]]), count - room, head)
