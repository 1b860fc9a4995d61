"""Loops compiled by numba that never hold the GIL, and the functions of libzmq, libc and Python that they call.

`compile_loop` finds the libzmq that pyzmq itself loaded; where it, LLVM or numba cannot be had it says why, and the
callers use their plain Python twins. What such a loop is written with is in `nogil_numba`, which imports numba and is
therefore imported only where a loop is not on the disk yet.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy.typing as npt

from harness.common.errors import IsorateError

EAGAIN, EINTR = 11, 4
CLOCK_MONOTONIC = 1
TIMER_ABSTIME = 1
ZMQ_DONTWAIT = 1
ZMQ_RCVMORE = 13

#: By the library that has them. `python` is the process itself, whose functions take and give the GIL up.
_FUNCTIONS = {
    "zmq": ("zmq_send", "zmq_recv", "zmq_errno", "zmq_getsockopt"),
    "libc": ("clock_gettime", "clock_nanosleep", "sched_yield", "write", "pread"),
    "python": ("PyGILState_Ensure", "PyGILState_Release"),
}


class NogilUnavailableError(IsorateError):
    """The compiled loops cannot be built here; the message says which piece is missing."""


def compile_loop(name: str, build: Callable[[], Callable[..., None]], arguments: int, sources: Path) -> Any:
    """The C function that `build` describes, of so many int64 `arguments`, called without the GIL.

    sources: the folder of the modules that it is made of, beside this one's: one that is edited makes another loop.
    Raises NogilUnavailableError.
    """
    try:
        from harness.common.kernel_cache import Recipe, make_kernel
    except Exception as error:  # a broken LLVM raises far more than ImportError
        raise NogilUnavailableError(f"LLVM cannot be imported: {error}") from error
    make_symbols_known()
    folders = {Path(__file__).parent, sources}
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    kernel = make_kernel(Recipe(name, "", files, arguments, lambda: _with_numba(build)))
    kernel.call.owner = kernel.owner  # type: ignore[attr-defined]  # the code lives as long as its caller
    return kernel.call


def _with_numba(build: Callable[[], Callable[..., None]]) -> Callable[..., None]:
    try:
        import numba  # noqa: F401
    except Exception as error:
        raise NogilUnavailableError(f"numba cannot be imported: {error}") from error
    return build()


def at(array: npt.NDArray[Any]) -> int:
    """The address of an array's first cell, for a loop. Raises ValueError for one whose cells are not in a row."""
    if not array.flags.c_contiguous:
        raise ValueError(f"an array of strides {array.strides} has gaps")
    return int(array.ctypes.data)


def our_name(function: str) -> str:
    """Under which compiled code calls a function: its own name may belong to another copy of the library."""
    return f"isorate_{function}"


def make_symbols_known() -> None:
    """Tell LLVM where the functions are in this process. Raises NogilUnavailableError naming what is missing."""
    from llvmlite import binding

    itself = ctypes.CDLL(None)
    for library, names in _FUNCTIONS.items():
        found = ctypes.CDLL(_libzmq_path()) if library == "zmq" else itself
        for name in names:
            try:
                address = ctypes.cast(getattr(found, name), ctypes.c_void_p).value
            except AttributeError as error:
                raise NogilUnavailableError(f"missing symbol: {error}") from error
            binding.add_symbol(our_name(name), address)


def _libzmq_path() -> str:
    """The shared object that exports zmq_send in this process: pyzmq's own copy, never a second libzmq."""
    import zmq  # noqa: F401  (loads it)

    with open("/proc/self/maps") as maps:
        paths = dict.fromkeys(line.split(None, 5)[5].strip() for line in maps if "zmq" in line and "/" in line)
    for path in paths:
        try:
            if hasattr(ctypes.CDLL(path), "zmq_send"):
                return path
        except OSError:
            continue
    raise NogilUnavailableError("the libzmq that pyzmq loaded was not found in this process")
