"""What loops without the GIL are written with. Imports numba: for the build of a loop alone.

Functions are called by name, not by address, and cells are reached by address: what was compiled in one process is used
in another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from harness.common.nogil import our_name

#: For the functions that a loop is made of. They cannot fail, and become part of it: nothing of Python's is left in the
#: code, so that a process can use it without numba. (No divisor is 0: numpy's rule leaves out check and exception.)
_OPTIONS: dict[str, Any] = {
    "nogil": True, "error_model": "numpy", "forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True,
}  # fmt: skip
loop: Any = njit(**_OPTIONS)

_INT, _SIZE, _ADDRESS = types.intc, types.uintp, types.uintp


def _function(name: str, result: Any, *arguments: Any) -> Any:
    return types.ExternalFunction(our_name(name), result(*arguments))


zmq_send = _function("zmq_send", _INT, _ADDRESS, _ADDRESS, _SIZE, _INT)
zmq_recv = _function("zmq_recv", _INT, _ADDRESS, _ADDRESS, _SIZE, _INT)
zmq_errno = _function("zmq_errno", _INT)
zmq_getsockopt = _function("zmq_getsockopt", _INT, _ADDRESS, _INT, _ADDRESS, _ADDRESS)
clock_gettime = _function("clock_gettime", _INT, _INT, _ADDRESS)
clock_nanosleep = _function("clock_nanosleep", _INT, _INT, _INT, _ADDRESS, _ADDRESS)
sched_yield = _function("sched_yield", _INT)
write = _function("write", types.intp, _INT, _ADDRESS, _SIZE)
pread = _function("pread", types.intp, _INT, _ADDRESS, _SIZE, types.int64)
take_gil = _function("PyGILState_Ensure", _INT)
give_gil = _function("PyGILState_Release", types.void, _INT)


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    """An address as a pointer that `carray` takes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


def _fence(typing_context: Any) -> Any:

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


#: A full fence: what was written before it is seen before what is written after it.
fence: Any = intrinsic(_fence)


# Their length is the caller's business: an index is not checked, and none is negative.


@loop
def cells(address):  # type: ignore[no-untyped-def]
    """int64 from an address on."""
    return carray(pointer(address), (1,), np.int64)


@loop
def rows(address, columns):  # type: ignore[no-untyped-def]
    """Rows of int64 from an address on."""
    return carray(pointer(address), (1, columns), np.int64)


@loop
def octets(address):  # type: ignore[no-untyped-def]
    """Bytes from an address on."""
    return carray(pointer(address), (1,), np.uint8)
