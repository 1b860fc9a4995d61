"""Continuous batching, prefill first: who runs in the next step. Knows queues and counts, nothing of tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from engine_proc.backends.base import EngineRequest, Failure
from engine_proc.slot_pool import KVPool
from harness.common.stamps import Reason


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way through the engine: its tokens so far and its place in the KV cache."""

    request: EngineRequest
    output_ids: list[int] = field(default_factory=list)
    slot: int = -1  # -1: waiting, or finished

    @property
    def row(self) -> int:
        return self.request.row

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far; the last one's K and V are not in the cache yet once it is an output."""
        return len(self.request.prompt_ids) + len(self.output_ids)

    @property
    def max_tokens(self) -> int:
        """Tokens that it has at most when it ends."""
        return len(self.request.prompt_ids) + self.request.max_new_tokens


class Batch(NamedTuple):
    """The next step: one of `prefill` and `decode` is empty. `failed` can never run and are out of the queues."""

    prefill: list[Sequence]
    decode: list[Sequence]
    failed: list[Failure]


class Scheduler:
    """Waiting and running sequences, both first in, first out.

    A step is a prefill of up to `prefill_max_batch_size` waiting sequences while fewer than `max_batch_size` run, else
    a decode of all that run. owned by: step loop
    """

    def __init__(self, pool: KVPool, max_batch_size: int, prefill_max_batch_size: int) -> None:
        self._pool = pool
        self._max_batch_size = max_batch_size
        self._prefill_max_batch_size = prefill_max_batch_size
        self._waiting: dict[int, Sequence] = {}  # by row, in order of arrival
        self._running: dict[int, Sequence] = {}  # by row, in order of admission

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, request: EngineRequest) -> None:
        """Append to the waiting queue. Raises ValueError for a row that is waiting or running."""
        if request.row in self._waiting or request.row in self._running:
            raise ValueError(f"row {request.row} is already in the engine")
        self._waiting[request.row] = Sequence(request)

    def schedule(self) -> Batch:
        """Form the next batch; admitted sequences hold a slot from here on."""
        prefill, failed = self._admit()
        return Batch(prefill, [] if prefill else list(self._running.values()), failed)

    def finish(self, sequence: Sequence) -> None:
        """Take a running sequence out and free its slot."""
        del self._running[sequence.row]
        self._pool.free(sequence.slot)
        sequence.slot = -1

    def abort(self, row: int) -> bool:
        """Drop a sequence wherever it is; False for a row that is in neither queue."""
        if self._waiting.pop(row, None) is not None:
            return True
        sequence = self._running.get(row)
        if sequence is None:
            return False
        self.finish(sequence)
        return True

    def kv_blocks_used(self) -> int:
        """KV blocks that the running sequences' tokens take."""
        return sum(self._pool.blocks_needed(sequence.num_tokens) for sequence in self._running.values())

    def _admit(self) -> tuple[list[Sequence], list[Failure]]:
        admitted: list[Sequence] = []
        failed: list[Failure] = []
        room = min(self._prefill_max_batch_size, self._max_batch_size - len(self._running))
        while self._waiting and len(admitted) < room:
            sequence = next(iter(self._waiting.values()))
            blocks = self._pool.blocks_needed(sequence.max_tokens)
            if blocks > self._pool.blocks_per_sequence:
                # It would wait for ever and block everyone behind it.
                failed.append(Failure(sequence.row, Reason.TOO_LARGE_FOR_CACHE, blocks, self._pool.blocks_per_sequence))
                del self._waiting[sequence.row]
                continue
            if not self._pool.can_allocate(sequence.max_tokens):
                break
            sequence.slot = self._pool.allocate(sequence.max_tokens)
            del self._waiting[sequence.row]
            self._running[sequence.row] = sequence
            admitted.append(sequence)
        return admitted, failed
