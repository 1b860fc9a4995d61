"""Compiled kernels kept on disk: what numba takes seconds to compile at a start is read back at the next one.

A file a kernel in the user's cache folder, named for a digest of everything that it is made of: the kernels' sources,
what they were asked for, numba, LLVM, Python, the CPU. numba's own cache cannot tell kernels apart that are closures,
and lets two processes write the same file. A file that is not ours, or not whole, is not read; where none can be
written, every start compiles.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
from llvmlite import binding
from numba import types
from numba.core.ccallback import CFunc
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

_SOURCES = ("cpu_vectors", "cpu_kernels", "prefill_kernel", "few_rows", "kernel_cache")
_DIGEST_BYTES = 32


def compile_kernel(function: Callable[[int], None], asked: str) -> Any:
    """A C function of one int64 address. `asked`: what `function` depends on apart from its source."""
    kernel = CFunc(function, (((types.int64),), types.void), locals={}, options={"nopython": True})
    kernel._cache = _DiskCache(cache_folder(), _key(function.__qualname__, asked))
    kernel.compile()
    return kernel


def cache_folder() -> Path:
    """Where kernels are kept: under XDG_CACHE_HOME, which defaults to ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return Path(home if os.path.isabs(home) else os.path.expanduser("~/.cache")) / "isorate" / "kernels"


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


class _DiskCache:
    """What numba asks for compiled code, and gives it to."""

    def __init__(self, folder: Path, key: str) -> None:
        self._path = folder / f"{key}.kernel"

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The compiled function, or None."""
        target_context.refresh()
        try:
            body = self._read()
            return None if body is None else CompileResult._rebuild(target_context, *pickle.loads(body))  # noqa: S301
        except Exception:  # whatever is wrong with it: it is compiled anew
            return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep the function, where that can be done."""
        if result.library.has_dynamic_globals:
            return
        try:
            body = dumps(result._reduce())
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._path.parent, delete=False) as file:
                try:
                    file.write(hashlib.sha256(body).digest() + body)
                    file.close()
                    os.replace(file.name, self._path)
                except BaseException:
                    os.unlink(file.name)
                    raise
        except OSError:  # read-only, full, or no home: the next start compiles again
            return

    def _read(self) -> bytes | None:
        """The whole file's content, if this user alone can have written it."""
        with open(self._path, "rb") as file:
            for about in (os.fstat(file.fileno()), os.stat(self._path.parent)):
                if about.st_uid != os.geteuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    return None
            data = file.read()
        body = data[_DIGEST_BYTES:]
        return body if hashlib.sha256(body).digest() == data[:_DIGEST_BYTES] else None
