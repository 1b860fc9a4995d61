"""Decode steps captured as CUDA graphs at warm-up, for fixed numbers of rows and fixed lengths.

A step replays the smallest graph that holds it. Rows beyond its own are padding: they write to the padding block,
attend to that one token, and their logits are thrown away. Where a step fits no graph it runs as it would without any;
a capture after warm-up is counted in `late_captures`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine_proc.attention.decode_attention import GatherDecode, GatherInputs, Span, gather_inputs
from engine_proc.attention.kv_cache import PagedKVCache
from engine_proc.models.base import Model

#: Tokens of the shortest captured length; each further one is twice as long.
SHORTEST_TOKENS = 256

#: Runs a function so that `replay` runs it again on the same memory: (function) -> replay.
Capture = Callable[[Callable[[], None]], Callable[[], None]]


def batch_sizes(max_batch_size: int) -> list[int]:
    """1, 2, 4, 8, then every eighth, and the largest itself."""
    sizes = [size for size in (1, 2, 4) if size < max_batch_size]
    return [*sizes, *range(8, max_batch_size, 8), max_batch_size]


def widths(max_tokens: int, block_size: int) -> list[int]:
    """Lengths of a table, in blocks, doubling up to the whole context."""
    longest = -(-max_tokens // block_size)
    found, width = [], -(-SHORTEST_TOKENS // block_size)
    while width < longest:
        found.append(width)
        width *= 2
    return [*found, longest]


@dataclass(slots=True)
class _Graph:
    replay: Callable[[], None]
    ids: Tensor
    positions: Tensor
    inputs: GatherInputs
    logits: Tensor


class CapturedDecode:
    """The graphs of one model over one cache. `capture`: `capture_cuda`, or a stand-in where tests have no device."""

    def __init__(
        self, model: Model, cache: PagedKVCache, device: torch.device, max_batch_size: int, max_tokens: int,
        capture: Capture,
    ) -> None:  # fmt: skip
        self._model = model
        self._cache = cache
        self._device = device
        self._capture = capture
        self._sizes = batch_sizes(max_batch_size)
        self._widths = widths(max_tokens, cache.block_size)
        self._graphs: dict[tuple[int, int], _Graph] = {}
        self._is_warm = False
        self.late_captures = 0

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def warm_up(self) -> None:
        """Capture every size, the largest first, so that the smaller ones find its memory."""
        for size in reversed(self._sizes):
            for width in reversed(self._widths):
                self._make(size, width)
        self._is_warm = True

    def fits(self, spans: Sequence[Span]) -> bool:
        return self._key(spans) is not None

    def __call__(self, ids: Tensor, spans: Sequence[Span]) -> Tensor:
        key = self._key(spans)
        assert key is not None, "asked for more rows than were captured"
        graph = self._graphs.get(key) or self._make(*key)
        size, width = key
        tables, lengths, blocks, offsets = gather_inputs(spans, self._cache.block_size, size, width)
        graph.ids[: len(spans)].copy_(ids)
        graph.ids[len(spans) :].zero_()
        positions = [span.start for span in spans] + [0] * (size - len(spans))
        for target, values in (
            (graph.positions, positions), (graph.inputs.tables.view(-1), tables), (graph.inputs.lengths, lengths),
            (graph.inputs.blocks, blocks), (graph.inputs.offsets, offsets),
        ):  # fmt: skip
            target.copy_(torch.tensor(values), non_blocking=True)
        graph.replay()
        return graph.logits[: len(spans)]

    def _key(self, spans: Sequence[Span]) -> tuple[int, int] | None:
        blocks = max(span.start for span in spans) // self._cache.block_size + 1
        size = next((size for size in self._sizes if size >= len(spans)), None)
        width = next((width for width in self._widths if width >= blocks), None)
        return None if size is None or width is None else (size, width)

    def _make(self, size: int, width: int) -> _Graph:
        self.late_captures += self._is_warm
        ids, positions, blocks, offsets = (torch.zeros(size, dtype=torch.int64, device=self._device) for _ in range(4))
        inputs = GatherInputs(
            torch.zeros((size, width), dtype=torch.int64, device=self._device), torch.ones_like(ids), blocks, offsets
        )
        logits = torch.empty((size, self._model.shape.vocab_size), dtype=torch.float32, device=self._device)

        def run() -> None:
            attention = GatherDecode(self._cache, inputs)
            logits.copy_(self._model.logits(self._model.hidden(ids, positions, attention)))

        graph = self._graphs[size, width] = _Graph(self._capture(run), ids, positions, inputs, logits)
        return graph


def capture_cuda(pool: list[tuple[int, int]]) -> Capture:
    """Capture with torch.cuda.graph; all graphs share one memory pool, kept in `pool`."""

    def capture(function: Callable[[], None]) -> Callable[[], None]:
        # What a first call sets up (cuBLAS, allocator) must not happen inside a capture.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function()
            function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool[0] if pool else None):  # type: ignore[arg-type]
            function()
        if not pool:
            pool.append(graph.pool())
        return graph.replay

    return capture
