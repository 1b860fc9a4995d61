"""Runs the model over one batch: builds its inputs, gives back the logits of the positions that are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from engine_proc import scheduler
from engine_proc.attention import DecodeAttention, PrefillAttention
from engine_proc.kv_cache import DenseKVCache
from engine_proc.models.gpt2 import GPT2

#: Most prompt tokens in one forward pass of whole prompts; a longer prompt is a pass of its own. More gain nothing.
MAX_PASS_TOKENS = 512
#: With buckets, a pass is padded to a multiple of the first up to MAX_PASS_TOKENS, and of the second beyond.
BUCKET_STEP, LONG_BUCKET_STEP = 16, 128


class ModelRunner:
    """Owns the model and its KV cache. Knows nothing of queues; called by the backend, in inference mode."""

    def __init__(
        self, model: GPT2, cache: DenseKVCache, device: torch.device, matmul_decode: bool, bucket_prefill: bool
    ) -> None:
        """`bucket_prefill`: pad each prefill pass to one of few lengths, all of which `warm_up` has run."""
        self._model = model
        self._cache = cache
        self._device = device
        self._matmul_decode = matmul_decode
        self._bucket_prefill = bucket_prefill

    def warm_up(self) -> None:
        """Run the linear layers once at each bucket, so that no prompt pays for a length that nobody had before."""
        longest = max(MAX_PASS_TOKENS, self._model.config.max_positions)
        num_tokens = 0
        while self._bucket_prefill and num_tokens < longest:
            num_tokens = bucket(num_tokens + 1)
            self._model.warm_up(num_tokens)

    def prefill(self, sequences: Sequence[scheduler.Sequence]) -> Tensor:
        """float32 logits [len(sequences), vocab] of each prompt's last position, in the order given."""
        # The head reads 39 million weights each time it is called: once for all passes.
        return self._model.logits(torch.cat([self._prefill_pass(part) for part in _passes(sequences)]))

    def decode(self, sequences: Sequence[scheduler.Sequence]) -> Tensor:
        """float32 logits [len(sequences), vocab] after each sequence's last output token, in the order given."""
        ids = self._on_device([sequence.output_ids[-1] for sequence in sequences])
        positions = [sequence.num_tokens - 1 for sequence in sequences]
        slots = [sequence.slot for sequence in sequences]
        attention = DecodeAttention(self._cache, slots, positions, self._device, self._matmul_decode)
        return self._model.logits(self._model.hidden(ids, self._on_device(positions), attention))

    def _prefill_pass(self, sequences: Sequence[scheduler.Sequence]) -> Tensor:
        """Hidden states [len(sequences), hidden] of the last positions."""
        prompts = [sequence.request.prompt_ids for sequence in sequences]
        lengths = [len(prompt) for prompt in prompts]
        padding = [0] * (bucket(sum(lengths)) - sum(lengths) if self._bucket_prefill else 0)
        ids = self._on_device([int(token) for prompt in prompts for token in prompt] + padding)
        positions = self._on_device([position for length in lengths for position in range(length)] + padding)
        last = torch.tensor(lengths).cumsum(0).sub_(1).to(self._device)
        slots = [sequence.slot for sequence in sequences]
        attention = PrefillAttention(self._cache, slots, lengths, len(padding))
        return self._model.hidden(ids, positions, attention, last)

    def _on_device(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).to(self._device, non_blocking=True)


def bucket(num_tokens: int) -> int:
    """The padded length of a pass of `num_tokens` tokens."""
    step = BUCKET_STEP if num_tokens <= MAX_PASS_TOKENS else LONG_BUCKET_STEP
    return -(-num_tokens // step) * step


def _passes(sequences: Sequence[scheduler.Sequence]) -> Iterator[list[scheduler.Sequence]]:
    """Cut a batch of prompts into passes of at most MAX_PASS_TOKENS tokens; a longer prompt is a pass of its own."""
    part: list[scheduler.Sequence] = []
    tokens = 0
    for sequence in sequences:
        length = len(sequence.request.prompt_ids)
        if part and tokens + length > MAX_PASS_TOKENS:
            yield part
            part, tokens = [], 0
        part.append(sequence)
        tokens += length
    if part:
        yield part
