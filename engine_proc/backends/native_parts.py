"""What the native backend is made of: model, KV cache, attention, runner and graphs, put together for a device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_proc.attention.decode_attention import DecodeMaker, Gathered
from engine_proc.attention.kv_cache import KVShape, PagedKVCache, choose_num_blocks
from engine_proc.backends.placement import free_memory
from engine_proc.models.base import Model
from engine_proc.models.linear import can_pack
from engine_proc.models.loader import LoadedModel, build_model
from engine_proc.runner.graphs import CapturedDecode, capture_cuda
from engine_proc.runner.model_runner import CPU_PASS_TOKENS, ModelRunner
from harness.common.errors import ConfigError

#: Shares of the free memory that the KV cache may take: a host has other users, a CUDA device is the engine's.
KV_MEMORY_SHARE = {"cpu": 0.5, "cuda": 0.85}
MAX_PASS_TOKENS = {"cpu": CPU_PASS_TOKENS, "cuda": 1 << 20}


@dataclass(frozen=True, slots=True)
class Kernels:
    """Which of the clever parts are on; each has a plain twin that tests compare it with. Only a CPU has them."""

    packed_linear: bool = True
    compiled_decode: bool = True
    bucket_passes: bool = True  # only where a new number of rows costs something: packed bfloat16
    #: Products added up in float64 instead of packed: slow, and what the rest of the engine is measured with.
    exact_linear: bool = False
    #: With `exact_linear`, which it needs: all in float64 but what attention works with (q, k, v, the KV cache).
    wide_stream: bool = False


@dataclass(slots=True)
class Parts:
    """Built once; `graphs` is None unless `cuda_graph`."""

    model: Model
    cache: PagedKVCache
    runner: ModelRunner
    graphs: CapturedDecode | None
    packed: bool
    compiled_decode: bool
    buckets: bool
    exact_linear: bool
    wide_stream: bool

    def warm_up(self, touched_bytes: int) -> None:
        self.cache.touch(touched_bytes)
        self.runner.warm_up()
        if self.graphs is not None:
            self.graphs.warm_up()

    def describe(self) -> dict[str, object]:
        return {
            "packed_linear": self.packed,
            "exact_linear": self.exact_linear,
            "wide_stream": self.wide_stream,
            "compiled_decode": self.compiled_decode,
            "bucket_passes": self.buckets,
            "block_size": self.cache.block_size,
            "kv_blocks": self.cache.num_blocks - 1,
            "kv_bytes": self.cache.num_blocks * self.cache.shape.block_bytes,
            "graphs": self.graphs.num_graphs if self.graphs is not None else 0,
        }


def build_parts(
    loaded: LoadedModel, device: torch.device, dtype: torch.dtype, kernels: Kernels, *, max_batch_size: int,
    block_size: int, kv_blocks: int | None, kv_memory: int | None, paged_attn: bool, cuda_graph: bool, compile: bool,
) -> Parts:  # fmt: skip
    """Raises ConfigError where the KV cache does not fit, or kernels do not go together."""
    if block_size < 1:
        raise ConfigError(f"block_size is {block_size}; it must be at least 1")
    if kernels.wide_stream and not kernels.exact_linear:
        raise ConfigError("wide_stream needs exact_linear")
    packed = kernels.packed_linear and not kernels.exact_linear and can_pack(device, dtype)
    model = build_model(loaded, device, dtype, packed, kernels.exact_linear, kernels.wide_stream)
    if compile:
        model.compile()
    shape = model.shape
    kv_shape = KVShape(shape.layers, shape.kv_heads, block_size, shape.head_dim, dtype)
    free_bytes = int(free_memory(device) * KV_MEMORY_SHARE[device.type])
    num_blocks = choose_num_blocks(kv_shape, kv_blocks, kv_memory, free_bytes, max_batch_size, shape.max_positions)
    cache = PagedKVCache(kv_shape, num_blocks, device)
    maker = _decode_maker(cache, device, kernels, shape.heads, shape.max_positions)
    buckets = kernels.bucket_passes and packed and dtype is torch.bfloat16
    graphs = None
    if cuda_graph:
        graphs = CapturedDecode(model, cache, device, max_batch_size, shape.max_positions, capture_cuda([]))
    runner = ModelRunner(
        model, cache, device, maker if paged_attn else None, buckets=buckets, pass_tokens=MAX_PASS_TOKENS[device.type],
        graphs=graphs,
    )  # fmt: skip
    compiled = paged_attn and not isinstance(maker, Gathered)
    return Parts(model, cache, runner, graphs, packed, compiled, buckets, kernels.exact_linear, kernels.wide_stream)


def _decode_maker(
    cache: PagedKVCache, device: torch.device, kernels: Kernels, heads: int, max_tokens: int
) -> DecodeMaker:
    if device.type == "cpu" and kernels.compiled_decode:
        try:
            from engine_proc.attention.compiled_decode import Compiled
        except ImportError:  # no numba here
            return Gathered(cache, device)
        return Compiled(cache, heads, max_tokens)
    return Gathered(cache, device)
