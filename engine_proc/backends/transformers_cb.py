"""transformers' continuous batching as a backend: a second opinion on tokens, run after our own validation. Greedy.

Its manager wants a thread of its own, and its stamps are lost when it evicts a request. So its batch processor is
driven from the step loop's thread instead, one `prepare, compute, update` a step, and rows are stamped as everywhere.
These are private names, which change between its versions: `transformers_model` requires the one they are of.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.model_runner import infer_max_single_request_tokens
from transformers.generation.continuous_batching.requests import RequestState, RequestStatus

from engine_proc.backends.base import Capacity, EngineRequest, Failure, StepOutput, TokenEvent
from engine_proc.backends.transformers_model import TransformersModel
from harness.common.clock import Clock
from harness.common.errors import ConfigError
from harness.common.protocol import Sampling
from harness.common.specs import EngineOptions
from harness.common.stamps import FinishReason, Reason

#: Its own defaults take 60 % of the memory and build a mask of max_batch_tokens x all cached tokens.
BLOCK_SIZE, MAX_BATCH_TOKENS, CACHE_TOKENS = 16, 512, 16_384
_POLICIES = {"decode_first": "fifo", "prefill_first": "prefill_first"}


class _NoOutput:
    """In the place of its output queue, which nobody would empty: what came out is read from the batch."""

    def deliver(self, output: Any) -> None:
        pass

    def deliver_batch(self, outputs: list[Any]) -> None:
        pass

    def fail_and_deliver(self, state: Any, error: Exception) -> None:
        raise error  # nothing that passed our validation should get here


class TransformersBackend:
    """EngineBackend over a ContinuousBatchProcessor. Every method is called from one thread. owned by: step loop"""

    def __init__(self, model: TransformersModel, max_batch_size: int, options: EngineOptions, clock: Clock) -> None:
        """Raises ConfigError where the cache does not fit the memory."""
        self._model = model
        self._clock = clock
        self._options = options
        self._max_batch_size = max_batch_size
        self._block_size = options.block_size or BLOCK_SIZE
        self._waiting: set[int] = set()
        self._running: dict[int, int] = {}  # admitted rows, and when they were evicted; 0 while they are not
        self._failed: list[Failure] = []
        with torch.inference_mode():
            self._processor = self._make_processor()
        self._scheduler, self._cache = self._processor.scheduler, self._processor.cache
        self._max_cached_tokens = infer_max_single_request_tokens(self._cache)

    def _make_processor(self) -> Any:
        cache_tokens = max(self._model.max_positions, CACHE_TOKENS)
        config = ContinuousBatchingConfig(
            page_size=self._block_size,
            num_blocks=self._options.kv_blocks or -(-cache_tokens // self._block_size),
            max_batch_tokens=self._options.prefill_max_tokens or MAX_BATCH_TOKENS,
            max_requests_per_batch=self._max_batch_size,
            max_blocks_per_request=0,
            allow_block_sharing=self._options.prefix_cache,
            use_async_batching=False,
            use_cuda_graph=False,
            scheduler_type=_POLICIES[self._options.policy],
            auto_switch_to_flash=False,
        )
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1)  # each request brings its own ends
        try:
            manager = self._model.module.init_continuous_batching(greedy, config)
            processor = manager._create_batch_processor()
        except (MemoryError, ValueError) as error:
            raise ConfigError(f"--engine transformers: {' '.join(str(error).split())[:200]}") from error
        processor.output_router = _NoOutput()
        return processor

    def capacity(self) -> Capacity:
        return Capacity(self._model.max_positions, self._model.vocab_size, self._model.eos_ids)

    def describe(self) -> dict[str, object]:
        model = self._model
        return {
            "engine": f"transformers {transformers.__version__} continuous batching",
            "model": model.name,
            "weights": model.weights_from,
            "architecture": type(model.module).__name__,
            "device": str(model.device),
            "device_name": torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else "cpu",
            "dtype": str(model.module.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "max_batch_size": self._max_batch_size,
            "prefill_max_tokens": self._cache.max_batch_tokens,
            "scheduling": self._options.policy,
            "block_size": self._block_size,
            "kv_blocks": self._cache.num_blocks,
            "prefix_cache": self._cache.use_prefix_sharing,
            "paged_attn": True,
            "cuda_graph": False,
            "nvtx": False,
        }

    def warm_up(self) -> None:
        """Pay what the first use costs before the run."""
        length = min(32, self._model.max_positions // 2, self._max_cached_tokens // 2)
        for row in range(min(self._max_batch_size, 8)):
            prompt = [row % self._model.vocab_size] * max(length, 1)
            self.add(EngineRequest(-1 - row, prompt, min(row + 2, max(length, 1)), Sampling(stop_on_eos=False)))
        while self.has_work():
            self.step()
        self.reset_prefix_cache()

    def add(self, request: EngineRequest) -> None:
        needed = len(request.prompt_ids) + request.max_new_tokens - 1  # the last token is never read from the cache
        if needed > self._max_cached_tokens:
            size = self._block_size
            blocks, capacity = -(-needed // size), self._max_cached_tokens // size
            self._failed.append(Failure(request.row, Reason.TOO_LARGE_FOR_CACHE, blocks, capacity))
            return
        if request.sampling.temperature > 0.0:  # the harness refuses it; another client may not
            self._failed.append(Failure(request.row, Reason.BACKEND_ERROR))
            return
        self._waiting.add(request.row)
        self._scheduler.add_waiting_request(
            RequestState(
                request_id=str(request.row),
                initial_tokens=list(map(int, request.prompt_ids)),
                max_new_tokens=request.max_new_tokens,
                eos_token_id=list(self._model.eos_ids) if request.sampling.stop_on_eos else None,
            )
        )

    def abort(self, row: int) -> bool:
        if row not in self._waiting and row not in self._running:
            return False
        self._waiting.discard(row)
        self._running.pop(row, None)
        self._scheduler.set_request_cancellation(str(row))
        self._scheduler.clear_cancelled_requests()
        if not self._scheduler.active_requests:
            self._scheduler.block_new_requests = False  # it waits for a request to finish, and none is left
        return True

    def has_work(self) -> bool:
        return bool(self._waiting or self._running or self._failed)

    def reset_prefix_cache(self) -> None:
        self._cache.evict_cached_blocks()

    @torch.inference_mode()
    def step(self) -> StepOutput:
        output = StepOutput(failed=self._failed)
        self._failed = []
        if not self.has_work():
            return output
        prepared = self._processor.prepare_next_batch()
        output.batch_ns = self._clock()
        self._note_evicted(output)
        if not prepared:
            return output
        batch = list(self._processor.inputs_and_outputs.requests_in_batch)
        for future in batch:
            self._note_scheduled(future.state, future.query_length, output)
        output.kv_blocks_used = self._blocks_used()
        self._processor._generation_step(self._model.module)
        self._processor.update_batch()  # brings the tokens to the host
        output.tokens_ns = self._clock()
        output.tokens = [self._token(future.state) for future in batch if future.has_new_token]
        return output

    def close(self) -> None:
        """Drop the model and the cache, and give cached device memory back."""
        device = self._model.device
        del self._processor, self._scheduler, self._cache, self._model
        if device.type == "cuda":
            torch.cuda.empty_cache()

    def _note_evicted(self, output: StepOutput) -> None:
        """Its way to make room is to queue a running request anew under the same id, with its output as prompt."""
        active = self._scheduler.active_requests
        for row, evicted_ns in self._running.items():
            if not evicted_ns and str(row) not in active:
                self._running[row] = output.batch_ns
                output.preemptions += 1

    def _note_scheduled(self, state: RequestState, length: int, output: StepOutput) -> None:
        row = int(state.request_id)
        if row in self._waiting:
            self._waiting.remove(row)
            output.admitted.append(row)
            if state.position_offset > length:  # where it stands after this step, less what the step computes
                output.cached_tokens.append((row, state.position_offset - length))
        elif self._running[row]:
            output.preempted.append((row, output.batch_ns - self._running[row]))
        self._running[row] = 0
        if state.generated_tokens:
            output.decode_rows += 1
        else:
            output.prefill_rows += 1
            output.prefill_tokens += length

    def _token(self, state: RequestState) -> TokenEvent:
        row, token = int(state.request_id), state.generated_tokens[-1]
        finish = FinishReason.NONE
        if state.status == RequestStatus.FINISHED:
            del self._running[row]
            finish = FinishReason.EOS if token in state._eos_token_ids else FinishReason.LENGTH
        return TokenEvent(row, token, finish)

    def _blocks_used(self) -> int:
        """Blocks of the requests under way, each once, of the first kind of attention (there seldom is another)."""
        tables = next(iter(self._cache.cache_allocators.values())).block_table.values()
        return len({block for table in tables for block in table})
