"""The threads that kernels run on: torch's own OpenMP, so that no second pool competes with it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from llvmlite import binding
from numba import njit, types

from harness.common.nogil import our_name


class Runner:
    """Calls kernels, on as many threads as torch has at that moment."""

    def __init__(self) -> None:
        self._gomp = find_gomp()
        if self._gomp is not None:
            self._parallel = self._gomp.GOMP_parallel
            self._parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
            self._parallel.restype = None

    @property
    def max_threads(self) -> int:
        return torch.get_num_threads() if self._gomp is not None else 1

    def __call__(self, kernel: Any, params_address: int, threads: int) -> None:
        if threads > 1 and self._gomp is not None:
            self._parallel(kernel.address, params_address, threads, 0)
        else:
            kernel.call(params_address)


def find_gomp() -> ctypes.CDLL | None:
    """The OpenMP library that torch computes with, so that kernels share its threads; None where it is another one."""
    for path in sorted(Path(torch.__file__).parent.glob("lib/libgomp*.so*")):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "GOMP_parallel"):
            return library
    return None


def thread_functions() -> tuple[Any, Any]:
    """This thread's number, and how many there are, callable from compiled code.

    By name, not by address: what was compiled in one process is used in another.
    """
    library = find_gomp()
    if library is None:

        @njit
        def zero() -> int:
            return 0

        @njit
        def one() -> int:
            return 1

        return zero, one
    functions = []
    for name in ("omp_get_thread_num", "omp_get_num_threads"):
        binding.add_symbol(our_name(name), ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
        functions.append(types.ExternalFunction(our_name(name), types.int32()))
    return functions[0], functions[1]
