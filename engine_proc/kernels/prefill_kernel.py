"""Attention of pieces of prompts straight from KV blocks on a CPU, compiled with numba: no gather, no masks.

One task is one piece and one query head. It copies the head's keys (transposed) and values to float32 scratch memory,
then takes a few queries at a time through two products of register tiles, with a whole softmax between them. Products
and sums are float32 whatever the cache holds. Its plain twin is torch's attention in `attention.passes._Prefill`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from llvmlite import binding, ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from engine_proc.kernels.compile_kernel import compile_kernel
from engine_proc.kernels.cpu_vectors import F32, FLAGS, I32, make_intrinsics, softmax
from engine_proc.kernels.threads import find_gomp, thread_functions
from harness.common.nogil_numba import pointer

#: Names of the int64 parameters, in order. Addresses unless said otherwise.
FIELDS = (
    "q", "out", "keys", "values", "tables", "starts", "lengths", "firsts", "scratch",
    "q_stride", "table_stride", "scratch_stride",  # in elements
    "pieces", "heads", "kv_heads", "block_size", "scale",  # scale: the bits of a float64
)  # fmt: skip
FIELD = {name: i for i, name in enumerate(FIELDS)}
_NUM_FIELDS = len(FIELDS)
(_Q, _OUT, _KEYS, _VALUES, _TABLES, _STARTS, _LENGTHS, _FIRSTS, _SCRATCH, _Q_STRIDE, _TABLE_STRIDE, _SCRATCH_STRIDE,
 _PIECES, _HEADS, _KV_HEADS, _BLOCK_SIZE, _SCALE) = range(_NUM_FIELDS)  # fmt: skip

_LANES = 16
#: Queries of a tile: with four vectors a query they fill the 32 registers of AVX-512, with one the 16 of AVX2.
_ROWS = 6


def fits(head_dim: int) -> bool:
    """Whether the kernel is for heads of this size: whole vectors."""
    return head_dim % _LANES == 0


def scratch_floats(max_tokens: int, head_dim: int) -> int:
    """Floats of scratch memory that one thread needs."""
    padded = -(-max_tokens // 64) * 64
    return padded * (2 * head_dim + _ROWS) + head_dim * (2 * _ROWS + _LANES) + 64


def _vectors_a_tile() -> int:
    return 4 if binding.get_host_cpu_features().get("avx512f") else 1


def _make_tile(count: int) -> Any:
    """C = A B for A [_ROWS, depth] and B [depth, count * _LANES], all float32, in registers."""
    floats = ir.VectorType(F32, _LANES)

    def at(builder: Any, base: Any, index: Any, offset: int, kind: Any) -> Any:
        address = builder.add(base, builder.mul(index, ir.Constant(index.type, 4)))
        return builder.inttoptr(builder.add(address, ir.Constant(address.type, offset)), kind.as_pointer())

    @intrinsic
    def tile(context: Any, c: Any, c_stride: Any, a: Any, a_stride: Any, b: Any, b_stride: Any, depth: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            c_at, c_step, a_at, a_step, b_at, b_step, number = args
            zero = ir.Constant(floats, [0.0] * _LANES)
            cells = [[cgutils.alloca_once_value(builder, zero) for _ in range(count)] for _ in range(_ROWS)]
            lines = [builder.add(a_at, builder.mul(a_step, ir.Constant(a_step.type, 4 * row))) for row in range(_ROWS)]
            with cgutils.for_range(builder, number, intp=number.type) as loop:
                place = builder.mul(loop.index, b_step)
                others = [builder.load(at(builder, b_at, place, 4 * _LANES * i, floats), align=4)
                          for i in range(count)]  # fmt: skip
                for row in range(_ROWS):
                    scalar = builder.load(at(builder, lines[row], loop.index, 0, F32), align=4)
                    vector = builder.insert_element(ir.Constant(floats, ir.Undefined), scalar, ir.Constant(I32, 0))
                    mask = ir.Constant(ir.VectorType(I32, _LANES), [0] * _LANES)
                    vector = builder.shuffle_vector(vector, vector, mask)
                    for cell, other in zip(cells[row], others, strict=True):
                        product = builder.fmul(vector, other, flags=FLAGS)
                        builder.store(builder.fadd(builder.load(cell), product, flags=FLAGS), cell)
            for row in range(_ROWS):
                place = builder.mul(c_step, ir.Constant(c_step.type, row))
                for i, cell in enumerate(cells[row]):
                    builder.store(builder.load(cell), at(builder, c_at, place, 4 * _LANES * i, floats), align=4)
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 7), generate

    return tile


@intrinsic
def _transpose(typing_context: Any, out: Any, out_stride: Any, source: Any, source_stride: Any) -> Any:
    """out[i, j] = source[j, i] for 16 x 16 floats; strides in elements."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        floats = ir.VectorType(F32, _LANES)
        out_at, out_step, source_at, source_step = args

        def at(base: Any, step: Any, row: int) -> Any:
            return builder.inttoptr(
                builder.add(base, builder.mul(step, ir.Constant(step.type, 4 * row))), floats.as_pointer()
            )

        rows = [builder.load(at(source_at, source_step, i), align=4) for i in range(_LANES)]
        step = _LANES // 2
        while step:
            low = [lane if not lane & step else _LANES + lane - step for lane in range(_LANES)]
            high = [lane + step if not lane & step else _LANES + lane for lane in range(_LANES)]
            masks = [ir.Constant(ir.VectorType(I32, _LANES), order) for order in (low, high)]
            for i in range(_LANES):
                if not i & step:
                    pair = rows[i], rows[i + step]
                    rows[i], rows[i + step] = (builder.shuffle_vector(*pair, mask) for mask in masks)
            step //= 2
        for i, row in enumerate(rows):
            builder.store(row, at(out_at, out_step, i), align=4)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 4), generate


