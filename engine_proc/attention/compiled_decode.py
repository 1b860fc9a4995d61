"""Decode rows and cache writes with the kernels of `decode_kernel`. Importing it needs numba."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine_proc.attention.compiled_prefill import PrefillMaker
from engine_proc.attention.decode_attention import PieceAttention, Span, Writer, slots
from engine_proc.attention.kv_cache import PagedKVCache
from engine_proc.kernels.decode_kernel import FIELD, FIELDS, WRITE_FIELD, WRITE_FIELDS, make_kernels, scratch_floats
from engine_proc.kernels.prefill_kernel import fits
from engine_proc.kernels.row_products import products
from engine_proc.kernels.threads import Runner
from engine_proc.models.base import Attention


class Compiled:
    """DecodeMaker with the kernels of `decode_kernel`."""

    def __init__(self, cache: PagedKVCache, heads: int, max_tokens: int) -> None:
        self.cache = cache
        self.heads = heads
        self.kernels = make_kernels(cache.shape.head_dim, cache.shape.dtype)
        self.run = Runner()
        self.scratch = np.zeros((self.run.max_threads, scratch_floats(max_tokens, cache.shape.head_dim)), np.float32)
        self.plain_first = cache.shape.dtype is torch.bfloat16 and "amx" in products()
        self._max_tokens = max_tokens
        self._prefill: PrefillMaker | None = None

    @property
    def threads(self) -> int:
        return min(self.run.max_threads, self.scratch.shape[0])

    def decode(self, spans: Sequence[Span]) -> Attention:
        return _CompiledDecode(self, spans)

    def writer(self, spans: Sequence[Span]) -> Writer:
        return _CompiledWriter(self, spans)

    def pieces(self, spans: Sequence[Span]) -> PieceAttention | None:
        if not fits(self.cache.shape.head_dim):
            return None
        if self._prefill is None:  # compiled at the first prompt, which is warm-up's
            self._prefill = PrefillMaker(self.cache, self.heads, self._max_tokens)
        return self._prefill(spans)


class _CompiledDecode:
    def __init__(self, maker: Compiled, spans: Sequence[Span]) -> None:
        self._maker = maker
        shape = maker.cache.shape
        width = max(span.start for span in spans) // shape.block_size + 1
        self._tables = np.zeros((len(spans), width), np.int64)
        for row, span in enumerate(spans):
            used = span.start // shape.block_size + 1
            self._tables[row, :used] = span.table[:used]
        self._lengths = np.array([span.start + 1 for span in spans], np.int64)
        self._params = np.zeros(len(FIELDS), np.int64)
        self._address = self._params.ctypes.data
        self._scale = 0.0
        self._set("tables", self._tables.ctypes.data)
        self._set("lengths", self._lengths.ctypes.data)
        self._set("scratch", maker.scratch.ctypes.data)
        self._set("table_stride", width)
        self._set("scratch_stride", maker.scratch.shape[1])
        self._set("rows", len(spans))
        self._set("heads", maker.heads)
        self._set("kv_heads", shape.kv_heads)
        self._set("block_size", shape.block_size)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        maker, params = self._maker, self._params
        q, k, v = _by_head(q), _by_head(k), _by_head(v)
        out = q.new_empty((q.shape[0], q.shape[1] * q.shape[2]))
        if scale != self._scale:
            self._scale = scale
            self._set("scale", struct.unpack("<q", struct.pack("<d", scale))[0])
        cache = maker.cache
        params[:6] = (
            q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), cache.keys(layer).data_ptr(),
            cache.values(layer).data_ptr(),
        )  # fmt: skip
        params[FIELD["q_stride"] : FIELD["v_stride"] + 1] = (q.stride(0), k.stride(0), v.stride(0))
        maker.run(maker.kernels.decode, self._address, maker.threads)
        return out

    def _set(self, name: str, value: int) -> None:
        self._params[FIELD[name]] = value


class _CompiledWriter:
    def __init__(self, maker: Compiled, spans: Sequence[Span]) -> None:
        self._maker = maker
        self._blocks, self._offsets = (np.array(x, np.int64) for x in slots(spans, maker.cache.block_size))
        self._params = np.zeros(len(WRITE_FIELDS), np.int64)
        self._address = self._params.ctypes.data
        for name, value in (
            ("blocks", self._blocks.ctypes.data), ("offsets", self._offsets.ctypes.data),
            ("tokens", len(self._blocks)), ("kv_heads", maker.cache.shape.kv_heads),
            ("block_size", maker.cache.block_size),
        ):  # fmt: skip
            self._params[WRITE_FIELD[name]] = value

    def __call__(self, layer: int, k: Tensor, v: Tensor) -> None:
        k, v = _by_head(k), _by_head(v)
        cache = self._maker.cache
        self._params[:4] = (k.data_ptr(), v.data_ptr(), cache.keys(layer).data_ptr(), cache.values(layer).data_ptr())
        self._params[WRITE_FIELD["k_stride"] : WRITE_FIELD["v_stride"] + 1] = (k.stride(0), v.stride(0))
        self._maker.run(self._maker.kernels.write, self._address, self._maker.threads)


def _by_head(x: Tensor) -> Tensor:
    """Heads of a token next to each other, as the kernels want them; only the step from token to token is free."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
