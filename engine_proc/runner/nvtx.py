"""Named ranges for NVIDIA's profilers, or nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from harness.common.errors import ConfigError

#: A range's name -> a context manager over it.
Ranges = Callable[[str], AbstractContextManager[None]]

_NOTHING: AbstractContextManager[None] = nullcontext()


def make_ranges(enabled: bool) -> Ranges:
    """Raises ConfigError where ranges are wanted and torch has no NVTX."""
    if not enabled:
        return lambda _: _NOTHING
    if not torch.cuda.is_available():
        raise ConfigError("nvtx needs CUDA, and torch finds no CUDA device")
    return _range


@contextmanager
def _range(name: str) -> Iterator[None]:
    torch.cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()
