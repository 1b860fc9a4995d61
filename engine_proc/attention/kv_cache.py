"""The paged KV cache: K and V in blocks of `block_size` tokens. Whose a block is, the block pool knows."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.common.errors import ConfigError

#: Tokens of each sequence of a batch for which a cache whose size nobody chose must have room.
LEAST_TOKENS = 128


class KVShape(NamedTuple):
    """Sizes of a cache apart from its number of blocks."""

    layers: int
    kv_heads: int
    block_size: int
    head_dim: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """One block: all layers, K and V."""
        return 2 * self.layers * self.kv_heads * self.block_size * self.head_dim * self.dtype.itemsize


def choose_num_blocks(
    shape: KVShape, wanted: int | None, memory_bytes: int | None, free_bytes: int, max_batch_size: int, max_tokens: int
) -> int:
    """Blocks of the cache, the padding block included.

    `wanted` (`--kv-blocks`, without the padding block) or `memory_bytes` (`--kv-memory`) say how many; else as many as
    `max_batch_size` sequences of `max_tokens` fill, as far as `free_bytes` go. Raises ConfigError naming what is too
    large or too small.
    """
    if wanted is not None and memory_bytes is not None:
        raise ConfigError("kv_blocks and kv_memory both say how large the KV cache is: give one of them")
    budget = free_bytes if memory_bytes is None else memory_bytes
    fitting = budget // shape.block_bytes - 1
    if wanted is not None:
        blocks, asked, least = wanted, "kv_blocks", max(wanted, 1)
    elif memory_bytes is not None:
        blocks, asked, least = fitting, "kv_memory", 1
    else:
        blocks, asked, least = min(fitting, max_batch_size * -(-max_tokens // shape.block_size)), "max_batch_size", 1
        least = -(-max_batch_size * min(max_tokens, LEAST_TOKENS) // shape.block_size)
    if blocks < least or least > fitting:
        raise ConfigError(
            f"{asked}: {least} KV blocks of {shape.block_size} tokens and the padding block take "
            f"{(least + 1) * shape.block_bytes / 1e6:.0f} MB, and {budget / 1e6:.0f} MB are to be had"
        )
    return blocks + 1


class PagedKVCache:
    """K and V of all layers, [layers, num_blocks, kv_heads, block_size, head_dim] each. owned by: step loop

    A block's tokens of one head lie together, so that a product over them needs no copy. Block 0 is the padding block.
    """

    def __init__(self, shape: KVShape, num_blocks: int, device: torch.device) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        sizes = (2, shape.layers, num_blocks, shape.kv_heads, shape.block_size, shape.head_dim)
        self._data = _zeros(sizes, shape.dtype, device)
        self._keys = list(self._data[0].unbind(0))
        self._values = list(self._data[1].unbind(0))

    @property
    def block_size(self) -> int:
        return self.shape.block_size

    def keys(self, layer: int) -> Tensor:
        """[num_blocks, kv_heads, block_size, head_dim]"""
        return self._keys[layer]

    def values(self, layer: int) -> Tensor:
        """As `keys`."""
        return self._values[layer]

    def write(self, layer: int, blocks: Tensor, offsets: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k and v [tokens, kv_heads, head_dim] at `offsets` within `blocks`, int64 [tokens] each."""
        self._keys[layer][blocks, :, offsets] = k
        self._values[layer][blocks, :, offsets] = v

    def gather(self, layer: int, table: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """The first `num_tokens` tokens of one sequence as dense K and V [kv_heads, num_tokens, head_dim]."""
        return self._dense(self._keys[layer], table, num_tokens), self._dense(self._values[layer], table, num_tokens)

    @torch.inference_mode()
    def fill(self, value: float, blocks: slice = slice(None)) -> None:
        """Overwrite whole blocks in all layers: tests poison what nobody may read."""
        self._data[:, :, blocks] = value

    def touch(self, budget_bytes: int) -> None:
        """Have the operating system commit the first blocks now, as far as the budget goes, and not in a timed step."""
        if self._data.device.type == "cpu":
            self._data[:, :, : max(1, min(self.num_blocks, budget_bytes // self.shape.block_bytes))] = 0.0

    def _dense(self, blocks: Tensor, table: Tensor, num_tokens: int) -> Tensor:
        heads, size, dim = blocks.shape[1:]
        return blocks[table].transpose(0, 1).reshape(heads, table.numel() * size, dim)[:, :num_tokens]


def _zeros(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(sizes, dtype=dtype, device=device)
    # calloc by way of NumPy: the operating system commits a page when it is first written
    raw = np.zeros(math.prod(sizes) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(sizes)
