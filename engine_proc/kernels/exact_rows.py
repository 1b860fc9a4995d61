"""A linear layer over very few rows, added up in float64 from weights in bfloat16 or float32, compiled with numba.

float64 weights are twice to four times as many bytes to read for the same sums, and reading them is what a step of one
row takes. Its plain twin is `models.exact_linear.ExactLinear` without it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray, njit
from torch import Tensor

from engine_proc.kernels.compile_kernel import compile_kernel
from engine_proc.kernels.cpu_vectors import float_of
from engine_proc.kernels.threads import Runner, find_gomp, thread_functions
from harness.common.nogil_numba import pointer

#: int64 parameters of the kernel, in order: addresses, then sizes; `narrow`: the weights are bfloat16.
FIELDS = ("x", "weight", "out", "rows", "depth", "width", "narrow")
_NUM_FIELDS = len(FIELDS)
_X, _WEIGHT, _OUT, _ROWS, _DEPTH, _WIDTH, _NARROW = range(_NUM_FIELDS)


@cache
def make_kernel() -> Any:
    """Compile, once a process; a second or two if none is kept on disk."""
    thread, threads = thread_functions()

    @njit(nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
    def dot(x: Any, weight: Any) -> float:
        total = 0.0
        for k in range(len(x)):
            total += x[k] * np.float64(weight[k])
        return total

    @njit(nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
    def dot_narrow(x: Any, weight: Any) -> float:
        total = 0.0
        for k in range(len(x)):
            total += x[k] * np.float64(float_of(np.int32(weight[k]) << np.int32(16)))
        return total

    def exact(params: int) -> None:
        p = carray(pointer(params), (_NUM_FIELDS,), np.int64)
        part, parts, rows, depth, width = thread(), threads(), p[_ROWS], p[_DEPTH], p[_WIDTH]
        x = carray(pointer(p[_X]), (rows, depth), np.float64)
        out = carray(pointer(p[_OUT]), (rows, width), np.float64)
        for column in range(width * part // parts, width * (part + 1) // parts):
            if p[_NARROW] != 0:
                thin = carray(pointer(p[_WEIGHT] + 2 * depth * column), (depth,), np.uint16)
                for row in range(rows):
                    out[row, column] = dot_narrow(x[row], thin)
            else:
                weight = carray(pointer(p[_WEIGHT] + 4 * depth * column), (depth,), np.float32)
                for row in range(rows):
                    out[row, column] = dot(x[row], weight)

    return compile_kernel(exact, f"{find_gomp() is not None}")


class ExactRows:
    """One layer's weights, in bfloat16 where that loses nothing. owned by: step loop"""

    def __init__(self, weight: Tensor) -> None:
        """weight: [out, in], float32 or bfloat16, on the CPU."""
        narrow = weight.to(torch.bfloat16)
        self.narrow = narrow.to(weight.dtype).equal(weight)
        self._weight = (narrow if self.narrow else weight).contiguous()
        self._kernel = make_kernel()
        self._run = Runner()
        self._params = np.zeros(_NUM_FIELDS, np.int64)

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, out] of x [rows, in], both float64."""
        x = x.contiguous()
        width, depth = self._weight.shape
        out = x.new_empty((x.shape[0], width))
        self._params[:] = (
            x.data_ptr(), self._weight.data_ptr(), out.data_ptr(), x.shape[0], depth, width, self.narrow,
        )  # fmt: skip
        self._run(self._kernel, self._params.ctypes.data, self._run.max_threads)
        return out