@cache
def make_prefill_kernel(head_dim: int, dtype: torch.dtype) -> Any:
    """Compile for one head size and dtype (float32 or bfloat16); some seconds if none is kept on disk."""
    dim, size = head_dim, 2 if dtype is torch.bfloat16 else 4
    wide = _vectors_a_tile()
    width = wide * _LANES  # keys of a panel
    columns = next(n for n in range(wide, 0, -1) if dim // _LANES % n == 0)  # vectors of a tile of the output
    score_tile, value_tile = _make_tile(wide), _make_tile(columns)
    _, _, widen, narrow, _ = make_intrinsics(dim, dtype is torch.bfloat16)
    thread, threads = thread_functions()
    span = columns * _LANES

    @njit(nogil=True, error_model="numpy")
    def load(p: Any, table: Any, head: int, total: int, panels: int, values: int, room: int) -> None:
        """Keys as panels [dim, width] and values [total, dim] in float32, from the blocks of one KV head."""
        block_size = p[_BLOCK_SIZE]
        block_bytes, head_bytes = p[_KV_HEADS] * block_size * dim * size, head * block_size * dim * size
        for first in range(0, total, _LANES):
            for t in range(first, first + _LANES):
                if t < total:
                    place = table[t // block_size] * block_bytes + head_bytes + (t % block_size) * dim * size
                    widen(room + 4 * dim * (t - first), p[_KEYS] + place, np.float32(1.0))
                    widen(values + 4 * dim * t, p[_VALUES] + place, np.float32(1.0))
            panel = panels + 4 * (first // width * width * dim + first % width)
            for d in range(0, dim, _LANES):
                _transpose(panel + 4 * width * d, width, room + 4 * d, dim)

    @njit(nogil=True, error_model="numpy")
    def attend(p: Any, scale: float, scratch: int, piece: int, head: int) -> None:
        pieces = p[_PIECES]
        start = carray(pointer(p[_STARTS]), (pieces,), np.int64)[piece]
        length = carray(pointer(p[_LENGTHS]), (pieces,), np.int64)[piece]
        origin = carray(pointer(p[_FIRSTS]), (pieces,), np.int64)[piece]
        table = carray(pointer(p[_TABLES] + piece * p[_TABLE_STRIDE] * 8), (p[_TABLE_STRIDE],), np.int64)
        total = start + length
        padded = (total + 63) // 64 * 64
        queries, acc = scratch, scratch + 4 * _ROWS * dim
        sums = acc + 4 * _ROWS * dim
        room = sums + 64
        weights = room + 4 * _LANES * dim
        values = weights + 4 * _ROWS * padded
        panels = values + 4 * padded * dim
        load(p, table, head // (p[_HEADS] // p[_KV_HEADS]), total, panels, values, room)
        lines = carray(pointer(weights), (_ROWS, padded), np.float32)
        blank = carray(pointer(queries), (_ROWS, dim), np.float32)
        factors = carray(pointer(sums), (_ROWS,), np.float32)
        for row in range(0, length, _ROWS):
            rows = min(_ROWS, length - row)
            seen = start + row + rows  # keys that the last of these queries attends to
            for i in range(_ROWS):
                if i < rows:
                    where = ((origin + row + i) * p[_Q_STRIDE] + head * dim) * size
                    widen(queries + 4 * dim * i, p[_Q] + where, np.float32(scale))
                else:
                    blank[i] = np.float32(0.0)
            for key in range(0, seen, width):
                score_tile(weights + 4 * key, padded, queries, dim, panels + 4 * key * dim, width, dim)
            for i in range(rows):
                length_i = start + row + i + 1
                factors[i] = np.float32(1.0) / softmax(lines[i], length_i)
                lines[i, length_i:seen] = np.float32(0.0)
            for column in range(0, dim, span):
                value_tile(acc + 4 * column, dim, weights, padded, values + 4 * column, dim, seen)
            for i in range(rows):
                where = ((origin + row + i) * p[_HEADS] + head) * dim * size
                narrow(p[_OUT] + where, acc + 4 * dim * i, factors[i])

    def prefill(params: int) -> None:
        p = carray(pointer(params), (_NUM_FIELDS,), np.int64)
        scale = carray(pointer(params + 8 * _SCALE), (1,), np.float64)[0]
        heads, part, parts = p[_HEADS], thread(), threads()
        scratch = p[_SCRATCH] + part * p[_SCRATCH_STRIDE] * 4
        for task in range(part, p[_PIECES] * heads, parts):
            attend(p, scale, scratch, task // heads, task % heads)

    return compile_kernel(prefill, f"{head_dim} {dtype} {find_gomp() is not None}")
