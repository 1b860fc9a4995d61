"""Attention of one step over the dense KV cache: prompts by themselves, decode rows over their cached tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_proc.kv_cache import DenseKVCache


class PrefillAttention:
    """Causal attention within each prompt of a flat row of prompts; K and V go to the cache.

    Neighbours of equal length share a call. `padding` rows at the end belong to nobody: they attend to nothing, come
    out as zeros, and never reach the cache.
    """

    def __init__(self, cache: DenseKVCache, slots: Sequence[int], lengths: Sequence[int], padding: int = 0) -> None:
        self._cache = cache
        self._slots = slots
        self._lengths = lengths
        self._padding = padding
        self._groups = [(length, len(list(group))) for length, group in groupby(lengths)]
        cache.grow(max(lengths))

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """q, k, v [tokens, heads, head_dim] -> [tokens, heads * head_dim]."""
        start = 0
        for slot, length in zip(self._slots, self._lengths, strict=True):
            self._cache.write_prompt(layer, slot, k[start : start + length], v[start : start + length])
            start += length
        start = 0
        outs = []
        for length, count in self._groups:
            part = slice(start, start + length * count)
            shape = (count, length, *q.shape[1:])
            query, keys, values = (t[part].view(shape).transpose(1, 2) for t in (q, k, v))
            out = F.scaled_dot_product_attention(query, keys, values, is_causal=length > 1, scale=scale)
            outs.append(out.transpose(1, 2).reshape(count * length, -1))
            start += length * count
        if self._padding:
            outs.append(outs[0].new_zeros((self._padding, outs[0].shape[1])))
        return outs[0] if len(outs) == 1 else torch.cat(outs)


class _Write(NamedTuple):
    """Decode rows whose new token falls into one block."""

    block: int
    rows: Tensor
    slots: Tensor
    offsets: Tensor


class DecodeAttention:
    """One query a row over the row's slot. Computes all slots up to the highest busy one, and masks.

    `matmul`: products over whole blocks with a softmax between (4 times as fast as SDPA with one query row in bf16 on
    a CPU); else SDPA over the blocks put together, which is the plain twin, and right on CUDA.
    """

    def __init__(
        self, cache: DenseKVCache, slots: Sequence[int], positions: Sequence[int], device: torch.device, matmul: bool
    ) -> None:
        """`positions`: where each row's new token goes; its slot holds the tokens before it."""
        self._cache = cache
        self._matmul = matmul
        self._num_slots = max(slots) + 1
        self._num_blocks = max(positions) // cache.block_tokens + 1
        cache.grow(max(positions) + 1)
        self._dense = list(slots) == list(range(len(slots)))
        self._slots = torch.tensor(slots, device=device)
        # One block leaves the unused end of it out on CUDA, where slices cost nothing.
        whole = matmul or self._num_blocks > 1
        self._width = self._num_blocks * cache.block_tokens if whole else max(positions) + 1
        self._mask = self._make_mask(slots, positions).to(device)
        self._writes = self._make_writes(slots, positions, device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """q, k, v [rows, heads, head_dim] -> [rows, heads * head_dim]."""
        for write in self._writes:
            whole = len(self._writes) == 1
            self._cache.write_tokens(
                layer, write.block, write.slots, write.offsets, k if whole else k[write.rows],
                v if whole else v[write.rows],
            )  # fmt: skip
        by_slot = q if self._dense else q.new_zeros((self._num_slots, *q.shape[1:])).index_copy_(0, self._slots, q)
        out = self._products(layer, by_slot, scale) if self._matmul else self._sdpa(layer, by_slot, scale)
        return out if self._dense else out.index_select(0, self._slots)

    def _products(self, layer: int, q: Tensor, scale: float) -> Tensor:
        num_slots, heads, dim = q.shape
        flat = (num_slots * heads, self._cache.block_tokens, dim)
        query = q.reshape(num_slots * heads, dim, 1)
        pieces = []
        for block in range(self._num_blocks):
            keys = self._cache.keys(layer, block, num_slots).view(flat)
            # oneDNN's bf16 product prefers the tall side first, MKL's fp32 product the other way round
            tall = q.dtype == torch.bfloat16
            scores = torch.bmm(keys, query) if tall else torch.bmm(query.transpose(1, 2), keys.transpose(1, 2))
            pieces.append(scores.view(num_slots, heads, 1, -1))
        scores = (torch.cat(pieces, dim=-1) if len(pieces) > 1 else pieces[0]).float()
        weights = torch.softmax(scores.mul_(scale).add_(self._mask), dim=-1).to(q.dtype)
        out: Tensor | None = None
        for block, weight in enumerate(weights.split(self._cache.block_tokens, dim=-1)):
            values = self._cache.values(layer, block, num_slots).view(flat)
            part = torch.bmm(weight.reshape(num_slots * heads, 1, -1), values)
            out = part.float() if out is None and self._num_blocks > 1 else part if out is None else out.add_(part)
        assert out is not None
        return out.to(q.dtype).view(num_slots, heads * dim)

    def _sdpa(self, layer: int, q: Tensor, scale: float) -> Tensor:
        num_slots, heads, dim = q.shape
        blocks = range(self._num_blocks)
        keys = torch.cat([self._cache.keys(layer, block, num_slots) for block in blocks], dim=2)
        values = torch.cat([self._cache.values(layer, block, num_slots) for block in blocks], dim=2)
        keys, values = keys[:, :, : self._width], values[:, :, : self._width]
        mask = self._mask.to(q.dtype)
        out = F.scaled_dot_product_attention(q.unsqueeze(2), keys, values, attn_mask=mask, scale=scale)
        return out.reshape(num_slots, heads * dim)

    def _make_mask(self, slots: Sequence[int], positions: Sequence[int]) -> Tensor:
        """float32 [slots, 1, 1, width]: 0 up to a row's position, -inf beyond. Idle slots see all: their result is
        thrown away, but a row of -inf would be NaN."""
        last = torch.full((self._num_slots,), self._width)
        last[torch.tensor(slots)] = torch.tensor(positions)
        hidden = torch.arange(self._width) > last.unsqueeze(1)
        return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf")).view(self._num_slots, 1, 1, -1)

    def _make_writes(self, slots: Sequence[int], positions: Sequence[int], device: torch.device) -> list[_Write]:
        size = self._cache.block_tokens
        rows_of: dict[int, list[int]] = {}
        for row, position in enumerate(positions):
            rows_of.setdefault(position // size, []).append(row)

        def on_device(values: list[int]) -> Tensor:
            return torch.tensor(values, device=device)

        return [
            _Write(block, on_device(rows), on_device([slots[r] for r in rows]),
                   on_device([positions[r] % size for r in rows]))
            for block, rows in rows_of.items()
        ]  # fmt: skip
