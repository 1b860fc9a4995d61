"""Packs one run's requests before t0: after t0 the pacer only sends bytes that exist."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.common.collector import Int64Array
from harness.common.plan_file import LoadPlan
from harness.common.protocol import (
    INDEX_FRAME_BYTES,
    TEXT,
    TOKENS,
    Sampling,
    pack_indices,
    pack_request,
    request_overhead_bytes,
)

_CHUNK = 65_536  # frames that exist as objects at a time: bounds memory


class PackedRun(NamedTuple):
    """The requests of one run, ready to send.

    frames: uint8 bytes of all frames back to back; starts: int64[n+1] into frames; offsets_ns: int64[n] after t0;
    stamps: int64[m, columns], the submitter block's rows from this submitter's first on; request i has row i * step.
    """

    frames: npt.NDArray[np.uint8]
    starts: Int64Array
    offsets_ns: Int64Array
    stamps: Int64Array
    step: int = 1

    @property
    def num_requests(self) -> int:
        return len(self.offsets_ns)


class Shard(NamedTuple):
    """Which requests of a plan a submitter sends: number, number + total, number + 2 * total ..."""

    number: int = 0
    total: int = 1


ALL = Shard()


def pack_run(
    plan: LoadPlan,
    sampling: Sampling,
    first_row: int,
    rows: int,
    stamps: Int64Array,
    shard: Shard = ALL,
    indexed: bool = False,
) -> PackedRun:
    """Pack the shard's part of requests 0..rows-1 of the plan, which are collector rows first_row.. .

    Request i draws with seed `seed + i`, whoever sends it. indexed: frames hold the row number only.
    """
    mine = range(shard.number, rows, shard.total)
    if indexed:
        frames = pack_indices(np.arange(mine.start, mine.stop, mine.step, dtype=np.int64) + first_row).reshape(-1)
        starts = np.arange(len(mine) + 1, dtype=np.int64) * INDEX_FRAME_BYTES
    else:
        frames, starts = _inline(plan, sampling, first_row, mine)
    return PackedRun(
        frames=frames,
        starts=starts,
        offsets_ns=np.array(plan.offsets_ns[shard.number : rows : shard.total]),  # a copy: a mapped plan is unaligned
        stamps=stamps[first_row + min(shard.number, rows) : first_row + rows],
        step=shard.total,
    )


def _inline(
    plan: LoadPlan, sampling: Sampling, first_row: int, mine: range
) -> tuple[npt.NDArray[np.uint8], Int64Array]:
    """Whole frames of requests `mine`, and where each starts. Memory: the frames, and one chunk of them as objects."""
    kind = TOKENS if plan.pretokenized else TEXT
    lengths = plan.payload_lengths()[mine.start : mine.stop : mine.step]
    room = int(lengths.sum()) + len(mine) * request_overhead_bytes(sampling)
    frames = np.empty(max(room, 1), dtype=np.uint8)  # pages that stay untouched cost nothing
    starts = np.zeros(len(mine) + 1, dtype=np.int64)
    for begin in range(0, len(mine), _CHUNK):
        part = mine[begin : begin + _CHUNK]
        max_new = plan.max_new_tokens[part.start : part.stop : part.step].tolist()
        packed = [
            pack_request(kind, first_row + i, max_new[k], sampling._replace(seed=sampling.seed + i), plan.payload(i))
            for k, i in enumerate(part)
        ]
        ends = starts[begin] + np.cumsum([len(frame) for frame in packed], dtype=np.int64)
        starts[begin + 1 : begin + 1 + len(part)] = ends
        frames[starts[begin] : ends[-1]] = np.frombuffer(b"".join(packed), dtype=np.uint8)
    return frames[: starts[-1]], starts
