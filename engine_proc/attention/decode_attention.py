"""One query a row over the row's KV blocks, in plain torch; `compiled_decode` does the same faster on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_proc.attention.kv_cache import PagedKVCache
from engine_proc.models.base import Attention
from engine_proc.scheduling.block_pool import PADDING_BLOCK


class Span(NamedTuple):
    """Tokens [start, start + length) of one sequence, whose K and V are at `table`, computed in this pass."""

    table: list[int]
    start: int
    length: int


class DecodeMaker(Protocol):
    """Makes the attention of a pass's decode rows, and stores K and V of its other tokens.

    `plain_first`: torch's attention is faster than `pieces` for what attends to nothing but itself.
    """

    plain_first: bool

    def decode(self, spans: Sequence[Span]) -> Attention:
        """`spans` of length 1, one a row."""

    def writer(self, spans: Sequence[Span]) -> Writer:
        """For the tokens of all `spans`, in order."""

    def pieces(self, spans: Sequence[Span]) -> PieceAttention | None:
        """Attention of pieces of prompts straight from the blocks, after `writer`; None: there is none here."""


class Writer(Protocol):
    """Stores K and V [tokens, kv_heads, head_dim] of the tokens it was made for."""

    def __call__(self, layer: int, k: Tensor, v: Tensor) -> None: ...


class PieceAttention(Protocol):
    """Attends with q [tokens, heads, head_dim] of the pieces it was made for, whose K and V are in the cache.

    Writes to the first rows of `out` [tokens or more, heads * head_dim], which is contiguous.
    """

    def __call__(self, layer: int, q: Tensor, out: Tensor, scale: float) -> None: ...


def slots(spans: Sequence[Span], block_size: int) -> tuple[list[int], list[int]]:
    """Block and offset within it of every token of `spans`."""
    places = [(span.table[p // block_size], p % block_size)
              for span in spans for p in range(span.start, span.start + span.length)]  # fmt: skip
    return [block for block, _ in places], [offset for _, offset in places]


class GatherInputs(NamedTuple):
    """int64 tensors on the device, one row each. A padded row has table 0, length 1, block 0 and offset 0."""

    tables: Tensor  # [rows, width]
    lengths: Tensor  # tokens to attend to, the new one included
    blocks: Tensor
    offsets: Tensor


def gather_inputs(spans: Sequence[Span], block_size: int, num_rows: int, width: int) -> list[list[int]]:
    """What a GatherInputs holds, on the host, padded to `num_rows` rows and tables of `width` blocks; tables flat."""
    padding = num_rows - len(spans)
    tables: list[int] = []
    for span in spans:
        used = min(len(span.table), span.start // block_size + 1)
        tables += span.table[:used] + [PADDING_BLOCK] * (width - used)
    blocks, offsets = slots(spans, block_size)
    return [
        tables + [PADDING_BLOCK] * (width * padding), [span.start + 1 for span in spans] + [1] * padding,
        blocks + [PADDING_BLOCK] * padding, offsets + [0] * padding,
    ]  # fmt: skip


class GatherDecode:
    """Gathers the blocks of each row into a dense tensor and attends with a mask: plain torch, fixed shapes, no sync.

    What lies beyond a row's length may be anything, NaN too: it is replaced before the product.
    """

    def __init__(self, cache: PagedKVCache, inputs: GatherInputs) -> None:
        self._cache = cache
        self._inputs = inputs
        width = inputs.tables.shape[1] * cache.block_size
        self._seen = torch.arange(width, device=inputs.lengths.device) < inputs.lengths.unsqueeze(1)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        self._cache.write(layer, self._inputs.blocks, self._inputs.offsets, k, v)
        rows, heads, dim = q.shape
        kv_heads = k.shape[1]
        keys, values = (self._gather(blocks) for blocks in (self._cache.keys(layer), self._cache.values(layer)))
        # The queries of a group stand where the tokens of a prompt would: no K or V is repeated.
        query = q.reshape(rows, kv_heads, heads // kv_heads, dim)
        mask = self._seen.view(rows, 1, 1, -1)
        out = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
        return out.reshape(rows, heads * dim)

    def _gather(self, blocks: Tensor) -> Tensor:
        rows, width = self._inputs.tables.shape
        heads, size, dim = blocks.shape[1:]
        dense = blocks[self._inputs.tables].transpose(1, 2).reshape(rows, heads, width * size, dim)
        return dense.masked_fill(~self._seen.view(rows, 1, -1, 1), 0.0)


class Gathered:
    """DecodeMaker in plain torch."""

    plain_first = True

    def __init__(self, cache: PagedKVCache, device: torch.device) -> None:
        self._cache = cache
        self._device = device

    def decode(self, spans: Sequence[Span]) -> Attention:
        width = max(span.start for span in spans) // self._cache.block_size + 1
        tables, *others = gather_inputs(spans, self._cache.block_size, len(spans), width)
        first = torch.tensor(tables, device=self._device).view(len(spans), width)
        return GatherDecode(self._cache, GatherInputs(first, *(torch.tensor(x, device=self._device) for x in others)))

    def writer(self, spans: Sequence[Span]) -> Writer:
        blocks, offsets = (torch.tensor(x, device=self._device) for x in slots(spans, self._cache.block_size))
        cache = self._cache

        def write(layer: int, k: Tensor, v: Tensor) -> None:
            cache.write(layer, blocks, offsets, k, v)

        return write

    def pieces(self, spans: Sequence[Span]) -> PieceAttention | None:
        return None
