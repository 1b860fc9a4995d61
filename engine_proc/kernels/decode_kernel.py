"""Decode attention straight from KV blocks on a CPU, compiled with numba: no gather, no padded lengths, no masks.

One task is one row and one KV head: it stores the row's new K and V, then attends with the head's group of queries.
Accumulates in float32 whatever the cache holds. Its plain twin is `decode_attention.GatherDecode`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import carray, njit

from engine_proc.kernels.compile_kernel import compile_kernel
from engine_proc.kernels.cpu_vectors import CACHE_LINE, fetch_line, lanes_of, make_intrinsics, softmax
from engine_proc.kernels.threads import find_gomp, thread_functions
from harness.common.nogil_numba import pointer

#: Names of the int64 parameters of a kernel, in order. Addresses unless said otherwise.
FIELDS = (
    "q", "k", "v", "out", "keys", "values", "tables", "lengths", "scratch",
    "q_stride", "k_stride", "v_stride", "table_stride", "scratch_stride",  # in elements
    "rows", "heads", "kv_heads", "block_size", "scale",  # scale: the bits of a float64
)  # fmt: skip
FIELD = {name: i for i, name in enumerate(FIELDS)}
_NUM_FIELDS = len(FIELDS)
(_Q, _K, _V, _OUT, _KEYS, _VALUES, _TABLES, _LENGTHS, _SCRATCH, _Q_STRIDE, _K_STRIDE, _V_STRIDE, _TABLE_STRIDE,
 _SCRATCH_STRIDE, _ROWS, _HEADS, _KV_HEADS, _BLOCK_SIZE, _SCALE) = range(_NUM_FIELDS)  # fmt: skip

WRITE_FIELDS = (
    "k", "v", "keys", "values", "blocks", "offsets", "k_stride", "v_stride", "tokens", "kv_heads", "block_size",
)  # fmt: skip
WRITE_FIELD = {name: i for i, name in enumerate(WRITE_FIELDS)}
_NUM_WRITE_FIELDS = len(WRITE_FIELDS)
(_W_K, _W_V, _W_KEYS, _W_VALUES, _W_BLOCKS, _W_OFFSETS, _W_K_STRIDE, _W_V_STRIDE, _W_TOKENS, _W_KV_HEADS,
 _W_BLOCK_SIZE) = range(_NUM_WRITE_FIELDS)  # fmt: skip
#: So many bytes of one head's K, and as many of its V, are fetched long before they are used; they fit a second-level
#: cache of 512 KB, with the next head's K. What is beyond is fetched a block before.
_KEPT = 1 << 17


class Kernels(NamedTuple):
    """Compiled for one head size and one dtype. `run(kernel, params, tasks)` calls them."""

    decode: Any
    write: Any


def scratch_floats(max_tokens: int, head_dim: int) -> int:
    """Floats of scratch memory that one thread of the decode kernel needs."""
    return -(-max_tokens // 16) * 16 + 2 * head_dim + 16


@cache
def make_kernels(head_dim: int, dtype: torch.dtype) -> Kernels:
    """Compile for one head size and dtype (float32 or bfloat16); takes some seconds if none is kept on disk."""
    dim, bf16 = head_dim, dtype is torch.bfloat16
    size = 2 if bf16 else 4
    scores, accumulate, widen, narrow, copy = make_intrinsics(dim, bf16)
    lanes = lanes_of(dim)
    thread, threads = thread_functions()

    @njit(nogil=True, error_model="numpy")
    def attend(p: Any, scale: float, part: int, parts: int, task: int) -> None:
        """One row's query group of one KV head, its new token stored before."""
        block_size, kv_heads, stride = p[_BLOCK_SIZE], p[_KV_HEADS], p[_TABLE_STRIDE]
        lengths = carray(pointer(p[_LENGTHS]), (p[_ROWS],), np.int64)
        tables = carray(pointer(p[_TABLES]), (p[_ROWS], stride), np.int64)
        head_size = block_size * dim * size  # bytes of a head's part of a block
        block_bytes = kv_heads * head_size
        row, head_bytes = task // kv_heads, task % kv_heads * head_size
        length, table = lengths[row], tables[row]
        last = length - 1
        last_block = last // block_size

        # What the thread's next task is going to read, and what its last one did not fetch of this one's keys.
        then = min(task + parts, p[_ROWS] * kv_heads - 1)
        then_table, then_bytes = tables[then // kv_heads], then % kv_heads * head_size
        then_last = (lengths[then // kv_heads] - 1) // block_size
        kept = _KEPT // head_size
        fetched = (lengths[(task - parts) // kv_heads] - 1) // block_size + 1 if task >= parts else 0
        for i in range(fetched, min(kept, last_block + 1)):
            for line in range(0, head_size, CACHE_LINE):
                fetch_line(p[_KEYS] + table[i] * block_bytes + head_bytes + line)

        head = task % kv_heads
        place = table[last_block] * block_bytes + head_bytes + (last % block_size) * dim * size
        copy(p[_KEYS] + place, p[_K] + (row * p[_K_STRIDE] + head * dim) * size)
        copy(p[_VALUES] + place, p[_V] + (row * p[_V_STRIDE] + head * dim) * size)
        scratch = p[_SCRATCH] + part * p[_SCRATCH_STRIDE] * 4
        query, acc, weights = scratch, scratch + 4 * dim, scratch + 8 * dim
        line = carray(pointer(weights), (length,), np.float32)
        sums = carray(pointer(acc), (dim,), np.float32)
        group = p[_HEADS] // kv_heads
        for member in range(head * group, head * group + group):
            widen(query, p[_Q] + (row * p[_Q_STRIDE] + member * dim) * size, np.float32(scale))
            for first in range(0, length, block_size):
                i = first // block_size
                here = table[i] * block_bytes + head_bytes
                later = p[_VALUES] + here
                if i >= kept:
                    later = p[_KEYS] + table[min(i + 1, last_block)] * block_bytes + head_bytes
                count = min(block_size, length - first)
                if block_size % lanes == 0:  # whole vectors; what lies beyond the last token is not looked at
                    count = (count + lanes - 1) // lanes * lanes
                scores(weights + 4 * first, query, p[_KEYS] + here, count, later)
            total = softmax(line, length)
            sums[:] = np.float32(0.0)
            for first in range(0, length, block_size):
                i = first // block_size
                block = p[_VALUES] + table[i] * block_bytes + head_bytes
                later = p[_KEYS] + then_table[min(i, then_last)] * block_bytes + then_bytes
                if i >= kept:
                    later = p[_VALUES] + table[min(i + 1, last_block)] * block_bytes + head_bytes
                accumulate(acc, weights + 4 * first, block, min(block_size, length - first), later)
            narrow(p[_OUT] + (row * p[_HEADS] + member) * dim * size, acc, np.float32(1.0) / total)

    def decode(params: int) -> None:
        p = carray(pointer(params), (_NUM_FIELDS,), np.int64)
        scale = carray(pointer(params + 8 * _SCALE), (1,), np.float64)[0]
        kv_heads, part, parts = p[_KV_HEADS], thread(), threads()
        for task in range(part, p[_ROWS] * kv_heads, parts):
            attend(p, scale, part, parts, task)

    def write(params: int) -> None:
        p = carray(pointer(params), (_NUM_WRITE_FIELDS,), np.int64)
        tokens, kv_heads, block_size = p[_W_TOKENS], p[_W_KV_HEADS], p[_W_BLOCK_SIZE]
        blocks = carray(pointer(p[_W_BLOCKS]), (tokens,), np.int64)
        offsets = carray(pointer(p[_W_OFFSETS]), (tokens,), np.int64)
        part, parts = thread(), threads()
        for token in range(tokens * part // parts, tokens * (part + 1) // parts):
            for head in range(kv_heads):
                place = ((blocks[token] * kv_heads + head) * block_size + offsets[token]) * dim * size
                copy(p[_W_KEYS] + place, p[_W_K] + (token * p[_W_K_STRIDE] + head * dim) * size)
                copy(p[_W_VALUES] + place, p[_W_V] + (token * p[_W_V_STRIDE] + head * dim) * size)

    asked = f"{head_dim} {dtype} {find_gomp() is not None}"
    return Kernels(compile_kernel(decode, asked), compile_kernel(write, asked))
