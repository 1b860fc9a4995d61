"""A linear layer over few rows on a CPU with AVX2, AVX-512 or AMX, compiled with numba.

A decode step reads every weight once, for 16 rows or so. oneDNN's product is made for more rows; this one streams the
weights in the order in which they lie, with the rows' results in registers, and applies bias, GELU and residual before
it rounds. Products are summed in float32. Its plain twin is `linear.Linear` without it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numba import carray, njit
from torch import Tensor

from engine_proc.kernels.compile_kernel import compile_kernel
from engine_proc.kernels.cpu_vectors import CACHE_LINE, exponential, make_intrinsics
from engine_proc.kernels.row_products import Product, best_product, products, tile_configs
from engine_proc.kernels.threads import Runner, find_gomp, thread_functions
from harness.common.nogil_numba import pointer

#: int64 parameters of the kernel, in order. Addresses unless said otherwise; bias and residual may be 0: there is none.
FIELDS = (
    "x", "weight", "bias", "residual", "out", "scratch", "configs", "x_stride", "rows", "depth", "width", "gelu",
    "wide_out",
)  # fmt: skip
_NUM_FIELDS = len(FIELDS)
(_X, _WEIGHT, _BIAS, _RESIDUAL, _OUT, _SCRATCH, _CONFIGS, _X_STRIDE, _ROWS, _DEPTH, _WIDTH, _GELU,
 _WIDE_OUT) = range(_NUM_FIELDS)  # fmt: skip
#: Bytes of weights between what is used and what is fetched for later.
_AHEAD = 1 << 14
#: Lines that lie a multiple of so many bytes apart share a set of the first-level cache, which has 8 to 12 places. More
#: rows than that in one set drive each other out at every product: half the speed.
_SET_STRIDE, _PLACES = 4096, 8


@cache
def make_kernel(name: str) -> Any:
    """Compile for one of `products()`, once a process; some seconds if none is kept on disk."""
    kind = products()[name]
    add, begin, end, tile_rows, width, chunk = kind.add, kind.start, kind.end, kind.tile_rows, kind.panel, kind.chunk
    bf16, size = kind.dtype is torch.bfloat16, kind.dtype.itemsize
    scratch_floats = _scratch_floats(kind)
    _, _, widen, narrow, _ = make_intrinsics(width, bf16)
    thread, threads = thread_functions()

    @njit(nogil=True, fastmath={"reassoc", "contract", "nsz", "arcp"}, error_model="numpy")
    def gelu(line: Any) -> None:
        """The tanh form: x / (1 + exp(-2 u))."""
        for j in range(width):
            x = line[j]
            u = np.float32(1.5957691216) * (x + np.float32(0.044715) * x * x * x)
            bounded = np.float32(-15.0) if x < np.float32(-15.0) else x  # below it is zero; a NaN stays one
            line[j] = bounded / (np.float32(1.0) + exponential(min(max(-u, np.float32(-87.0)), np.float32(87.0))))

    @njit(nogil=True, error_model="numpy")
    def finish(p: Any, tile: int, row: int, rows: int, column: int) -> None:
        """Bias, GELU, residual and rounding of a tile's rows."""
        lines = carray(pointer(tile), (tile_rows + 2, width), np.float32)
        out_width, spare = p[_WIDTH], tile + 4 * width * (tile_rows + 1)
        for i in range(rows):
            place = (row + i) * out_width + column
            if p[_BIAS] != 0:
                bias = carray(pointer(p[_BIAS] + 4 * column), (width,), np.float32)
                for j in range(width):
                    lines[i, j] += bias[j]
            if p[_GELU] != 0:
                gelu(lines[i])
            if p[_RESIDUAL] != 0:
                widen(spare, p[_RESIDUAL] + size * place, np.float32(1.0))
                for j in range(width):
                    lines[i, j] += lines[tile_rows + 1, j]
            if p[_WIDE_OUT] == 0:
                narrow(p[_OUT] + size * place, tile + 4 * width * i, np.float32(1.0))
            else:  # rounded all the same: what comes out must not depend on the number of rows
                narrow(spare, tile + 4 * width * i, np.float32(1.0))
                widen(tile + 4 * width * i, spare, np.float32(1.0))
                wide = carray(pointer(p[_OUT] + 4 * place), (width,), np.float32)
                for j in range(min(width, out_width - column)):
                    wide[j] = lines[i, j]

    @njit(nogil=True, error_model="numpy")
    def multiply(p: Any, tile: int, row: int, rows: int, panel: int, ahead: int) -> None:
        """The tile of a panel's columns and some rows."""
        depth, x_bytes = p[_DEPTH], size * p[_X_STRIDE]
        carray(pointer(tile), (tile_rows, width), np.float32)[:] = np.float32(0.0)
        for first in range(0, depth, chunk):
            x = p[_X] + x_bytes * row + size * first
            weight = p[_WEIGHT] + size * width * (panel * depth + first)
            add(tile, x, x_bytes, rows, weight, min(chunk, depth - first), ahead)

    def linear(params: int) -> None:
        p = carray(pointer(params), (_NUM_FIELDS,), np.int64)
        part, parts = thread(), threads()
        tile = p[_SCRATCH] + part * scratch_floats * 4
        panels, rows = (p[_WIDTH] + width - 1) // width, p[_ROWS]
        panel_bytes = size * width * p[_DEPTH]
        for panel in range(panels * part // parts, panels * (part + 1) // parts):
            for row in range(0, rows, tile_rows):
                here = min(tile_rows, rows - row)
                begin(p[_CONFIGS], here)
                # With several passes over a panel, the last one fetches the next panel.
                ahead = min(_AHEAD, panel_bytes) if rows <= tile_rows else panel_bytes if row + here == rows else 0
                multiply(p, tile, row, here, panel, ahead)
                finish(p, tile, row, here, panel * width)
        end()

    return compile_kernel(linear, f"{name} {find_gomp() is not None}")


def _scratch_floats(kind: Product) -> int:
    return (kind.tile_rows + 2) * kind.panel


class FewRows:
    """One layer's weights in the kernel's order, beside those that oneDNN has. owned by: step loop"""

    def __init__(self, weight: Tensor, bias: Tensor | None, wide: bool = False, kind: Product | None = None) -> None:
        """weight: [out, in], a dtype that a kind takes; `kind`: the fastest unless given.

        `wide`: results in float32, rounded to the weights' dtype all the same.
        """
        width, depth = weight.shape
        assert self.takes(weight, wide)
        kind = kind or best_product(weight.dtype, depth)
        assert kind is not None and depth % kind.unit == 0
        self.rows = kind.rows
        self._wide = wide
        # A tile of AMX takes a whole line of each row at once, and not again.
        self._crowds = kind.tile_rows > _PLACES and kind.unit == kind.group
        padded = F.pad(weight, (0, 0, 0, -width % kind.panel))
        groups = padded.view(-1, kind.panel, depth // kind.group, kind.group)
        self._weight = groups.permute(0, 2, 1, 3).contiguous()
        self._bias = None if bias is None else F.pad(bias.float(), (0, -width % kind.panel))
        self._width = width
        self._kernel = make_kernel(kind.name)
        self._run = Runner()
        self._threads = self._run.max_threads
        self._scratch = np.zeros((self._threads, _scratch_floats(kind)), np.float32)
        self._configs = tile_configs()
        self._params = np.zeros(_NUM_FIELDS, np.int64)
        self._view = memoryview(self._params).cast("B").cast("q")
        self._address = self._params.ctypes.data
        bias_at = 0 if self._bias is None else self._bias.data_ptr()
        self._params[:] = (
            0, self._weight.data_ptr(), bias_at, 0, 0, self._scratch.ctypes.data, self._configs.ctypes.data, 0, 0,
            depth, width, 0, 0,
        )  # fmt: skip

    @staticmethod
    def takes(weight: Tensor, wide: bool = False) -> bool:
        """Whether a kernel is for such weights: a depth that fits it, whole panels of outputs if not `wide`."""
        kind = best_product(weight.dtype, weight.shape[1])
        return kind is not None and (wide or weight.shape[0] % kind.panel == 0)

    def __call__(self, x: Tensor, *, gelu: bool = False, residual: Tensor | None = None) -> Tensor:
        """[rows, out]; x [rows, in]. `gelu` is its tanh form; the residual is added last."""
        if x.stride(1) != 1:
            x = x.contiguous()
        if self._crowds and x.shape[0] > _PLACES and x.stride(0) * x.itemsize % _SET_STRIDE == 0:
            x = F.pad(x, (0, CACHE_LINE // x.itemsize))
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
