"""Compiled kernels kept on disk: what numba takes seconds to compile at a start is read back at the next one.

A file a kernel in the user's cache folder, named for a digest of everything that it is made of: its sources, what it
was asked for, numba, LLVM, Python, the CPU. numba's own cache cannot tell kernels apart that are closures, and lets two
processes write the same file. A file that is not ours, or not whole, is not read; where none can be written, every
start compiles. A process that finds all its kernels on the disk imports LLVM alone, not numba.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
from llvmlite import binding

_DIGEST_BYTES = 32
#: Names of Numba's runtime; the first two are in the code itself.
_NUMBAS_NAME = re.compile(rb"\b(?:NRT|numba)_\w+")
_WITHIN = {b"NRT_incref", b"NRT_decref"}
#: What frees an array's memory, from NRT_decref. Arrays over addresses own none: all code names it, none calls it.
_FREES = b"NRT_MemInfo_call_dtor"


class Recipe(NamedTuple):
    """A kernel before it is compiled.

    asked: what it depends on apart from its sources. sources: the files, read for the digest; whatever constant the
    kernel holds has to come from one of them. arguments: how many int64 it takes. build: makes the function that numba
    compiles; called only where the disk has no kernel.
    """

    name: str
    asked: str
    sources: Iterable[Path]
    arguments: int
    build: Callable[[], Callable[..., None]]


class Kernel(NamedTuple):
    """A C function of int64 arguments. `call` calls it without the GIL, `owner` has its code, `read`: from the disk."""

    address: int
    call: Callable[..., None]
    owner: Any
    read: bool


def make_kernel(recipe: Recipe) -> Kernel:
    """The kernel, from the disk or compiled. Raises what `recipe.build` raises."""
    path = cache_folder() / f"{_key(recipe)}.kernel"
    try:
        owner, address = _load(path)
        return _kernel(recipe, address, owner, read=True)
    except Exception:  # not there, or whatever is wrong with it: it is compiled
        library, symbol = _compile(recipe)
        _keep(path, library, symbol)
        return _kernel(recipe, library.get_pointer_to_function(symbol), library, read=False)


def cache_folder() -> Path:
    """Where kernels are kept: under XDG_CACHE_HOME, which defaults to ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return Path(home if os.path.isabs(home) else os.path.expanduser("~/.cache")) / "isorate" / "kernels"


def _kernel(recipe: Recipe, address: int, owner: Any, *, read: bool) -> Kernel:
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * recipe.arguments)
    return Kernel(address, kind(address), owner, read)


def _key(recipe: Recipe) -> str:
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for source in recipe.sources:
        digest.update(source.read_bytes())
    parts = [recipe.name, recipe.asked, str(recipe.arguments), *map(_version, ("numba", "llvmlite")),
             sys.version, binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()]  # fmt: skip
    parts += [f"{key}={os.environ[key]}" for key in sorted(os.environ) if key.startswith("NUMBA_")]
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _compile(recipe: Recipe) -> tuple[Any, str]:
    """numba's library with the kernel's code, and the kernel's name in it."""
    function = recipe.build()  # first: it says best what is amiss where numba is
    from numba import types
    from numba.core.ccallback import CFunc

    signature = ((types.int64,) * recipe.arguments, types.void)
    options = {"nopython": True, "error_model": "numpy", "forceinline": True}
    compiled: Any = CFunc(function, signature, locals={}, options=options)
    compiled.compile()
    return compiled._library, compiled.native_name


def _load(path: Path) -> tuple[Any, int]:
    """An engine that holds the kernel's code, and its address. Raises whatever a file that is no kernel leads to.

    The engine is the kernel's own: Numba numbers the inner functions of each process anew, so in a shared one a kernel
    from the disk could be linked to the inner function of the same name of a kernel that this process compiled.
    """
    symbol, code = msgpack.unpackb(_read(path))
    _make_numbas_names_known({*_NUMBAS_NAME.findall(code)} - _WITHIN)
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address(symbol)
    if not address:
        raise ValueError("it lacks the kernel")
    return engine, address


def _make_numbas_names_known(names: set[bytes]) -> None:
    """As compiling does on its way. One unknown name leaves all of the code without addresses, and nobody says so."""
    if not names:
        return
    if names == {_FREES} and "numba" not in sys.modules:  # numba, when it comes, puts its own in this one's place
        binding.add_symbol(_FREES.decode(), ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value)
        return
    from numba.core.registry import cpu_target
    from numba.core.runtime import rtsys

    rtsys.initialize(cpu_target.target_context)


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
