"""The best logit of each row, compiled with numba: each thread looks through the columns that it has just computed.

NumPy's argmax, on one thread, fetches half of the logits from another core's cache first. Its plain twin is that.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from engine_proc.kernels.compile_kernel import compile_kernel
from engine_proc.kernels.cpu_vectors import F32, I32
from engine_proc.kernels.threads import Runner, find_gomp, thread_functions
from harness.common.nogil_numba import pointer

#: int64 parameters of the kernel, in order; logits, places and tops are addresses.
FIELDS = ("logits", "places", "tops", "rows", "width", "stride")
_NUM_FIELDS = len(FIELDS)
_LOGITS, _PLACES, _TOPS, _ROWS, _WIDTH, _STRIDE = range(_NUM_FIELDS)
_LANES, _VECTORS = 16, 4
_STEP = _LANES * _VECTORS
_BLOCK = 16 * _STEP  # columns whose largest is kept, so that only one such block is searched


@intrinsic
def _largest(typing_context: Any, address: Any, steps: Any) -> Any:
    """The largest of 64 * steps floats, -inf of none; a NaN counts as nothing."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        floats = ir.VectorType(F32, _LANES)
        lowest = ir.Constant(floats, [float("-inf")] * _LANES)
        cells = [cgutils.alloca_once_value(builder, lowest) for _ in range(_VECTORS)]

        def larger(one: Any, other: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", one, other), one, other)

        with cgutils.for_range(builder, args[1], intp=args[1].type) as loop:
            place = builder.add(args[0], builder.mul(loop.index, ir.Constant(args[1].type, 4 * _STEP)))
            for i, cell in enumerate(cells):
                address = builder.add(place, ir.Constant(place.type, 4 * _LANES * i))
                values = builder.load(builder.inttoptr(address, floats.as_pointer()), align=4)
                builder.store(larger(values, builder.load(cell)), cell)
        top = builder.load(cells[0])
        for cell in cells[1:]:
            top = larger(top, builder.load(cell))
        lanes = _LANES
        while lanes > 1:
            lanes //= 2
            mask = ir.Constant(ir.VectorType(I32, _LANES), [(i + lanes) % _LANES for i in range(_LANES)])
            top = larger(top, builder.shuffle_vector(top, top, mask))
        return builder.extract_element(top, ir.Constant(I32, 0))

    return types.float32(types.int64, types.int64), generate


@cache
def make_kernel() -> Any:
    """Compile, once a process; a second or two if none is kept on disk."""
    thread, threads = thread_functions()

    @njit(nogil=True, error_model="numpy")
    def largest(address: int, line: Any, first: int, last: int) -> float:
        whole = (last - first) // _STEP
        top: float = _largest(address + 4 * first, whole)
        for j in range(first + whole * _STEP, last):
            top = line[j] if line[j] > top else top
        return top

    def best(params: int) -> None:
        p = carray(pointer(params), (_NUM_FIELDS,), np.int64)
        part, parts, width, rows = thread(), threads(), p[_WIDTH], p[_ROWS]
        first, last = width * part // parts, width * (part + 1) // parts
        places = carray(pointer(p[_PLACES] + 8 * part * rows), (rows,), np.int64)
        tops = carray(pointer(p[_TOPS] + 4 * part * rows), (rows,), np.float32)
        for row in range(rows):
            address = p[_LOGITS] + 4 * row * p[_STRIDE]
            line = carray(pointer(address), (width,), np.float32)
            top, block = np.float32(-np.inf), first
            for start in range(first, last, _BLOCK):
                value = largest(address, line, start, min(start + _BLOCK, last))
                if value > top:
                    top, block = value, start
            tops[row], places[row] = top, -1
            for j in range(block, min(block + _BLOCK, last)):
                if line[j] == top:
                    places[row] = j
                    break

    return compile_kernel(best, f"{find_gomp() is not None}")


class BestToken:
    """owned by: step loop"""

    def __init__(self) -> None:
        self._kernel = make_kernel()
        self._run = Runner()
        self._params = np.zeros(_NUM_FIELDS, np.int64)

    def __call__(self, logits: NDArray[np.float32]) -> NDArray[np.int64]:
        """The first of the largest of each row of `logits` [rows, vocab], whose rows are contiguous. A NaN is not
        taken, unless some thread's columns hold nothing else."""
        rows, width = logits.shape
        threads = min(self._run.max_threads, width)
        places, tops = np.empty((threads, rows), np.int64), np.empty((threads, rows), np.float32)
        self._params[:] = (
            logits.ctypes.data, places.ctypes.data, tops.ctypes.data, rows, width, logits.strides[0] // 4
        )  # fmt: skip
        self._run(self._kernel, self._params.ctypes.data, threads)
        if places.min() < 0:  # some thread's columns have nothing but NaN
            return logits.argmax(axis=-1)
        return places[tops.argmax(axis=0), np.arange(rows)]  # of equal ones the first thread's
