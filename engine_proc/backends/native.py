"""The native engine: our own models, paged KV, continuous batching, one step at a time on the engine's main thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from engine_proc.backends.base import Capacity, EngineRequest, StepOutput, TokenEvent
from engine_proc.backends.native_parts import Kernels, Parts, build_parts
from engine_proc.backends.placement import choose_device, choose_dtype, fit_threads_to_mask, keep_freed_memory
from engine_proc.models.loader import LoadedModel, load_model
from engine_proc.runner.model_runner import Pending
from engine_proc.runner.nvtx import make_ranges
from engine_proc.runner.sampler import choose
from engine_proc.scheduling.batch import Batch
from engine_proc.scheduling.block_pool import BlockPool
from engine_proc.scheduling.scheduler import Policy, Scheduler
from engine_proc.scheduling.sequence import Sequence
from harness.common.clock import Clock
from harness.common.errors import ConfigError
from harness.common.protocol import Sampling
from harness.common.stamps import FinishReason

#: Tokens of a step unless `prefill_max_tokens` says otherwise.
STEP_TOKENS = {"cpu": 2048, "cuda": 8192}
#: What warm-up touches of the KV cache ahead of use.
TOUCHED_BYTES = 1 << 30
WARM_UP_PROMPT_TOKENS, WARM_UP_ROWS = 32, 32

#: Called after each forward pass with the rows that get a token and their float32 logits [rows, vocab].
LogitsObserver = Callable[[list[int], Tensor], None]


class EosIds(Protocol):
    """The part of a tokenizer that the backend needs."""

    eos_ids: tuple[int, ...]


class _Flight:
    """A step that was launched: its batch, and its tokens on the device or on their way to the host."""

    def __init__(self, batch: Batch, output: StepOutput) -> None:
        self.batch = batch
        self.output = output
        self.sequences: list[Sequence] = [chunk.sequence for chunk in batch.chunks if chunk.samples]
        self.ids: Tensor | None = None
        self.host_ids: Tensor | None = None
        self.arrived: torch.cuda.Event | None = None


class NativeBackend:
    """EngineBackend over our own models. Every method is called from one thread. owned by: step loop"""

    def __init__(
        self, model: str | LoadedModel, device: str, dtype: str, max_batch_size: int, prefill_max_batch_size: int,
        clock: Clock, tokenizer: EosIds | None = None, *, block_size: int = 16, kv_blocks: int | None = None,
        kv_memory: int | None = None, prefix_cache: bool = True, prefill_max_tokens: int | None = None,
        chunked: bool = True, policy: Policy = "prefill_first", paged_attn: bool = True, cuda_graph: bool = False,
        compile: bool = False, overlap: bool = False, nvtx: bool = False, kernels: Kernels | None = None,
        torch_threads: int | None = None, logits_observer: LogitsObserver | None = None,
    ) -> None:  # fmt: skip
        """Load the model, unless it is loaded, and set up the cache.

        tokenizer: says what ends a text where the model's files do not.

        kv_blocks, kv_memory (bytes): size of the KV cache; neither: what `max_batch_size` full contexts take, within a
        share of the free memory. prefill_max_tokens: token budget of a step. torch_threads: None is one a core, on a
        CPU. Raises ConfigError.
        """
        for name, value in (("max_batch_size", max_batch_size), ("prefill_max_batch_size", prefill_max_batch_size)):
            if value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        self._device = choose_device(device)
        self._dtype = choose_dtype(dtype, self._device)
        if cuda_graph and self._device.type != "cuda":
            raise ConfigError(f"cuda_graph needs a CUDA device, the device is {device}")
        if cuda_graph and not paged_attn:
            raise ConfigError("cuda_graph needs paged_attn: the dense twin's shapes change with every step")
        self._clock = clock
        self._observer = logits_observer
        self._overlap = overlap
        self._ranges = make_ranges(nvtx)
        #: What the step loop takes its own ranges from; None: off.
        self.nvtx_range: Callable[[str], AbstractContextManager[None]] | None = self._ranges if nvtx else None
        own = self._device.type != "cpu" and torch_threads is None
        self._threads = torch.get_num_threads() if own else fit_threads_to_mask(torch_threads)
        if self._device.type == "cpu":
            keep_freed_memory()
        loaded = load_model(model) if isinstance(model, str) else model
        self._name, self._weights_from = loaded.name, loaded.weights_from
        self._eos_ids = loaded.eos_ids or (tokenizer.eos_ids if tokenizer is not None else ())
        with torch.inference_mode():
            self._parts: Parts = build_parts(
                loaded, self._device, self._dtype, kernels or Kernels(), max_batch_size=max_batch_size,
                block_size=block_size, kv_blocks=kv_blocks, kv_memory=kv_memory, paged_attn=paged_attn,
                cuda_graph=cuda_graph, compile=compile,
            )  # fmt: skip
        self._shape = self._parts.model.shape
        self._max_batch_size = max_batch_size
        self._settings = {
            "max_batch_size": max_batch_size, "prefill_max_batch_size": prefill_max_batch_size,
            "prefill_max_tokens": prefill_max_tokens or STEP_TOKENS[self._device.type], "scheduling": policy,
            "chunked_prefill": chunked, "prefix_cache": prefix_cache, "paged_attn": paged_attn,
            "cuda_graph": cuda_graph, "compile": compile, "overlap": overlap, "nvtx": nvtx,
        }  # fmt: skip
        self._in_flight: deque[_Flight] = deque()
        self._pool = BlockPool(self._parts.cache.num_blocks, block_size, prefix_cache)
        self._scheduler = Scheduler(
            self._pool, max_batch_size, prefill_max_batch_size, prefill_max_tokens or STEP_TOKENS[self._device.type],
            policy, chunked, clock,
        )  # fmt: skip

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    @property
    def pool(self) -> BlockPool:
        return self._pool

    def capacity(self) -> Capacity:
        return Capacity(self._shape.max_positions, self._shape.vocab_size, self._eos_ids)

    def describe(self) -> dict[str, object]:
        return {
            "engine": "native",
            "model": self._name,
            "weights": self._weights_from,
            "architecture": str(self._shape),
            "device": str(self._device),
            "device_name": torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else "cpu",
            "dtype": str(self._dtype).removeprefix("torch."),
            "threads": self._threads,
            "torch": torch.__version__,
            **self._settings,
            **self._parts.describe(),
        }

    def warm_up(self) -> None:
        """Pay what the first use costs (kernels, graphs, CUDA context, allocator, page faults) before the run."""
        with torch.inference_mode():
            self._parts.warm_up(TOUCHED_BYTES)
        observer, self._observer = self._observer, None
        longest = min(self._shape.max_positions // 2, self._pool.capacity * self._pool.block_size // 2)
        for row in range(min(self._max_batch_size, WARM_UP_ROWS)):
            # Each row ends one step after the one before it, so every number of decode rows comes up.
            prompt = [row % self._shape.vocab_size] * max(1, min(WARM_UP_PROMPT_TOKENS, longest))
            self.add(EngineRequest(row, prompt, max(1, min(row + 2, longest)), Sampling(stop_on_eos=False)))
        while self.has_work():
            self.step()
        self._observer = observer
        self.reset_prefix_cache()

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes: a run starts as the one before it did."""
        self._pool.reset_prefix_cache()

    def add(self, request: EngineRequest) -> None:
        self._scheduler.add(request)

    def abort(self, row: int) -> bool:
        return self._scheduler.abort(row)

    def has_work(self) -> bool:
        return bool(self._in_flight) or self._scheduler.has_work()

    @torch.inference_mode()
    def step(self) -> StepOutput:
        """One step, and with overlap the launch of the next one before this one's tokens are waited for."""
        if not self._in_flight:
            self._launch(None)
        if self._overlap and self._in_flight[0].batch.chunks:
            self._launch(self._in_flight[0])
        return self._land(self._in_flight.popleft())

    def close(self) -> None:
        """Drop the model and the cache, and give cached device memory back."""
        self._in_flight.clear()
        del self._parts
        self._scheduler = Scheduler(self._pool, 1, 1, 1, "prefill_first", True, self._clock)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _launch(self, before: _Flight | None) -> None:
        """Form a step and start its computation; `before` is the one in flight, whose tokens nobody knows yet."""
        batch = self._scheduler.schedule()
        if before is not None and not batch.chunks and not batch.failed:
            return
        output = StepOutput(batch_ns=self._clock(), failed=batch.failed, admitted=batch.admitted)
        output.preempted, output.preemptions = batch.readmitted, batch.preemptions
        output.prefill_tokens, output.decode_rows = batch.prefill_tokens, batch.decode_rows
        output.prefill_rows = len(batch.chunks) - batch.decode_rows
        output.kv_blocks_used = self._scheduler.kv_blocks_used()
        if batch.admitted:
            rows = set(batch.admitted)
            output.cached_tokens = [(c.sequence.row, c.sequence.num_cached) for c in batch.chunks
                                    if c.sequence.row in rows and c.sequence.num_cached]  # fmt: skip
        flight = _Flight(batch, output)
        self._in_flight.append(flight)
        if batch.chunks:
            with self._ranges("prefill" if output.prefill_rows else "decode"):
                self._compute(flight, before)

    def _compute(self, flight: _Flight, before: _Flight | None) -> None:
        pending = None
        if before is not None and before.ids is not None:
            pending = Pending(before.ids, {sequence.row: i for i, sequence in enumerate(before.sequences)})
        graphs = self._parts.graphs
        late = graphs.late_captures if graphs is not None else 0
        logits = self._parts.runner.forward(flight.batch.chunks, pending)
        if graphs is not None:
            flight.output.late_captures = graphs.late_captures - late
        if self._observer is not None and flight.sequences:
            self._observer([sequence.row for sequence in flight.sequences], logits)
        with self._ranges("sample"):
            self._sample(flight, logits)

    def _sample(self, flight: _Flight, logits: Tensor) -> None:
        if flight.sequences:
            done = [c.start + c.length - c.sequence.num_prompt_tokens for c in flight.batch.chunks if c.samples]
            flight.ids = choose(logits, [sequence.request.sampling for sequence in flight.sequences], done)
            flight.host_ids = flight.ids
        if self._device.type == "cuda":
            if flight.ids is not None:
                flight.host_ids = torch.empty(flight.ids.shape, dtype=flight.ids.dtype, pin_memory=True)
                flight.host_ids.copy_(flight.ids, non_blocking=True)
            # Waited for in `_land`: by then the next step may stand behind it in the stream.
            flight.arrived = torch.cuda.Event()
            flight.arrived.record()

    def _land(self, flight: _Flight) -> StepOutput:
        """Wait for a step's tokens, commit it, and tell whose last token has come."""
        if flight.arrived is not None:
            flight.arrived.synchronize()
        ids: list[int] = flight.host_ids.tolist() if flight.host_ids is not None else []
        flight.output.tokens_ns = self._clock()
        self._scheduler.commit(flight.batch)
        # Who was aborted, or ended one step ago, has a token here that nobody asked for.
        flight.output.tokens = [
            TokenEvent(sequence.row, token, self._append(sequence, token))
            for sequence, token in zip(flight.sequences, ids, strict=True) if not sequence.ended
        ]  # fmt: skip
        return flight.output

    def _append(self, sequence: Sequence, token: int) -> FinishReason:
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
