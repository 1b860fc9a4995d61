"""Attention of one pass over the paged KV cache: decode rows, pieces of prompts, or both in one flat row of tokens.

A pass is its spans' tokens in order, those of length 1 first, then padding that belongs to nobody: it attends to
nothing, comes out as zeros, and never reaches the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_proc.attention.decode_attention import DecodeMaker, Gathered, PieceAttention, Span
from engine_proc.attention.kv_cache import PagedKVCache


class PagedAttention:
    """Decode rows straight from the blocks; a prompt's first piece within itself; a later piece over its blocks."""

    def __init__(
        self, cache: PagedKVCache, maker: DecodeMaker, spans: Sequence[Span], padding: int, dtype: torch.dtype,
        device: torch.device,
    ) -> None:  # fmt: skip
        self._num_rows = sum(span.length == 1 for span in spans)
        rows, pieces = spans[: self._num_rows], spans[self._num_rows :]
        assert all(span.length == 1 for span in rows), "spans of length 1 come first"
        self._decode = maker.decode(rows) if rows else None
        compiled = maker.pieces(pieces) if pieces and not maker.plain_first else None
        self._prefill: _Prefill | _CompiledPieces | None = None
        if compiled is not None:
            self._prefill = _CompiledPieces(maker, compiled, pieces)
        elif pieces:
            self._prefill = _Prefill(cache, maker, pieces, dtype, device)
        self._padding = padding

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        cut = self._num_rows
        outs = []
        if self._decode is not None:
            outs.append(self._decode(layer, q[:cut], k[:cut], v[:cut], scale))
        if self._prefill is not None:
            outs += self._prefill(layer, q[cut:], k[cut:], v[cut:], scale)
        if self._padding:
            outs.append(q.new_zeros((self._padding, q.shape[1] * q.shape[2])))
        return outs[0] if len(outs) == 1 else torch.cat(outs)


class _CompiledPieces:
    """Pieces of prompts, longer than one token each, straight from the blocks."""

    def __init__(self, maker: DecodeMaker, attend: PieceAttention, spans: Sequence[Span]) -> None:
        self._num_tokens = sum(span.length for span in spans)
        self._write = maker.writer(spans)
        self._attend = attend

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> list[Tensor]:
        q, k, v = q[: self._num_tokens], k[: self._num_tokens], v[: self._num_tokens]
        self._write(layer, k, v)
        out = q.new_empty((self._num_tokens, q.shape[1] * q.shape[2]))
        self._attend(layer, q, out, scale)
        return [out]


class _Group(NamedTuple):
    """Neighbouring first pieces of equal length, or one later piece: `attend`, or else what a gather needs."""

    length: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls
    start: int = 0
    attend: PieceAttention | None = None
    table: Tensor | None = None
    mask: Tensor | None = None


class _Prefill:
    """Pieces of prompts, longer than one token each, with torch's attention where nothing of our own is faster."""

    def __init__(
        self, cache: PagedKVCache, maker: DecodeMaker, spans: Sequence[Span], dtype: torch.dtype, device: torch.device
    ) -> None:
        self._cache = cache
        self._num_tokens = sum(span.length for span in spans)
        self._write = maker.writer(spans)
        self._groups: list[_Group] = []
        for (length, is_first), group in groupby(spans, key=lambda span: (span.length, span.start == 0)):
            members = list(group)
            if is_first:
                self._groups.append(_Group(length, len(members)))
                continue
            for span in members:
                attend = maker.pieces([span])
                if attend is not None:
                    self._groups.append(_Group(length, 1, span.start, attend))
                    continue
                blocks = span.table[: -(-(span.start + length) // cache.block_size)]
                table, mask = torch.tensor(blocks, device=device), causal_mask(span, dtype, device)
                self._groups.append(_Group(length, 1, span.start, None, table, mask))

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> list[Tensor]:
        k, v = k[: self._num_tokens], v[: self._num_tokens]
        self._write(layer, k, v)
        outs, first = [], 0
        for group in self._groups:
            end = first + group.length * group.count
            if group.attend is not None:
                outs.append(q.new_empty((group.length, q.shape[1] * q.shape[2])))
                group.attend(layer, q[first:end], outs[-1], scale)
                first = end
                continue
            query = _batched(q[first:end], group.count)
            if group.table is None:
                keys, values = _batched(k[first:end], group.count), _batched(v[first:end], group.count)
            else:
                dense = self._cache.gather(layer, group.table, group.start + group.length)
                keys, values = dense[0].unsqueeze(0), dense[1].unsqueeze(0)
            out = F.scaled_dot_product_attention(
                query, *repeated(keys, values, query.shape[1]), attn_mask=group.mask, is_causal=group.mask is None,
                scale=scale,
            )  # fmt: skip
            outs.append(out.transpose(1, 2).reshape(end - first, -1))
            first = end
        return outs


class DenseAttention:
    """The plain twin, `--paged-attn off`: each sequence's blocks copied into a dense K and V, then plain attention."""

    def __init__(
        self, cache: PagedKVCache, spans: Sequence[Span], padding: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._cache = cache
        self._spans = spans
        self._padding = padding
        self._num_tokens = sum(span.length for span in spans)
        self._write = Gathered(cache, device).writer(spans)
        self._tables = [torch.tensor(span.table, device=device) for span in spans]
        self._masks = [causal_mask(span, dtype, device) if span.length > 1 else None for span in spans]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        self._write(layer, k[: self._num_tokens], v[: self._num_tokens])
        outs, first = [], 0
        for span, table, mask in zip(self._spans, self._tables, self._masks, strict=True):
            query = q[first : first + span.length].transpose(0, 1).unsqueeze(0)
            dense = self._cache.gather(layer, table, span.start + span.length)
            keys, values = repeated(dense[0].unsqueeze(0), dense[1].unsqueeze(0), query.shape[1])
            out = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
            outs.append(out.transpose(1, 2).reshape(span.length, -1))
            first += span.length
        if self._padding:
            outs.append(q.new_zeros((self._padding, q.shape[1] * q.shape[2])))
        return torch.cat(outs)


def causal_mask(span: Span, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[length, start + length]: 0 for what a token may see, -inf for what comes after it."""
    hidden = torch.ones((span.length, span.start + span.length), dtype=torch.bool, device=device).triu(span.start + 1)
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))


def repeated(keys: Tensor, values: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """K and V [batch, kv_heads, tokens, head_dim] once for each of `heads` query heads."""
    group = heads // keys.shape[1]
    if group == 1:
        return keys, values
    return keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)


def _batched(x: Tensor, count: int) -> Tensor:
    """[count * length, heads, dim] -> [count, heads, length, dim]"""
    return x.view(count, x.shape[0] // count, *x.shape[1:]).transpose(1, 2)
