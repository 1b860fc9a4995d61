"""From the words of `--device` and `--dtype` to what torch calls them, or a clear refusal."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

import torch

from harness.common.errors import ConfigError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_BF16_FLAGS = frozenset(("avx512_bf16", "amx_bf16", "bf16"))  # the last is ARM's


def choose_device(name: str) -> torch.device:
    """`cpu`, `cuda` or `cuda:N`. Raises ConfigError where there is no such device."""
    if name == "cpu":
        return torch.device("cpu")
    match = re.fullmatch(r"cuda(?::(\d{1,3}))?", name)
    if match is None:
        raise ConfigError(f"device {name!r} is not one of cpu, cuda, cuda:N")
    if not torch.cuda.is_available():
        built = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        raise ConfigError(f"device {name!r}: {built}")
    ordinal, count = int(match[1] or 0), torch.cuda.device_count()
    if ordinal >= count:
        raise ConfigError(f"device {name!r} does not exist: there are {count} CUDA devices, from cuda:0")
    return torch.device("cuda", ordinal)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the device computes in it, else float32. Raises ConfigError."""
    if name == "auto":
        native = torch.cuda.is_bf16_supported() if device.type == "cuda" else cpu_has_bf16()
        return torch.bfloat16 if native else torch.float32
    if name not in _DTYPES:
        raise ConfigError(f"dtype {name!r} is not one of auto, {', '.join(_DTYPES)}")
    if name == "float16" and device.type == "cpu":
        raise ConfigError("dtype 'float16' needs a CUDA device; on a CPU there are float32 and bfloat16")
    return _DTYPES[name]


def cpu_has_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU multiplies bfloat16 in hardware (avx512_bf16 or amx_bf16), by its flags."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    flags = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
    return not _BF16_FLAGS.isdisjoint(flags.split())


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had on the device, or on the host for a CPU."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return int(psutil.virtual_memory().available)


def keep_freed_memory() -> None:
    """Let the allocator keep what is freed, for the whole process: a pass frees tens of MB, and getting them back from
    the kernel, page by page, took a tenth of a prefill. Does nothing where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def fit_threads_to_mask(asked: int | None = None) -> int:
    """As many torch threads as asked for, else at most one a core: two on one core only wait for each other."""
    cores = len(os.sched_getaffinity(0))
    if asked is not None:
        torch.set_num_threads(asked)
    elif torch.get_num_threads() > cores:
        torch.set_num_threads(cores)
    return torch.get_num_threads()
