"""The dense KV cache: one slot a running sequence, its length cut into blocks that are allocated when first needed."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from harness.common.errors import ConfigError

#: Tokens of a block on a CPU: products over a contiguous block are 3-5 times as fast as over a slice of a longer one.
CPU_BLOCK_TOKENS = 128


class KVShape:
    """Sizes of a cache. `block_bytes` is one block of every slot, all layers, K and V."""

    def __init__(
        self, layers: int, heads: int, head_dim: int, num_slots: int, max_tokens: int, block_tokens: int,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self.block = (2, layers, num_slots, heads, block_tokens, head_dim)
        self.block_tokens = block_tokens
        self.num_blocks = -(-max_tokens // block_tokens)
        self.block_bytes = math.prod(self.block) * dtype.itemsize
        self.dtype = dtype

    def fit(self, budget_bytes: int) -> int:
        """Blocks a sequence that fit the budget. Raises ConfigError where not one does."""
        blocks = min(self.num_blocks, budget_bytes // self.block_bytes)
        if blocks < 1:
            raise ConfigError(
                f"max_batch_size {self.block[2]} needs {self.block_bytes / 1e9:.1f} GB of KV cache for the first "
                f"{self.block_tokens} tokens of each sequence, and {budget_bytes / 1e9:.1f} GB are to be had"
            )
        return blocks


class DenseKVCache:
    """K and V of all slots, as a list of blocks [2, layers, slots, heads, block_tokens, head_dim] along the length.

    Cells that were never written are 0, so that masked cells stay finite. A new block is committed by the operating
    system page by page, when first written.
    """

    def __init__(self, shape: KVShape, device: torch.device) -> None:
        self._shape = shape
        self._device = device
        self._blocks: list[Tensor] = []
        self.block_tokens = shape.block_tokens

    def reserve(self, num_tokens: int, budget_bytes: int) -> None:
        """Allocate and touch the blocks of the first `num_tokens` tokens ahead of use, as far as the budget goes."""
        wanted = min(-(-num_tokens // self.block_tokens), budget_bytes // self._shape.block_bytes)
        self.grow(wanted * self.block_tokens)
        for block in self._blocks:
            block.zero_()

    def grow(self, num_tokens: int) -> None:
        """Make sure that the first `num_tokens` positions exist."""
        while len(self._blocks) * self.block_tokens < num_tokens:
            self._blocks.append(self._new_block())

    def keys(self, layer: int, block: int, num_slots: int) -> Tensor:
        """[num_slots, heads, block_tokens, head_dim], contiguous: the first slots of a block, to read or write."""
        return self._blocks[block][0, layer, :num_slots]

    def values(self, layer: int, block: int, num_slots: int) -> Tensor:
        """As `keys`."""
        return self._blocks[block][1, layer, :num_slots]

    def write_prompt(self, layer: int, slot: int, k: Tensor, v: Tensor) -> None:
        """Store k and v [tokens, heads, head_dim] at positions 0.. of a slot."""
        for number, start in enumerate(range(0, k.shape[0], self.block_tokens)):
            piece = slice(start, start + self.block_tokens)
            size = min(self.block_tokens, k.shape[0] - start)
            block = self._blocks[number]
            block[0, layer, slot, :, :size] = k[piece].transpose(0, 1)
            block[1, layer, slot, :, :size] = v[piece].transpose(0, 1)

    def write_tokens(self, layer: int, block: int, slots: Tensor, offsets: Tensor, k: Tensor, v: Tensor) -> None:
        """Store one token a row: k and v [rows, heads, head_dim] at `offsets` within `block` of `slots`."""
        self._blocks[block][0, layer][slots, :, offsets] = k
        self._blocks[block][1, layer][slots, :, offsets] = v

    def _new_block(self) -> Tensor:
        if self._device.type != "cpu":
            return torch.zeros(self._shape.block, dtype=self._shape.dtype, device=self._device)
        # calloc by way of NumPy: torch.zeros would commit every page of every slot at once
        return (
            torch.from_numpy(np.zeros(self._shape.block_bytes, dtype=np.uint8))
            .view(self._shape.dtype)
            .view(self._shape.block)
        )
