"""Runs the model over one batch: builds its inputs, gives back the logits of the positions that are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from engine_proc.attention.decode_attention import DecodeMaker, Span
from engine_proc.attention.kv_cache import PagedKVCache
from engine_proc.attention.passes import DenseAttention, PagedAttention
from engine_proc.models.base import Attention, Model
from engine_proc.scheduling.batch import Chunk

#: Most tokens in one forward pass on a CPU, where more gain nothing; a longer chunk becomes several passes.
CPU_PASS_TOKENS = 2048
#: ... and in the passes of a step that has fewer than LONG_STEP: in between, oneDNN's products take up to twice as long
#: a token as on either side (bfloat16 with AMX, 768 outputs).
SHORT_PASS_TOKENS, LONG_STEP = 512, 1536
#: With buckets, a pass is padded to a multiple of the step of the first of these sizes that holds it; the smallest is
#: not padded.
BUCKET_STEPS = ((16, 1), (512, 16), (1 << 62, 64))


class Pending(NamedTuple):
    """Tokens of the step in flight, on the device and not yet known here: by row, the place in `ids`."""

    ids: Tensor
    place: dict[int, int]


class DecodeGraphs(Protocol):
    """Captured decode steps of fixed sizes."""

    def fits(self, spans: Sequence[Span]) -> bool:
        """Whether a captured size holds these rows."""

    def __call__(self, ids: Tensor, spans: Sequence[Span]) -> Tensor:
        """float32 logits [rows, vocab]; valid until the next call."""


class _Piece(NamedTuple):
    """A chunk, or as much of one as fits a pass. `order`: its place among the logits; -1: it gives none."""

    sequence_row: int
    span: Span
    ids: list[int]
    order: int
    continues: bool


class ModelRunner:
    """Owns the model and its KV cache. Knows nothing of queues; called by the backend, in inference mode."""

    def __init__(
        self, model: Model, cache: PagedKVCache, device: torch.device, maker: DecodeMaker | None, *,
        buckets: bool = False, pass_tokens: int = CPU_PASS_TOKENS, graphs: DecodeGraphs | None = None,
    ) -> None:  # fmt: skip
        """`maker`: paged attention for decode rows; None: the dense twin for all of it.

        `buckets`: pad each pass to one of few lengths, all of which `warm_up` has run.
        """
        self._model = model
        self._cache = cache
        self._device = device
        self._maker = maker
        self._buckets = buckets
        self._pass_tokens = pass_tokens
        self.graphs = graphs

    def warm_up(self) -> None:
        """Run the linear layers once at each bucket, so that no request pays for a length that nobody had before."""
        num_tokens = 0
        while self._buckets and num_tokens < self._pass_tokens:
            num_tokens = bucket(num_tokens + 1)
            self._model.warm_up(num_tokens)

    def forward(self, chunks: Sequence[Chunk], pending: Pending | None = None) -> Tensor:
        """float32 logits [chunks that sample, vocab], in the order of the chunks.

        `pending`: where the newest token of a sequence is that only the device knows so far.
        """
        if pending is None and self.graphs is None and self._is_decode(chunks):
            return self._decode(chunks)
        order = [i for i, chunk in enumerate(chunks) if chunk.samples]
        place = {chunk: i for i, chunk in enumerate(order)}
        limit = pass_limit(sum(chunk.length for chunk in chunks), self._pass_tokens)
        pieces = [self._pieces(chunk, place.get(i, -1), limit) for i, chunk in enumerate(chunks)]
        spans = [chunk_pieces[0].span for chunk_pieces in pieces]
        is_decode = len(order) == len(chunks) and all(span.length == 1 for span in spans)
        if self.graphs is not None and is_decode and self.graphs.fits(spans):
            return self.graphs(self._ids([piece for (piece,) in pieces], 0, pending), spans)
        states: list[Tensor] = []
        orders: list[int] = []
        for part in _passes(pieces, limit):
            state, found = self._pass(part, pending)
            if found:
                states.append(state)
                orders += found
        if not orders:
            return torch.empty((0, self._model.shape.vocab_size), device=self._device)
        hidden = torch.cat(states) if len(states) > 1 else states[0]
        if orders != sorted(orders):
            hidden = hidden[self._on_device([orders.index(i) for i in range(len(orders))])]
        # The head reads the whole vocabulary's weights each time it is called: once for all passes.
        padded = bucket(len(orders)) - len(orders) if self._buckets else 0
        if padded:
            hidden = torch.cat((hidden, hidden.new_zeros((padded, hidden.shape[1]))))
        return self._model.logits(hidden)[: len(orders)]

    def _is_decode(self, chunks: Sequence[Chunk]) -> bool:
        """Whether it is one pass of single tokens, each of which gives logits, without padding."""
        fits = 0 < len(chunks) == bucket(len(chunks)) <= self._pass_tokens
        return fits and all(chunk.length == 1 and chunk.samples for chunk in chunks)

    def _decode(self, chunks: Sequence[Chunk]) -> Tensor:
        """A step of nothing but single tokens that the host knows, without what other steps need."""
        spans = [Span(chunk.sequence.block_table, chunk.start, 1) for chunk in chunks]
        ids = [chunk.sequence.token_ids[chunk.start] for chunk in chunks]
        assert min(ids) >= 0, "a negative id never reaches the model"
        positions = self._on_device([span.start for span in spans])
        return self._model.logits(self._model.hidden(self._on_device(ids), positions, self._attention(spans, 0), None))

    def _pieces(self, chunk: Chunk, order: int, limit: int) -> list[_Piece]:
        sequence, (first, length) = chunk.sequence, chunk[1:3]
        ids = sequence.token_ids[first : first + length]  # one short where the newest token is pending
        pieces = []
        for start in range(0, length, limit):
            size = min(limit, length - start)
            pieces.append(_Piece(
                sequence.row, Span(sequence.block_table, first + start, size), ids[start : start + size],
                order if start + size == length else -1, start > 0,
            ))  # fmt: skip
        return pieces

    def _pass(self, pieces: list[_Piece], pending: Pending | None) -> tuple[Tensor, list[int]]:
        """Hidden states of the last positions that give logits, and the place of each among them."""
        pieces = sorted(pieces, key=lambda piece: piece.span.length > 1)  # stable: rows first
        spans = [piece.span for piece in pieces]
        num_tokens = sum(span.length for span in spans)
        padding = bucket(num_tokens) - num_tokens if self._buckets else 0
        ids = self._ids(pieces, padding, pending)
        positions = [p for span in spans for p in range(span.start, span.start + span.length)] + [0] * padding
        last, end = [], 0
        for piece in pieces:
            end += piece.span.length
            if piece.order >= 0:
                last.append(end - 1)
        found = [piece.order for piece in pieces if piece.order >= 0]
        rows: Tensor | None = None
        if len(last) != num_tokens:  # not all of them: the last layer computes few rows
            wanted = last or [0]
            rows = self._on_device(wanted + wanted[:1] * (bucket(len(wanted)) - len(wanted) if self._buckets else 0))
        state = self._model.hidden(ids, self._on_device(positions), self._attention(spans, padding), rows)
        return state[: len(found)], found

    def _attention(self, spans: list[Span], padding: int) -> Attention:
        dtype = self._cache.shape.dtype
        if self._maker is None:
            return DenseAttention(self._cache, spans, padding, dtype, self._device)
        return PagedAttention(self._cache, self._maker, spans, padding, dtype, self._device)

    def _ids(self, pieces: list[_Piece], padding: int, pending: Pending | None) -> Tensor:
        """The pieces' tokens on the device; those that only the device knows are copied there."""
        ids: list[int] = []
        targets, sources = [], []
        for piece in pieces:
            ids += piece.ids
            if len(piece.ids) < piece.span.length:
                assert pending is not None, f"row {piece.sequence_row}: a token is unknown, and no step is in flight"
                targets.append(len(ids))
                sources.append(pending.place[piece.sequence_row])
                ids.append(0)
        assert min(ids) >= 0, "a negative id never reaches the model"
        tensor = self._on_device(ids + [0] * padding)
        if targets and pending is not None:
            tensor[self._on_device(targets)] = pending.ids[self._on_device(sources)]
        return tensor

    def _on_device(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).to(self._device, non_blocking=True)


def bucket(num_tokens: int) -> int:
    """The padded length of a pass of `num_tokens` tokens: decode steps of few rows are not padded."""
    step = next(step for size, step in BUCKET_STEPS if num_tokens <= size)
    return -(-num_tokens // step) * step


def pass_limit(num_tokens: int, most: int) -> int:
    """Most tokens of each pass of a step of `num_tokens`, where a pass may have `most`."""
    return most if most > CPU_PASS_TOKENS or num_tokens >= LONG_STEP else min(most, SHORT_PASS_TOKENS)


def _passes(chunks: Sequence[list[_Piece]], limit: int) -> Iterator[list[_Piece]]:
    """Cut a batch into passes of at most `limit` tokens, single tokens first. A chunk's pieces are in passes of their
    own order: a later piece attends to what an earlier one has stored."""
    part: list[_Piece] = []
    tokens = 0
    for piece in (p for pieces in sorted(chunks, key=lambda c: c[0].span.length > 1) for p in pieces):
        if part and (piece.continues or tokens + piece.span.length > limit):
            yield part
            part, tokens = [], 0
        part.append(piece)
        tokens += piece.span.length
    if part:
        yield part
