"""A linear layer over few rows in bfloat16 on a CPU that multiplies it in hardware, compiled with numba.

A decode step reads every weight once, for 16 rows or so. oneDNN's product is made for more rows; this one streams the
weights in the order in which they lie, with the rows' results in registers, and applies bias, GELU and residual before
it rounds. Products of bfloat16 are summed in float32 (the instruction is VDPBF16PS). Its plain twin is `linear.Linear`
without it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from llvmlite import binding, ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from engine_proc.cpu_kernels import Runner
from engine_proc.cpu_vectors import F32, I32, exponential, find_gomp, make_intrinsics, pointer, thread_functions
from engine_proc.kernel_cache import compile_kernel

#: int64 parameters of the kernel, in order. Addresses unless said otherwise; bias and residual may be 0: there is none.
FIELDS = ("x", "weight", "bias", "residual", "out", "scratch", "x_stride", "rows", "depth", "width", "gelu", "wide_out")
_NUM_FIELDS = len(FIELDS)
(_X, _WEIGHT, _BIAS, _RESIDUAL, _OUT, _SCRATCH, _X_STRIDE, _ROWS, _DEPTH, _WIDTH, _GELU, _WIDE_OUT) = range(_NUM_FIELDS)
_LANES, _TILE_ROWS = 16, 8
_PANEL = 2 * _LANES  # columns of a tile: with 8 rows they fill half of the registers of AVX-512
_SCRATCH_FLOATS = (_TILE_ROWS + 2) * _PANEL


class _BFloat(ir.Type):
    """llvmlite has no name for LLVM's bfloat."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


def is_available() -> bool:
    """Whether this CPU has the instruction."""
    return bool(binding.get_host_cpu_features().get("avx512bf16"))


