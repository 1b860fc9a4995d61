"""The engine's tokenizer as the plan sees it: batches over the control channel, before READY."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from harness.common import control as words
from harness.plan.draft import Int32Array, Vocabulary
from harness.session.children import Child
from harness.session.events import Events

#: Characters or ids of one message; a larger batch takes several, so that none nears the control channel's limit.
BATCH_SIZE = 1 << 24


class EngineTokenizer:
    """A `TokenizerLink` to the engine process. Each answer has `timeout_s`. Raises as `Events.expect`."""

    def __init__(self, events: Events, engine: Child, timeout_s: float) -> None:
        self._events = events
        self._engine = engine
        self._timeout_s = timeout_s
        self._vocabulary: Vocabulary | None = None

    def tokenize(self, texts: Sequence[str]) -> list[Int32Array]:
        """Token ids of each text, int32."""
        rows: list[Int32Array] = []
        for first, end in _batches([len(text) for text in texts]):
            self._events.send(self._engine, words.TOKENIZE, texts=list(texts[first:end]))
            body = self._events.expect(self._engine, words.TOKENIZED, self._timeout_s)
            flat = np.frombuffer(body["ids"], dtype="<i4")
            starts = np.frombuffer(body["starts"], dtype="<i8")
            rows.extend(flat[starts[i] : starts[i + 1]] for i in range(end - first))
        return rows

    def detokenize(self, rows: Sequence[Int32Array]) -> list[str]:
        """The text of each row of ids."""
        texts: list[str] = []
        for first, end in _batches([len(row) for row in rows]):
            self._events.send(self._engine, words.DETOKENIZE, rows=[row.tolist() for row in rows[first:end]])
            texts.extend(self._events.expect(self._engine, words.DETOKENIZED, self._timeout_s)["texts"])
        return texts

    def vocabulary(self) -> Vocabulary:
        """What the engine can take; asked for once."""
        if self._vocabulary is None:
            self._events.send(self._engine, words.DESCRIBE)
            body = self._events.expect(self._engine, words.DESCRIBED, self._timeout_s)
            self._vocabulary = Vocabulary(body["vocab_size"], tuple(body["special_ids"]), body["max_model_len"])
        return self._vocabulary


def _batches(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """first, end of consecutive items of at most BATCH_SIZE together, one item at least."""
    first = total = 0
    for place, size in enumerate(sizes):
        if place > first and total + size > BATCH_SIZE:
            yield first, place
            first, total = place, 0
        total += size
    if first < len(sizes):
        yield first, len(sizes)
