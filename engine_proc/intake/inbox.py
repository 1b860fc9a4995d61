"""What ingress and tokenizer workers hand to the step loop. The queue is C code: putting never gives up the GIL."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from typing import NamedTuple

from engine_proc.backends.base import EngineRequest


class Turned(NamedTuple):
    """A request that ended before the backend saw it; its row says how. `status` and `finish` as in the results."""

    row: int
    status: int
    finish: int


class Duplicate(NamedTuple):
    """A message that named a row which was already seen; that row is none of its business."""

    row: int


class Abort(NamedTuple):
    """The client gave up a row that ingress has seen; its request may still be with a tokenizer worker."""

    row: int


InboxItem = EngineRequest | Turned | Duplicate | Abort


class Inbox:
    """Many putters, one taker (the step loop)."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[InboxItem] = SimpleQueue()
        self.put = self._queue.put

    def take_all(self) -> list[InboxItem]:
        """Everything that is there now."""
        items = []
        try:
            while True:
                items.append(self._queue.get_nowait())
        except Empty:
            return items

    def wait(self, timeout_s: float) -> InboxItem | None:
        """The next item, or None after `timeout_s`."""
        try:
            return self._queue.get(timeout=timeout_s)
        except Empty:
            return None
