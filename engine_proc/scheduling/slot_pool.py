"""Which slot of the dense KV cache belongs to whom. Bookkeeping only, no torch; paged blocks will take its place."""

from __future__ import annotations

import heapq
from typing import Protocol


class KVPool(Protocol):
    """What the scheduler asks of whoever owns KV space."""

    def blocks_needed(self, num_tokens: int) -> int:
        """KV blocks of `num_tokens` tokens."""

    @property
    def blocks_per_sequence(self) -> int:
        """Most blocks that one sequence can ever have."""

    def can_allocate(self, num_tokens: int) -> bool:
        """Whether there is room now for one more sequence of this length, prompt and new tokens."""

    def allocate(self, num_tokens: int) -> int:
        """Reserve the room and return the slot. Only after `can_allocate`."""

    def free(self, slot: int) -> None:
        """Give a slot back. Once for each `allocate`."""


class SlotPool:
    """`num_slots` slots of `blocks_per_sequence` blocks each; the lowest free slot is handed out first.

    Low slots first keep the busy ones together, so that a decode step reads few idle ones.
    """

    def __init__(self, num_slots: int, block_tokens: int, blocks_per_sequence: int) -> None:
        self._block_tokens = block_tokens
        self._blocks_per_sequence = blocks_per_sequence
        self._free = list(range(num_slots))  # a heap: sorted already
        self._used: set[int] = set()

    @property
    def num_used(self) -> int:
        return len(self._used)

    @property
    def blocks_per_sequence(self) -> int:
        return self._blocks_per_sequence

    def blocks_needed(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_tokens)

    def can_allocate(self, num_tokens: int) -> bool:
        return bool(self._free) and self.blocks_needed(num_tokens) <= self._blocks_per_sequence

    def allocate(self, num_tokens: int) -> int:
        assert self.can_allocate(num_tokens), "allocate without can_allocate"
        slot = heapq.heappop(self._free)
        self._used.add(slot)
        return slot

    def free(self, slot: int) -> None:
        self._used.remove(slot)  # a KeyError here is a slot freed twice
        heapq.heappush(self._free, slot)
