"""Compiled kernels kept on disk: what numba takes seconds to compile at a start is read back at the next one.

A file a kernel in the user's cache folder, named for a digest of everything that it is made of: the kernels' sources,
what they were asked for, numba, LLVM, Python, the CPU. numba's own cache cannot tell kernels apart that are closures,
and lets two processes write the same file. A file that is not ours, or not whole, is not read; where none can be
written, every start compiles.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import msgpack
import numba
from llvmlite import binding
from numba import types
from numba.core.ccallback import CFunc
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys

_SOURCES = ("cpu_vectors", "cpu_kernels", "prefill_kernel", "few_rows", "row_products", "best_token", "exact_rows",
            "kernel_cache")  # fmt: skip
_DIGEST_BYTES = 32
_SIGNATURE = ((types.int64,), types.void)


class Kernel(NamedTuple):
    """A C function of one int64 address. `ctypes` calls it; `owner` holds its code; `read`: it came from the disk."""

    address: int
    ctypes: Callable[[int], None]
    owner: Any
    read: bool


def compile_kernel(function: Callable[[int], None], asked: str) -> Kernel:
    """`asked`: what `function` depends on apart from its source."""
    path = cache_folder() / f"{_key(function.__qualname__, asked)}.kernel"
    try:
        engine, address = _load(path)
        return _kernel(address, engine, read=True)
    except Exception:  # not there, or whatever is wrong with it: it is compiled
        compiled: Any = CFunc(function, _SIGNATURE, locals={}, options={"nopython": True})
        compiled.compile()
        library, symbol = compiled._library, compiled.native_name
        _keep(path, library, symbol)
        return _kernel(library.get_pointer_to_function(symbol), library, read=False)


def cache_folder() -> Path:
    """Where kernels are kept: under XDG_CACHE_HOME, which defaults to ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return Path(home if os.path.isabs(home) else os.path.expanduser("~/.cache")) / "isorate" / "kernels"


def _kernel(address: int, owner: Any, *, read: bool) -> Kernel:
    return Kernel(address, ctypes.CFUNCTYPE(None, ctypes.c_int64)(address), owner, read)


def _key(name: str, asked: str) -> str:
    digest = hashlib.sha256()
    for source in _SOURCES:
        digest.update(Path(__file__).with_name(f"{source}.py").read_bytes())
    parts = [name, asked, numba.__version__, llvmlite.__version__, sys.version, binding.get_host_cpu_name(),
             binding.get_host_cpu_features().flatten()]  # fmt: skip
    parts += [f"{key}={os.environ[key]}" for key in sorted(os.environ) if key.startswith("NUMBA_")]
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()


def _load(path: Path) -> tuple[Any, int]:
    """An engine that holds the kernel's code, and its address. Raises whatever a file that is no kernel leads to.

    The engine is the kernel's own: Numba numbers the inner functions of each process anew, so in a shared one a kernel
    from the disk could be linked to the inner function of the same name of a kernel that this process compiled.
    """
    symbol, code = msgpack.unpackb(_read(path))
    # Makes the names of Numba's runtime known, which a compilation does on its way. One name that is not known leaves
    # all names of the code without an address, and nothing says so.
    rtsys.initialize(cpu_target.target_context)
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address(symbol)
    if not address:
        raise ValueError("it lacks the kernel")
    return engine, address


def _read(path: Path) -> bytes:
    """The file's content. Raises OSError or ValueError where it is not whole, or another user can have written it."""
    with open(path, "rb") as file:
        for about in (os.fstat(file.fileno()), os.stat(path.parent)):
            if about.st_uid != os.geteuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ValueError("another user can have written it")
        data = file.read()
    body = data[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != data[:_DIGEST_BYTES]:
        raise ValueError("it is damaged")
    return body


def _keep(path: Path, library: Any, symbol: str) -> None:
    """Write the file in one piece, where that can be done: read-only, full, no home: the next start compiles again."""
    if library.has_dynamic_globals:
        return
    _, _, (code, _) = library.serialize_using_object_code()
    body = msgpack.packb([symbol, code])
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(hashlib.sha256(body).digest() + body)
                file.close()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError:
        return