@intrinsic
def _dots(typing_context: Any, c: Any, x: Any, x_bytes: Any, rows: Any, weight: Any, pairs: Any, ahead: Any) -> Any:
    """c [8, 32] float32 = x [rows, 2 pairs] times a panel of weights; rows beyond the last repeat it.

    Meanwhile the cache is told to fetch what lies `ahead` bytes after each weight.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        c_at, x_at, x_step, number, weight_at, depth, distance = args
        floats, ints = ir.VectorType(F32, _LANES), ir.VectorType(I32, _LANES)
        halves = ir.VectorType(_BFloat(), 2 * _LANES)
        kind = ir.FunctionType(floats, (floats, halves, halves))
        dot = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
        byte = ir.IntType(8).as_pointer()
        fetch_kind = ir.FunctionType(ir.VoidType(), (byte, I32, I32, I32))
        fetch = cgutils.get_or_insert_function(builder.module, fetch_kind, "llvm.prefetch.p0")
        hints = [ir.Constant(I32, hint) for hint in (0, 2, 1)]  # to read, into the second level, data
        mask = ir.Constant(ints, [0] * _LANES)
        zero = ir.Constant(floats, [0.0] * _LANES)
        last = builder.sub(number, ir.Constant(number.type, 1))
        lines = []
        for row in range(_TILE_ROWS):
            this = ir.Constant(number.type, row)
            this = builder.select(builder.icmp_signed("<", this, number), this, last)
            lines.append(builder.add(x_at, builder.mul(this, x_step)))
        cells = [[cgutils.alloca_once_value(builder, zero) for _ in range(2)] for _ in range(_TILE_ROWS)]
        with cgutils.for_range(builder, depth, intp=depth.type) as loop:
            place = builder.add(weight_at, builder.mul(loop.index, ir.Constant(depth.type, 8 * _LANES)))
            panels = []
            for i in range(2):
                address = builder.add(place, ir.Constant(place.type, 4 * _LANES * i))
                loaded = builder.load(builder.inttoptr(address, ints.as_pointer()), align=4)
                panels.append(builder.bitcast(loaded, halves))
                builder.call(fetch, (builder.inttoptr(builder.add(address, distance), byte), *hints))
            offset = builder.mul(loop.index, ir.Constant(depth.type, 4))
            for line, row_cells in zip(lines, cells, strict=True):
                pair = builder.load(builder.inttoptr(builder.add(line, offset), I32.as_pointer()), align=2)
                splat = builder.insert_element(ir.Constant(ints, ir.Undefined), pair, ir.Constant(I32, 0))
                splat = builder.bitcast(builder.shuffle_vector(splat, splat, mask), halves)
                for cell, panel in zip(row_cells, panels, strict=True):
                    builder.store(builder.call(dot, (builder.load(cell), splat, panel)), cell)
        for row, row_cells in enumerate(cells):
            for i, cell in enumerate(row_cells):
                address = builder.add(c_at, ir.Constant(c_at.type, 4 * (row * _PANEL + i * _LANES)))
                builder.store(builder.load(cell), builder.inttoptr(address, floats.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 7), generate


@cache
def make_kernel() -> Any:
    """Compile, once a process; some seconds if none is kept on disk."""
    _, _, widen, narrow, _ = make_intrinsics(_PANEL, True)
    thread, threads = thread_functions()

    @njit(nogil=True, fastmath={"reassoc", "contract", "nsz", "arcp"}, error_model="numpy")
    def gelu(line: Any) -> None:
        """The tanh form: x / (1 + exp(-2 u))."""
        for j in range(_PANEL):
            x = line[j]
            u = np.float32(1.5957691216) * (x + np.float32(0.044715) * x * x * x)
            bounded = np.float32(-15.0) if x < np.float32(-15.0) else x  # below it is zero; a NaN stays one
            line[j] = bounded / (np.float32(1.0) + exponential(min(max(-u, np.float32(-87.0)), np.float32(87.0))))

    @njit(nogil=True, error_model="numpy")
    def finish(p: Any, tile: int, row: int, rows: int, column: int) -> None:
        """Bias, GELU, residual and rounding of a tile's rows."""
        lines = carray(pointer(tile), (_TILE_ROWS + 2, _PANEL), np.float32)
        width, spare = p[_WIDTH], tile + 4 * _PANEL * (_TILE_ROWS + 1)
        for i in range(rows):
            place = (row + i) * width + column
            if p[_BIAS] != 0:
                bias = carray(pointer(p[_BIAS] + 4 * column), (_PANEL,), np.float32)
                for j in range(_PANEL):
                    lines[i, j] += bias[j]
            if p[_GELU] != 0:
                gelu(lines[i])
            if p[_RESIDUAL] != 0:
                widen(spare, p[_RESIDUAL] + 2 * place, np.float32(1.0))
                for j in range(_PANEL):
                    lines[i, j] += lines[_TILE_ROWS + 1, j]
            if p[_WIDE_OUT] == 0:
                narrow(p[_OUT] + 2 * place, tile + 4 * _PANEL * i, np.float32(1.0))
            else:  # rounded all the same: what comes out must not depend on the number of rows
                narrow(spare, tile + 4 * _PANEL * i, np.float32(1.0))
                widen(tile + 4 * _PANEL * i, spare, np.float32(1.0))
                wide = carray(pointer(p[_OUT] + 4 * place), (_PANEL,), np.float32)
                for j in range(min(_PANEL, width - column)):
                    wide[j] = lines[i, j]

    def linear(params: int) -> None:
        p = carray(pointer(params), (_NUM_FIELDS,), np.int64)
        part, parts = thread(), threads()
        tile = p[_SCRATCH] + part * _SCRATCH_FLOATS * 4
        panels, depth, rows = (p[_WIDTH] + _PANEL - 1) // _PANEL, p[_DEPTH], p[_ROWS]
        for panel in range(panels * part // parts, panels * (part + 1) // parts):
            for row in range(0, rows, _TILE_ROWS):
                here = min(_TILE_ROWS, rows - row)
                x, weight = p[_X] + 2 * row * p[_X_STRIDE], p[_WEIGHT] + 2 * panel * depth * _PANEL
                ahead = (
                    2 * depth * _PANEL if row + here == rows else 0
                )  # the next panel, in the last pass over this one
                _dots(tile, x, 2 * p[_X_STRIDE], here, weight, depth // 2, ahead)
                finish(p, tile, row, here, panel * _PANEL)

    return compile_kernel(linear, f"{find_gomp() is not None}")


class FewRows:
    """One layer's weights in the kernel's order, beside those that oneDNN has. owned by: step loop"""

    def __init__(self, weight: Tensor, bias: Tensor | None, wide: bool = False) -> None:
        """weight: bfloat16 [out, in]. `wide`: results in float32, rounded to bfloat16 all the same."""
        width, depth = weight.shape
        assert self.takes(weight, wide)
        self._wide = wide
        padded = F.pad(weight, (0, 0, 0, -width % _PANEL))
        self._weight = padded.view(-1, 2, _LANES, depth // 2, 2).permute(0, 3, 1, 2, 4).contiguous()
        self._bias = None if bias is None else F.pad(bias.float(), (0, -width % _PANEL))
        self._width = width
        self._kernel = make_kernel()
        self._run = Runner()
        self._threads = self._run.max_threads
        self._scratch = np.zeros((self._threads, _SCRATCH_FLOATS), np.float32)
        self._params = np.zeros(_NUM_FIELDS, np.int64)
        self._view = memoryview(self._params).cast("B").cast("q")
        self._address = self._params.ctypes.data
        bias_at = 0 if self._bias is None else self._bias.data_ptr()
        self._params[:] = (
            0, self._weight.data_ptr(), bias_at, 0, 0, self._scratch.ctypes.data, 0, 0, depth, width, 0, 0,
        )  # fmt: skip

    @staticmethod
    def takes(weight: Tensor, wide: bool = False) -> bool:
        """Whether the kernel is for such weights: whole pairs of inputs, whole panels of outputs if not `wide`."""
        whole = weight.shape[1] % 2 == 0 and (wide or weight.shape[0] % _PANEL == 0)
        return weight.dtype is torch.bfloat16 and whole and is_available()

    def __call__(self, x: Tensor, *, gelu: bool = False, residual: Tensor | None = None) -> Tensor:
        """[rows, out]; x [rows, in]. `gelu` is its tanh form; the residual is added last."""
        if x.stride(1) != 1:
            x = x.contiguous()
        if residual is not None and not residual.is_contiguous():
            residual = residual.contiguous()
        rows = x.shape[0]
        out = x.new_empty((rows, self._width), dtype=torch.float32 if self._wide else None)
        view = self._view
        view[_X], view[_OUT], view[_X_STRIDE], view[_ROWS] = x.data_ptr(), out.data_ptr(), x.stride(0), rows
        view[_RESIDUAL] = 0 if residual is None else residual.data_ptr()
        view[_GELU], view[_WIDE_OUT] = gelu, self._wide
        self._run(self._kernel, self._address, min(self._run.max_threads, self._threads))
        return out
