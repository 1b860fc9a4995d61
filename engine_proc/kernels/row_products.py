"""The inner loops of `few_rows`: a few rows times one panel of weights, in four kinds of instructions.

Each adds to a tile in memory: c [tile_rows, panel] float32 += x [rows, depth] times weights [panel, depth], and tells
the cache meanwhile to fetch what lies `ahead` bytes after each weight. They are written as LLVM code, because what
matters is which registers are used for what.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from engine_proc.kernels.cpu_vectors import CACHE_LINE, F32, FLAGS, I32, fetch

_LANES = 16
_WHOLE = 1 << 30  # a depth that nothing reaches
_I8, _I64 = ir.IntType(8), ir.IntType(64)


class Product(NamedTuple):
    """One kind. Weights of a panel lie as [depth / group, panel, group]; `panel`: its columns, chosen with `tile_rows`
    for the registers there are; `chunk`: most of the depth that is summed in registers before it is added to the tile
    (shorter sums are more exact); `rows`: how many it is faster for than oneDNN.

    `add(c, x, x_bytes, rows, weight, depth, ahead)`: see above. Before it, each thread calls `start(configs, rows)` for
    that many rows, and `end()` when it is done."""

    name: str
    dtype: torch.dtype
    group: int
    unit: int  # the depth is a multiple of it
    tile_rows: int
    panel: int
    chunk: int
    rows: range
    add: Any
    start: Any
    end: Any


@cache
def products() -> dict[str, Product]:
    """What this CPU has, by name; the first of a dtype is the fastest."""
    features = binding.get_host_cpu_features()
    found = []
    if features.get("amx-bf16") and torch.cpu._init_amx():  # the kernel grants a process its tiles on request
        amx = _add_amx, _configure, _release
        found.append(Product("amx", torch.bfloat16, 2, 32, 16, 32, _WHOLE, range(1, 17), *amx))
    if features.get("avx512bf16"):
        pairs = _add_pairs, _nothing, _no_end
        found.append(Product("avx512_bf16", torch.bfloat16, 2, 2, 8, 32, _WHOLE, range(4, 17), *pairs))
    if features.get("avx512f"):
        floats = _add_floats, _nothing, _no_end
        found.append(Product("avx512", torch.float32, 1, 1, 16, 16, 256, range(6, 17), *floats))
    elif features.get("avx2") and features.get("fma"):
        floats = _add_few_floats, _nothing, _no_end
        found.append(Product("avx2", torch.float32, 1, 1, 6, 16, 256, range(1, 17), *floats))
    return {product.name: product for product in found}


def best_product(dtype: torch.dtype, depth: int) -> Product | None:
    """The fastest for such weights, or None."""
    fitting = (product for product in products().values() if product.dtype is dtype and depth % product.unit == 0)
    return next(fitting, None)


def tile_configs() -> np.ndarray[Any, Any]:
    """uint8 [17, 64]: AMX's configuration for each number of rows.

    Tiles 0 and 1: sums [rows, 16] float32; 2: x [rows, 32] bfloat16; 3 and 4: weights [16, 32] bfloat16.
    """
    configs = np.zeros((_LANES + 1, 64), np.uint8)
    configs[:, 0] = 1  # the palette
    for tile in range(5):
        configs[:, 16 + 2 * tile] = 64  # bytes a row
        configs[:, 48 + tile] = np.arange(_LANES + 1) if tile < 3 else _LANES
    return configs


class _BFloat(ir.Type):
    """llvmlite has no name for LLVM's bfloat."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


