"""libzmq and libc as plain addresses, for loops compiled by numba that never hold the GIL.

`load_symbols` finds the libzmq that pyzmq itself loaded; where it, libc or numba cannot be had it says why, and the
callers use their plain Python twins.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

from harness.common.errors import IsorateError

EAGAIN, EINTR = 11, 4
CLOCK_MONOTONIC = 1
TIMER_ABSTIME = 1
ZMQ_DONTWAIT = 1
ZMQ_RCVMORE = 13


class NogilUnavailableError(IsorateError):
    """The compiled loops cannot be built here; the message says which piece is missing."""


class Symbols(NamedTuple):
    """ctypes functions with fixed addresses and plain integer arguments, as numba wants them."""

    zmq_send: Any
    zmq_recv: Any
    zmq_errno: Any
    zmq_getsockopt: Any
    clock_gettime: Any
    clock_nanosleep: Any
    sched_yield: Any
    write: Any
    pread: Any
    gil_ensure: Any
    gil_release: Any


def load_symbols() -> Symbols:
    """Find the functions. Raises NogilUnavailableError naming what is missing."""
    zmq_library = ctypes.CDLL(_libzmq_path())
    libc = ctypes.CDLL(None, use_errno=False)
    python = ctypes.CDLL(None)  # not ctypes.pythonapi, whose functions take the GIL themselves
    ptr, size, integer = ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int
    try:
        return Symbols(
            zmq_send=_function(zmq_library.zmq_send, integer, ptr, ptr, size, integer),
            zmq_recv=_function(zmq_library.zmq_recv, integer, ptr, ptr, size, integer),
            zmq_errno=_function(zmq_library.zmq_errno, integer),
            zmq_getsockopt=_function(zmq_library.zmq_getsockopt, integer, ptr, integer, ptr, ptr),
            clock_gettime=_function(libc.clock_gettime, integer, integer, ptr),
            clock_nanosleep=_function(libc.clock_nanosleep, integer, integer, integer, ptr, ptr),
            sched_yield=_function(libc.sched_yield, integer),
            write=_function(libc.write, ctypes.c_ssize_t, integer, ptr, size),
            pread=_function(libc.pread, ctypes.c_ssize_t, integer, ptr, size, ctypes.c_int64),
            gil_ensure=_function(python.PyGILState_Ensure, integer),
            gil_release=_function(python.PyGILState_Release, None, integer),
        )
    except AttributeError as error:
        raise NogilUnavailableError(f"missing symbol: {error}") from error


def _function(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype = result
    function.argtypes = arguments
    return function


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


def load_numba() -> Callable[..., Any]:
    """numba's njit. Raises NogilUnavailableError where numba cannot be imported."""
    try:
        import numba
    except Exception as error:  # a broken LLVM raises far more than ImportError
        raise NogilUnavailableError(f"numba cannot be imported: {error}") from error
    njit: Callable[..., Any] = numba.njit
    return njit


def memory_fence() -> Any:
    """A compiled full fence: what was written before it is seen before what is written after it."""
    from numba.core import types
    from numba.extending import intrinsic

    @intrinsic
    def fence(typing_context: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.fence("seq_cst")
            return context.get_dummy_value()

        return types.void(), codegen

    return fence
