"""Who computes how many tokens in the next step. Knows queues, tokens and block numbers, nothing of tensors.

Every sequence has tokens and a count of those whose K and V are in the cache; a step lets the one catch up with the
other, within a budget of tokens. A prompt, a piece of one, the recompute after a preemption and a decode step are the
same thing to it: a chunk.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal, get_args

from engine_proc.backends.base import EngineRequest, Failure
from engine_proc.scheduling.batch import Batch, Chunk
from engine_proc.scheduling.block_pool import BlockPool, IntegrityError
from engine_proc.scheduling.sequence import Sequence
from harness.common.clock import Clock
from harness.common.errors import ConfigError
from harness.common.stamps import Reason

Policy = Literal["prefill_first", "decode_first"]


@dataclass(slots=True)
class _Step:
    """A batch in the making, and what is left of its room for prefills."""

    chunks: list[Chunk] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    readmitted: list[tuple[int, int]] = field(default_factory=list)
    preemptions: int = 0
    room: int = 0  # tokens
    tokens_left: int = 0
    rows_left: int = 0


class Scheduler:
    """Waiting and running sequences, both in order of arrival. owned by: step loop

    `schedule` forms a step, `commit` says that all of it was computed. A further step may be formed while one is in
    flight, before its tokens are known (overlap); where that would take a preemption it comes back empty: commit first.
    """

    def __init__(
        self, pool: BlockPool, max_batch_size: int, prefill_max_batch_size: int, max_tokens_per_step: int,
        policy: Policy, chunked: bool, clock: Clock,
    ) -> None:  # fmt: skip
        """`max_tokens_per_step` bounds decode rows and prefill tokens together. Raises ConfigError."""
        bounds = {
            "max_batch_size": max_batch_size,
            "prefill_max_batch_size": prefill_max_batch_size,
            "max_tokens_per_step": max_tokens_per_step,
        }
        for name, value in bounds.items():
            if value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        if policy not in get_args(Policy):
            raise ConfigError(f"policy is {policy!r}; it must be one of {', '.join(get_args(Policy))}")
        self._pool = pool
        self._max_batch_size = max_batch_size
        self._prefill_max_batch_size = prefill_max_batch_size
        self._max_tokens_per_step = max_tokens_per_step
        self._decode_first = policy == "decode_first"
        self._chunked = chunked
        self._clock = clock
        self._waiting: OrderedDict[int, Sequence] = OrderedDict()  # by row
        self._running: dict[int, Sequence] = {}  # by row
        self._leaving: list[Sequence] = []  # ended, with a step in flight that uses their blocks
        self._failed: dict[int, Failure] = {}  # by row, until the next step takes them along
        self._steps_in_flight = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def has_work(self) -> bool:
        return bool(self._waiting or self._running or self._failed)

    def kv_blocks_used(self) -> int:
        return self._pool.num_used

    def add(self, request: EngineRequest) -> None:
        """Append to the waiting queue. What can never fit the pool fails with the next step, whoever waits before it.

        Raises ValueError for a row that is in the engine.
        """
        if request.row in self._waiting or request.row in self._running or request.row in self._failed:
            raise ValueError(f"row {request.row} is already in the engine")
        sequence = Sequence(request)
        sequence.max_blocks = self._pool.blocks_needed(sequence.num_prompt_tokens + request.max_new_tokens - 1)
        if sequence.max_blocks <= self._pool.capacity:
            self._waiting[request.row] = sequence
        else:
            reason = Reason.TOO_LARGE_FOR_CACHE
            self._failed[request.row] = Failure(request.row, reason, sequence.max_blocks, self._pool.capacity)

    def abort(self, row: int) -> bool:
        """Drop a request wherever it is; False for a row that is not in the engine (any more)."""
        if self._failed.pop(row, None) is not None:
            return True
        sequence = self._waiting.get(row) or self._running.get(row)
        return sequence is not None and self.finish(sequence)

    def finish(self, sequence: Sequence) -> bool:
        """Take a sequence out and free its blocks, before or after the commit; False if it had ended already."""
        if sequence.ended:
            return False
        sequence.ended = True
        queue = self._running if self._running.get(sequence.row) is sequence else self._waiting
        del queue[sequence.row]
        if sequence.in_flight:
            self._leaving.append(sequence)
        else:
            self._pool.free(sequence.block_table)
        return True

    def schedule(self) -> Batch:
        """Form the next step. Where nothing runs and somebody waits, it admits or fails at least one."""
        step = _Step()
        failed = list(self._failed.values())
        self._failed.clear()
        if self._decode_first:
            if self._decode(step):
                self._prefill(step)
        else:
            self._prefill(step)
            if not step.chunks:
                self._decode(step)
        decode_rows = sum(chunk.is_decode for chunk in step.chunks)  # before what follows makes their tokens pending
        for chunk in step.chunks:
            sequence = chunk.sequence
            sequence.num_scheduled += chunk.length
            sequence.num_pending += chunk.samples
            sequence.in_flight += 1
        self._steps_in_flight += bool(step.chunks)
        return Batch(step.chunks, step.admitted, step.readmitted, failed, step.preemptions, decode_rows)

    def commit(self, batch: Batch) -> None:
        """All chunks of the batch were computed: their full blocks may be found by others from here on.

        Batches are committed in the order in which they were formed.
        """
        self._steps_in_flight -= bool(batch.chunks)
        for chunk in batch.chunks:
            sequence = chunk.sequence
            before = sequence.num_computed // self._pool.block_size
            sequence.num_computed += chunk.length
            sequence.num_pending -= chunk.samples
            sequence.in_flight -= 1
            # A row that ended with a step in flight has computed a token that nobody knows.
            full = min(sequence.num_computed, sequence.num_tokens) // self._pool.block_size
            if full > before:
                self._pool.register(sequence.block_table, sequence.block_keys, sequence.token_ids, before, full)
        if self._leaving:
            for sequence in self._leaving:
                if not sequence.in_flight:
                    self._pool.free(sequence.block_table)
            self._leaving = [sequence for sequence in self._leaving if sequence.in_flight]

    def check_integrity(self) -> None:
        """Raise IntegrityError where queues, sequences and pool contradict each other. Not for the timed loop."""
        holders = [*self._running.values(), *self._leaving]
        self._pool.check_integrity([sequence.block_table for sequence in holders])
        if self._running.keys() & self._waiting.keys():
            raise IntegrityError("a sequence waits and runs")
        for sequence in self._waiting.values():
            if sequence.block_table or sequence.num_scheduled or sequence.in_flight or sequence.ended:
                raise IntegrityError(f"row {sequence.row} waits, but has blocks, computed tokens or an end")
        for sequence in holders:
            known = sequence.num_tokens + sequence.num_pending
            if not sequence.num_computed <= sequence.num_scheduled <= known:
                raise IntegrityError(f"row {sequence.row} has more tokens computed than there are")
            if sequence.num_scheduled > len(sequence.block_table) * self._pool.block_size:
                raise IntegrityError(f"row {sequence.row} has too few KV blocks for its tokens")
            self._pool.check_content(sequence.block_table, sequence.token_ids)

    def _decode(self, step: _Step) -> bool:
        """Put in every running sequence that waits for its next token; False where that has to wait for a commit."""
        rows = [sequence for sequence in self._running.values() if sequence.is_decoding and sequence.may_grow]
        if self._steps_in_flight:
            size = self._pool.block_size
            wanted = sum(sequence.num_scheduled == len(sequence.block_table) * size for sequence in rows)
            if wanted > self._pool.num_free:  # what a step in flight uses cannot be taken from its owner
                return False
        for sequence in rows:
            at = sequence.num_scheduled
            if at and self._make_room(sequence, step):  # 0: preempted by an earlier row
                step.chunks.append(Chunk(sequence, at, 1, at + 1))
        return True

    def _make_room(self, sequence: Sequence, step: _Step) -> bool:
        """A slot for one more token; where blocks are short, the last admitted give up theirs, itself in the end."""
        while not self._pool.grow(sequence.block_table, sequence.num_scheduled + 1):
            victim = next(reversed(self._running.values()))
            self._preempt(victim)
            step.preemptions += 1
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the front of the queue, to be computed anew; the tokens that it has put out stay."""
        del self._running[sequence.row]
        self._pool.free(sequence.block_table)
        sequence.num_computed = sequence.num_scheduled = 0
        sequence.preemptions += 1
        sequence.preempted_at_ns = self._clock()
        self._waiting[sequence.row] = sequence
        self._waiting.move_to_end(sequence.row, last=False)

    def _prefill(self, step: _Step) -> None:
        """Share out the budget that decode rows leave: to prompts begun before, to newcomers, then what is left."""
        budget = self._max_tokens_per_step
        # As many decode rows as the budget has tokens must not stop prefills for ever.
        step.room = step.tokens_left = max(budget - len(step.chunks), min(budget, self._pool.block_size))
        step.rows_left = self._prefill_max_batch_size
        for sequence in self._running.values():
            if not sequence.is_decoding:
                self._add_chunk(step, sequence, self._chunk_length(step, sequence.num_unscheduled))
        if not step.preemptions:
            self._admit(step)
        if step.rows_left < self._prefill_max_batch_size:
            if self._chunked:
                self._top_up(step)
            # A sequence that finds all but its last token in the cache after a preemption has nothing to prefill.
            step.chunks.sort(key=lambda chunk: not chunk.is_decode)

    def _chunk_length(self, step: _Step, missing: int) -> int:
        """How many of a sequence's `missing` tokens this step computes; 0: none."""
        if not step.rows_left or not step.tokens_left:
            return 0
        if self._chunked:
            # What cannot end in this step leaves half of it to those who come after.
            return min(missing, step.tokens_left) if missing <= step.room else min(-(-step.room // 2), step.tokens_left)
        alone = step.rows_left == self._prefill_max_batch_size
        return missing if alone or missing <= step.tokens_left else 0

    def _add_chunk(self, step: _Step, sequence: Sequence, length: int) -> None:
        if length:
            step.chunks.append(Chunk(sequence, sequence.num_scheduled, length, sequence.num_tokens))
            step.tokens_left = max(step.tokens_left - length, 0)
            step.rows_left -= 1

    def _top_up(self, step: _Step) -> None:
        """What newcomers did not take goes to those who were held back for them. All have their blocks already."""
        for i, chunk in enumerate(step.chunks):
            extra = min(chunk.goal - chunk.start - chunk.length, step.tokens_left)
            if extra:
                step.chunks[i] = chunk._replace(length=chunk.length + extra)
                step.tokens_left -= extra

    def _admit(self, step: _Step) -> None:
        """Let waiting sequences in, in order, each with blocks for all tokens that it has."""
        while self._waiting and len(self._running) < self._max_batch_size and step.rows_left and step.tokens_left:
            sequence = next(iter(self._waiting.values()))
            hits = self._pool.match(sequence.block_keys, sequence.token_ids)
            length = self._chunk_length(step, sequence.num_tokens - len(hits) * self._pool.block_size)
            if not length or not self._fits(sequence, hits):
                return
            self._start(step, sequence, hits)
            self._add_chunk(step, sequence, length)

    def _fits(self, sequence: Sequence, hits: list[int]) -> bool:
        """Whether there are blocks for it, and one more for each that will grow: else it would be preempted at once."""
        pool = self._pool
        needed = pool.blocks_needed(sequence.num_tokens) - len(hits) + pool.num_evictable(hits)
        if needed > pool.num_free or not self._running:
            return needed <= pool.num_free
        growing = sum(len(other.block_table) < other.max_blocks for other in self._running.values())
        growing += pool.blocks_needed(sequence.num_tokens) < sequence.max_blocks
        return needed + growing <= pool.num_free

    def _start(self, step: _Step, sequence: Sequence, hits: list[int]) -> None:
        """From waiting to running, with the blocks that the prefix cache has for it and new ones for the rest."""
        del self._waiting[sequence.row]
        self._running[sequence.row] = sequence
        self._pool.hold(hits)
        sequence.block_table += hits
        self._pool.grow(sequence.block_table, sequence.num_tokens)
        sequence.num_computed = sequence.num_scheduled = len(hits) * self._pool.block_size
        if sequence.preemptions:
            step.readmitted.append((sequence.row, self._clock() - sequence.preempted_at_ns))
        else:
            step.admitted.append(sequence.row)
            sequence.num_cached = sequence.num_computed
            self._pool.count_query(sequence.num_tokens, sequence.num_computed)
