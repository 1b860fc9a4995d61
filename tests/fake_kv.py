"""A model without tensors for the scheduler: its K and V say what they were computed from, so wrong ones are seen.

What a real model keeps at a position depends on every token up to it. `FakeModel` keeps a hash of them, in the slot
that the block table names, and refuses to compute a position when any slot before it holds something else: a block
freed too early, registered too early, shared by mistake or written by two sequences cannot go unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from fakes import FakeClock

from engine_proc.backends.base import EngineRequest, Failure
from engine_proc.scheduling import sequence as engine
from engine_proc.scheduling.batch import Batch, Chunk
from engine_proc.scheduling.block_pool import PADDING_BLOCK, BlockPool
from engine_proc.scheduling.scheduler import Policy, Scheduler
from harness.common.protocol import Sampling

VOCABULARY = 3  # few tokens, so that prompts made at random begin alike


def plain_request(row: int, prompt: int | Sequence[int] = 4, new_tokens: int = 4) -> EngineRequest:
    """`prompt`: its tokens, or how many tokens, all of them zeros."""
    return EngineRequest(row, [0] * prompt if isinstance(prompt, int) else list(prompt), new_tokens, Sampling())


def prefix_hashes(token_ids: Iterable[int]) -> list[int]:
    """For each position, the hash of all tokens up to it."""
    hashes, state = [], 1
    for token in token_ids:
        state = crc32(token.to_bytes(4, "little"), state)
        hashes.append(state)
    return hashes


def next_token(token_ids: Sequence[int]) -> int:
    return prefix_hashes(token_ids)[-1] % VOCABULARY


def expected_output(prompt: Sequence[int], count: int) -> list[int]:
    """What the model puts out for a prompt, computed in one go without blocks, batches and caches."""
    token_ids = list(prompt)
    for _ in range(count):
        token_ids.append(next_token(token_ids))
    return token_ids[len(prompt) :]


class FakeModel:
    """The KV cache of a pool, and a forward pass over it. Counts what it computes."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._slots: list[list[int]] = [[0] * pool.block_size for _ in range(pool.num_blocks)]
        self.computed_tokens = 0

    def forward(self, chunks: Sequence[Chunk]) -> list[int]:
        """The next token of each chunk that samples."""
        for block in self._pool._blank:  # nobody may count on what these hold
            self._slots[block] = [-1] * self._pool.block_size
        inputs = [chunk.sequence.token_ids for chunk in chunks]
        for i, chunk in enumerate(chunks):
            if chunk.sequence.ended:  # aborted with steps in flight: nobody will ever know its last token
                inputs[i] = inputs[i] + [0] * (chunk.start + chunk.length - len(inputs[i]))
        hashes = [prefix_hashes(token_ids) for token_ids in inputs]
        for chunk, own in zip(chunks, hashes, strict=True):  # a layer writes all K and V before it attends
            for position in range(chunk.start, chunk.start + chunk.length):
                self._write(chunk.sequence, position, own[position])
        for chunk, own in zip(chunks, hashes, strict=True):
            self._attend(chunk, own)
        self.computed_tokens += sum(chunk.length for chunk in chunks)
        ends = [chunk.start + chunk.length for chunk in chunks]
        return [next_token(ids[:end]) for chunk, ids, end in zip(chunks, inputs, ends, strict=True) if chunk.samples]

    def _write(self, sequence: engine.Sequence, position: int, value: int) -> None:
        block = sequence.block_table[position // self._pool.block_size]
        assert block != PADDING_BLOCK
        assert self._pool._holders[block] == 1, f"row {sequence.row} writes to a block that others read"
        self._slots[block][position % self._pool.block_size] = value

    def _attend(self, chunk: Chunk, hashes: list[int]) -> None:
        assert chunk.length >= 1, "a chunk without tokens has no logits"
        size = self._pool.block_size
        for position in range(chunk.start + chunk.length):
            held = self._slots[chunk.sequence.block_table[position // size]][position % size]
            assert held == hashes[position], f"row {chunk.sequence.row}: wrong K and V at position {position}"


@dataclass(eq=False)
class Engine:
    """Pool, scheduler and fake model in a synchronous loop, checked after every step."""

    pool: BlockPool
    scheduler: Scheduler
    model: FakeModel
    clock: FakeClock
    batches: list[Batch] = field(default_factory=list)
    outputs: dict[int, list[int]] = field(default_factory=dict)  # of rows that completed
    failed: list[Failure] = field(default_factory=list)
    cached: dict[int, int] = field(default_factory=dict)
    preempted: dict[int, int] = field(default_factory=dict)  # row -> preemptions, of rows that completed

    def step(self) -> Batch:
        batch = self.scheduler.schedule()
        self.batches.append(batch)
        self.failed += batch.failed
        tokens = self.model.forward(batch.chunks)
        sampled = [chunk.sequence for chunk in batch.chunks if chunk.samples]
        self.scheduler.commit(batch)
        for sequence, token in zip(sampled, tokens, strict=True):
            self.take(sequence, token)
        self.scheduler.check_integrity()
        return batch

    def take(self, sequence: engine.Sequence, token: int) -> None:
        """Append a token, and end the sequence where it was its last."""
        sequence.output_ids.append(token)
        if len(sequence.output_ids) >= sequence.request.max_new_tokens:
            assert self.scheduler.finish(sequence)
            self.outputs[sequence.row] = sequence.output_ids
            self.cached[sequence.row] = sequence.num_cached
            self.preempted[sequence.row] = sequence.preemptions

    def run(self, most_steps: int = 2_000) -> list[Batch]:
        """Step until there is no work; fails where that takes more than `most_steps`."""
        first = len(self.batches)
        while self.scheduler.has_work():
            assert len(self.batches) - first < most_steps, "no end in sight"
            self.step()
        return self.batches[first:]

    @property
    def preemptions(self) -> int:
        return sum(batch.preemptions for batch in self.batches)


def make_engine(
    blocks: int = 64, block_size: int = 4, *, prefix_cache: bool = True, max_batch: int = 4, prefill_batch: int = 4,
    budget: int = 64, policy: Policy = "decode_first", chunked: bool = True,
) -> Engine:  # fmt: skip
    """`blocks`: those that sequences can have; the padding block comes on top."""
    pool = BlockPool(blocks + 1, block_size, prefix_cache)
    clock = FakeClock(tick=1)
    scheduler = Scheduler(pool, max_batch, prefill_batch, budget, policy, chunked, clock)
    return Engine(pool, scheduler, FakeModel(pool), clock)
