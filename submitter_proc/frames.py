"""Packs one run's requests before t0: after t0 the pacer only sends bytes that exist."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.common.collector import Int64Array
from harness.common.plan_file import LoadPlan
from harness.common.protocol import TEXT, TOKENS, Sampling, pack_request


class PackedRun(NamedTuple):
    """The requests of one run, ready to send.

    frames: uint8 bytes of all frames back to back; starts: int64[n+1] into frames; offsets_ns: int64[n] after t0;
    stamps: int64[n, columns], the submitter's rows of this run in the collector.
    """

    frames: npt.NDArray[np.uint8]
    starts: Int64Array
    offsets_ns: Int64Array
    stamps: Int64Array

    @property
    def num_requests(self) -> int:
        return len(self.offsets_ns)


def pack_run(plan: LoadPlan, sampling: Sampling, first_row: int, rows: int, stamps: Int64Array) -> PackedRun:
    """Pack requests 0..rows-1 of the plan as collector rows first_row.. ; request i draws with seed `seed + i`."""
    kind = TOKENS if plan.pretokenized else TEXT
    max_new = plan.max_new_tokens[:rows].tolist()
    frames = [
        pack_request(kind, first_row + i, max_new[i], sampling._replace(seed=sampling.seed + i), plan.payload(i))
        for i in range(rows)
    ]
    starts = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum([len(frame) for frame in frames], out=starts[1:])
    return PackedRun(
        frames=np.frombuffer(b"".join(frames), dtype=np.uint8),
        starts=starts,
        offsets_ns=np.ascontiguousarray(plan.offsets_ns[:rows]),
        stamps=stamps[first_row : first_row + rows],
    )
