"""One step of the engine, between scheduler and model runner: which tokens of which sequences. No tensors."""

from __future__ import annotations

from typing import NamedTuple

from engine_proc.backends.base import Failure
from engine_proc.scheduling.sequence import Sequence


class Chunk(NamedTuple):
    """Compute tokens [start, start + length) of the sequence; their K and V go to the slots of its block table."""

    sequence: Sequence
    start: int
    length: int
    #: Tokens of the sequence, pending ones included, when the step was formed. 0: those that it has now.
    goal: int = 0

    @property
    def samples(self) -> bool:
        """Whether the last position gives the sequence's next token."""
        return self.start + self.length == (self.goal or self.sequence.num_tokens)

    @property
    def is_decode(self) -> bool:
        """Whether it computes nothing but the sequence's newest output."""
        return self.length == 1 and self.start >= self.sequence.num_prompt_tokens and self.samples


class Batch(NamedTuple):
    """One step. Decode rows come first, then prefills, both in order of admission; `failed` are out of the queues."""

    chunks: list[Chunk]
    admitted: list[int]  # rows in a batch for the first time
    readmitted: list[tuple[int, int]]  # row, ns that it was preempted
    failed: list[Failure]
    preemptions: int
    decode_rows: int

    @property
    def prefill_tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks[self.decode_rows :])