class _Writer:
    """Writes LLVM code into the function at hand."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def plus(self, base: Any, offset: Any, step: int = 1) -> Any:
        """base + offset * step, int64."""
        offset = ir.Constant(_I64, offset * step) if isinstance(offset, int) else self.times(offset, step)
        return self.builder.add(base, offset)

    def times(self, value: Any, step: int) -> Any:
        return self.builder.mul(value, ir.Constant(_I64, step))

    def at(self, address: Any, kind: Any = _I8) -> Any:
        return self.builder.inttoptr(address, kind.as_pointer())

    def load(self, address: Any, kind: Any, align: int = 4) -> Any:
        return self.builder.load(self.at(address, kind), align=align)

    def splat(self, value: Any, kind: Any) -> Any:
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(I32, kind.count), [0] * kind.count))

    def call(self, name: str, result: Any, *arguments: Any) -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), arguments)

    def lines_of(self, x_at: Any, x_step: Any, number: Any, tile_rows: int) -> list[Any]:
        """Addresses of the rows; those beyond the last repeat it."""
        last = self.builder.sub(number, ir.Constant(_I64, 1))
        rows = [ir.Constant(_I64, row) for row in range(tile_rows)]
        rows = [self.builder.select(self.builder.icmp_signed("<", row, number), row, last) for row in rows]
        return [self.builder.add(x_at, self.builder.mul(row, x_step)) for row in rows]


def _vector_product(tile_rows: int, vectors: int, group: int, itemsize: int, fused: Any) -> Any:
    """`add` for vectors. `fused(writer, sums, x_at, weights)` gives sums + x * weights, vectors of float32; `x_at` is
    the address of `group` neighbours of a row."""
    floats = ir.VectorType(F32, _LANES)
    bits = ir.VectorType(I32, _LANES)  # `group` weights of each of 16 columns
    assert group * itemsize == 4

    @intrinsic
    def add(context: Any, c: Any, x: Any, x_bytes: Any, rows: Any, weight: Any, depth: Any, ahead: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            c_at, x_at, x_step, number, weight_at, length, distance = args
            writer = _Writer(builder)
            lines = writer.lines_of(x_at, x_step, number, tile_rows)
            zero = ir.Constant(floats, [0.0] * _LANES)
            cells = [[cgutils.alloca_once_value(builder, zero) for _ in range(vectors)] for _ in range(tile_rows)]
            steps = builder.sdiv(length, ir.Constant(_I64, group))
            with cgutils.for_range(builder, steps, intp=_I64) as loop:
                place = writer.plus(weight_at, loop.index, 4 * _LANES * vectors)
                panels = []
                for i in range(vectors):
                    address = writer.plus(place, 4 * _LANES * i)
                    panels.append(writer.load(address, bits))
                    fetch(builder, builder.add(address, distance))
                offset = writer.times(loop.index, 4)
                for line, row_cells in zip(lines, cells, strict=True):
                    splat = writer.splat(writer.load(builder.add(line, offset), I32, align=itemsize), bits)
                    for cell, panel in zip(row_cells, panels, strict=True):
                        builder.store(fused(writer, builder.load(cell), splat, panel), cell)
            for row, row_cells in enumerate(cells):
                for i, cell in enumerate(row_cells):
                    address = writer.at(writer.plus(c_at, 4 * _LANES * (row * vectors + i)), floats)
                    builder.store(builder.fadd(builder.load(address, align=4), builder.load(cell)), address, align=4)
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 7), generate

    return add


def _fused_floats(writer: _Writer, sums: Any, x: Any, weights: Any) -> Any:
    x, weights = (writer.builder.bitcast(value, sums.type) for value in (x, weights))
    return writer.builder.fadd(sums, writer.builder.fmul(x, weights, flags=FLAGS), flags=FLAGS)


def _fused_pairs(writer: _Writer, sums: Any, x: Any, weights: Any) -> Any:
    halves = ir.VectorType(_BFloat(), 2 * _LANES)
    x, weights = (writer.builder.bitcast(value, halves) for value in (x, weights))
    return writer.call("llvm.x86.avx512bf16.dpbf16ps.512", sums.type, sums, x, weights)


_add_floats = _vector_product(16, 1, 1, 4, _fused_floats)
_add_few_floats = _vector_product(6, 1, 1, 4, _fused_floats)  # 12 sums of AVX2's 16 registers
_add_pairs = _vector_product(8, 2, 2, 2, _fused_pairs)


@intrinsic
def _add_amx(context: Any, c: Any, x: Any, x_bytes: Any, rows: Any, weight: Any, depth: Any, ahead: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        c_at, x_at, x_step, _, weight_at, length, distance = args
        writer, void = _Writer(builder), ir.VoidType()
        step = ir.Constant(_I64, 2 * 64)  # from row to row of the sums, from pair to pair of the weights
        tiles = [ir.Constant(_I8, tile) for tile in range(5)]
        for i in range(2):
            writer.call("llvm.x86.tileloadd64", void, tiles[i], writer.at(writer.plus(c_at, 64 * i)), step)
        block = 16 * 2 * 64  # bytes of 16 pairs
        with cgutils.for_range(builder, builder.sdiv(length, ir.Constant(_I64, 32)), intp=_I64) as loop:
            place = writer.plus(weight_at, loop.index, block)
            writer.call("llvm.x86.tileloadd64", void, tiles[2], writer.at(writer.plus(x_at, loop.index, 64)), x_step)
            for i in range(2):
                writer.call("llvm.x86.tileloadd64", void, tiles[3 + i], writer.at(writer.plus(place, 64 * i)), step)
                writer.call("llvm.x86.tdpbf16ps", void, tiles[i], tiles[2], tiles[3 + i])
            further = builder.add(place, distance)
            for line in range(0, block, CACHE_LINE):
                fetch(builder, writer.plus(further, line))
        for i in range(2):
            writer.call("llvm.x86.tilestored64", void, tiles[i], writer.at(writer.plus(c_at, 64 * i)), step)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 7), generate


@intrinsic
def _configure(context: Any, configs: Any, rows: Any) -> Any:
    """Make the tiles fit `rows` rows."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        writer = _Writer(builder)
        writer.call("llvm.x86.ldtilecfg", ir.VoidType(), writer.at(writer.plus(args[0], args[1], 64)))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _release(context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _Writer(builder).call("llvm.x86.tilerelease", ir.VoidType())
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _nothing(context: Any, configs: Any, rows: Any) -> Any:
    return types.void(types.int64, types.int64), lambda context, *_: context.get_dummy_value()


@intrinsic
def _no_end(context: Any) -> Any:
    return types.void(), lambda context, *_: context.get_dummy_value()
