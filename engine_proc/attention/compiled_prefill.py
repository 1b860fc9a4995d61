"""Attention of pieces of prompts with the kernel of `prefill_kernel`. Importing it needs numba."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from engine_proc.attention.decode_attention import PieceAttention, Span
from engine_proc.attention.kv_cache import PagedKVCache
from engine_proc.kernels.prefill_kernel import FIELD, FIELDS, make_prefill_kernel, scratch_floats
from engine_proc.kernels.threads import Runner


class PrefillMaker:
    """The kernel for one cache, with its scratch memory for each thread. owned by: step loop"""

    def __init__(self, cache: PagedKVCache, heads: int, max_tokens: int) -> None:
        self.cache = cache
        self.heads = heads
        self.kernel = make_prefill_kernel(cache.shape.head_dim, cache.shape.dtype)
        self.run = Runner()
        self.scratch = np.zeros((self.run.max_threads, scratch_floats(max_tokens, cache.shape.head_dim)), np.float32)

    def __call__(self, spans: Sequence[Span]) -> PieceAttention:
        return _CompiledPrefill(self, spans)


class _CompiledPrefill:
    def __init__(self, maker: PrefillMaker, spans: Sequence[Span]) -> None:
        self._maker = maker
        block_size = maker.cache.block_size
        used = [-(-(span.start + span.length) // block_size) for span in spans]
        self._tables = np.zeros((len(spans), max(used)), np.int64)
        for row, span in enumerate(spans):
            self._tables[row, : used[row]] = span.table[: used[row]]
        self._starts = np.array([span.start for span in spans], np.int64)
        self._lengths = np.array([span.length for span in spans], np.int64)
        self._firsts = np.cumsum(self._lengths) - self._lengths
        self._params = np.zeros(len(FIELDS), np.int64)
        for name, array in (
            ("tables", self._tables), ("starts", self._starts), ("lengths", self._lengths), ("firsts", self._firsts),
            ("scratch", maker.scratch),
        ):  # fmt: skip
            self._params[FIELD[name]] = array.ctypes.data
        for name, number in (
            ("table_stride", self._tables.shape[1]), ("scratch_stride", maker.scratch.shape[1]),
            ("pieces", len(spans)), ("heads", maker.heads), ("kv_heads", maker.cache.shape.kv_heads),
            ("block_size", block_size),
        ):  # fmt: skip
            self._params[FIELD[name]] = number

    def __call__(self, layer: int, q: Tensor, out: Tensor, scale: float) -> None:
        maker, params = self._maker, self._params
        if q.stride(2) != 1 or q.stride(1) != q.shape[2]:
            q = q.contiguous()
        cache = maker.cache
        params[: FIELD["tables"]] = (
            q.data_ptr(), out.data_ptr(), cache.keys(layer).data_ptr(), cache.values(layer).data_ptr()
        )  # fmt: skip
        params[FIELD["q_stride"]] = q.stride(0)
        params[FIELD["scale"]] = struct.unpack("<q", struct.pack("<d", scale))[0]
        threads = min(maker.run.max_threads, maker.scratch.shape[0])
        maker.run(maker.kernel, params.ctypes.data, threads)
