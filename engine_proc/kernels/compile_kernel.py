"""Compiles the engine's CPU kernels, or reads them back from the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.common import nogil_numba
from harness.common.kernel_cache import Kernel, Recipe, make_kernel

#: Each of them has a kernel or what one is made of; a kernel on the disk is of these files as they are now.
SOURCES = (
    *(Path(__file__).with_name(f"{name}.py") for name in (
        "cpu_vectors", "threads", "decode_kernel", "prefill_kernel", "few_rows", "row_products", "best_token",
        "exact_rows",
    )),
    Path(nogil_numba.__file__),
)  # fmt: skip


def compile_kernel(function: Callable[[int], None], asked: str) -> Kernel:
    """`function` takes one address of int64 cells; `asked`: what it depends on apart from its source."""
    return make_kernel(Recipe(function.__qualname__, asked, SOURCES, 1, lambda: function))
