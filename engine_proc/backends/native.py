"""The native engine: our own GPT-2, continuous batching, one step at a time on the engine's main thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine_proc.backends.base import Capacity, EngineRequest, StepOutput, TokenEvent
from engine_proc.kv_cache import CPU_BLOCK_TOKENS, DenseKVCache, KVShape
from engine_proc.model_runner import ModelRunner
from engine_proc.models.gpt2 import GPT2
from engine_proc.models.linear import can_pack
from engine_proc.models.loader import LoadedModel, load_model
from engine_proc.placement import choose_device, choose_dtype, fit_threads_to_mask, free_memory
from engine_proc.sampler import sample
from engine_proc.scheduler import Batch, Scheduler
from engine_proc.scheduler import Sequence as Running
from engine_proc.slot_pool import SlotPool
from harness.common.clock import Clock
from harness.common.errors import ConfigError
from harness.common.protocol import Sampling
from harness.common.stamps import FinishReason

#: Shares of the free memory that the KV cache may take: a host has other users, a CUDA device is the engine's.
KV_MEMORY_SHARE = {"cpu": 0.5, "cuda": 0.85}
#: What warm-up allocates and touches ahead of use: enough for the first tokens of each slot.
RESERVED_TOKENS, RESERVED_BYTES = 512, 1 << 30
WARM_UP_PROMPT_TOKENS, WARM_UP_ROWS = 32, 32

#: Called after each forward pass with the batch's rows and their float32 logits [rows, vocab].
LogitsObserver = Callable[[list[int], Tensor], None]


@dataclass(frozen=True, slots=True)
class Kernels:
    """Which of the clever parts are on; each has a plain twin that tests compare it with. Only a CPU has them."""

    packed_linear: bool = True
    matmul_decode: bool = True
    bucket_prefill: bool = True  # only where a new number of rows costs something: packed bfloat16


class EosIds(Protocol):
    """The part of a tokenizer that the backend needs."""

    eos_ids: tuple[int, ...]


class NativeBackend:
    """EngineBackend over our own model. Every method is called from one thread. owned by: step loop"""

    def __init__(
        self, model: str, device: str, dtype: str, max_batch_size: int, prefill_max_batch_size: int, clock: Clock,
        tokenizer: EosIds | None = None, *, kernels: Kernels | None = None, kv_cache_bytes: int | None = None,
        logits_observer: LogitsObserver | None = None,
    ) -> None:  # fmt: skip
        """Load the model and set up the cache. `tokenizer` says what ends a text where the model's files do not.

        `kv_cache_bytes`: bound of the KV cache (None: a share of the free memory). Raises ConfigError.
        """
        for name, value in (("max_batch_size", max_batch_size), ("prefill_max_batch_size", prefill_max_batch_size)):
            if value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        self._device = choose_device(device)
        self._dtype = choose_dtype(dtype, self._device)
        self._clock = clock
        self._observer = logits_observer
        self._threads = fit_threads_to_mask() if self._device.type == "cpu" else torch.get_num_threads()
        self._kernels = kernels or Kernels()
        self._max_batch_size = max_batch_size
        self._prefill_max_batch_size = prefill_max_batch_size
        with torch.inference_mode():
            self._load(load_model(model), tokenizer, kv_cache_bytes)

    def _load(self, loaded: LoadedModel, tokenizer: EosIds | None, kv_cache_bytes: int | None) -> None:
        config = self._config = loaded.config
        self._name, self._weights_from = loaded.name, loaded.weights_from
        self._eos_ids = loaded.eos_ids or (tokenizer.eos_ids if tokenizer is not None else ())
        on_cpu = self._device.type == "cpu"
        self._packed = self._kernels.packed_linear and can_pack(self._device)
        self._matmul_decode = self._kernels.matmul_decode and on_cpu
        block_tokens = min(CPU_BLOCK_TOKENS, config.max_positions) if on_cpu else config.max_positions
        model = GPT2(config, loaded.weights, self._device, self._dtype, self._packed)
        shape = KVShape(
            config.layers, config.heads, config.head_dim, self._max_batch_size, config.max_positions, block_tokens,
            self._dtype,
        )  # fmt: skip
        budget = kv_cache_bytes or int(free_memory(self._device) * KV_MEMORY_SHARE[self._device.type])
        self._blocks_per_sequence = shape.fit(budget)
        self._block_tokens = block_tokens
        self._cache = DenseKVCache(shape, self._device)
        self._buckets = self._kernels.bucket_prefill and self._packed and self._dtype is torch.bfloat16
        self._runner = ModelRunner(model, self._cache, self._device, self._matmul_decode, self._buckets)
        self._reset()

    def _reset(self) -> None:
        self._pool = SlotPool(self._max_batch_size, self._block_tokens, self._blocks_per_sequence)
        self._scheduler = Scheduler(self._pool, self._max_batch_size, self._prefill_max_batch_size)

    def capacity(self) -> Capacity:
        return Capacity(self._config.max_positions, self._config.vocab_size, self._eos_ids)

    def describe(self) -> dict[str, object]:
        config = self._config
        return {
            "engine": "native",
            "model": self._name,
            "weights": self._weights_from,
            "architecture": f"GPT-2: {config.layers} layers, {config.hidden} wide, {config.heads} heads",
            "device": str(self._device),
            "device_name": torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else "cpu",
            "dtype": str(self._dtype).removeprefix("torch."),
            "threads": self._threads,
            "torch": torch.__version__,
            "max_batch_size": self._max_batch_size,
            "prefill_max_batch_size": self._prefill_max_batch_size,
            "paged_attn": False,
            "cuda_graph": False,
            "nvtx": False,
            "packed_linear": self._packed,
            "matmul_decode": self._matmul_decode,
            "bucket_prefill": self._buckets,
            "kv_block_tokens": self._block_tokens,
            "kv_blocks": self._blocks_per_sequence * self._max_batch_size,
        }

    def warm_up(self) -> None:
        """Pay what the first use costs (oneDNN primitives, CUDA context, allocator, page faults) before the run."""
        with torch.inference_mode():
            self._cache.reserve(RESERVED_TOKENS, RESERVED_BYTES)
            self._runner.warm_up()
        observer, self._observer = self._observer, None
        longest = self._config.max_positions // 2
        for row in range(min(self._max_batch_size, WARM_UP_ROWS)):
            # Each row ends one step after the one before it, so every number of decode rows comes up.
            prompt = [row % self._config.vocab_size] * min(WARM_UP_PROMPT_TOKENS, longest)
            self.add(EngineRequest(row, prompt, min(row + 2, longest), Sampling(stop_on_eos=False)))
        while self.has_work():
            self.step()
        self._observer = observer

    def add(self, request: EngineRequest) -> None:
        self._scheduler.add(request)

    def abort(self, row: int) -> bool:
        return self._scheduler.abort(row)

    def has_work(self) -> bool:
        return self._scheduler.has_work()

    def step(self) -> StepOutput:
        batch = self._scheduler.schedule()
        output = StepOutput(batch_ns=self._clock(), failed=batch.failed)
        output.kv_blocks_used = self._scheduler.kv_blocks_used()
        output.admitted = [sequence.row for sequence in batch.prefill]
        output.prefill_tokens = sum(len(sequence.request.prompt_ids) for sequence in batch.prefill)
        output.decode_rows = len(batch.decode)
        ids = self._forward(batch)
        output.tokens_ns = self._clock()
        output.tokens = [
            TokenEvent(sequence.row, token, self._append(sequence, token))
            for sequence, token in zip(batch.prefill or batch.decode, ids, strict=True)
        ]
        return output

    def close(self) -> None:
        """Drop the model and the cache, and give cached device memory back."""
        del self._runner, self._cache
        self._reset()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.inference_mode()
    def _forward(self, batch: Batch) -> list[int]:
        """The next token of each sequence of the batch, on the host; the device has nothing left to do."""
        sequences: Sequence[Running] = batch.prefill or batch.decode
        if not sequences:
            return []
        logits = self._runner.prefill(sequences) if batch.prefill else self._runner.decode(sequences)
        if self._observer is not None:
            self._observer([sequence.row for sequence in sequences], logits)
        ids = sample(logits, [s.request.sampling for s in sequences], [len(s.output_ids) for s in sequences])
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return ids

    def _append(self, sequence: Running, token: int) -> FinishReason:
        """Record the token, and take the sequence out where it was its last."""
        sequence.output_ids.append(token)
        request = sequence.request
        finish = FinishReason.NONE
        if request.sampling.stop_on_eos and token in self._eos_ids:
            finish = FinishReason.EOS
        elif len(sequence.output_ids) >= request.max_new_tokens:
            finish = FinishReason.LENGTH
        if finish is not FinishReason.NONE:
            self._scheduler.finish(sequence)
        return finish
