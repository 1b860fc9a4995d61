"""The client side of the results: takes messages from the receiver's wire and stamps rows with the wire's times."""

from __future__ import annotations

from harness.common.collector import CONTROL_WORDS, Collector
from harness.common.errors import FrameError
from harness.common.protocol import Complaint, ResultEvent, unpack_results
from harness.common.stamps import RECEIVER_COLUMNS, Status
from harness.common.wire import Wire

_CELL = {name: i for i, name in enumerate(RECEIVER_COLUMNS)}
DELIVERED, FINISHED, STATUS, TOKENS, ENDED = (
    _CELL[name] for name in ("t_delivered", "t_finished", "receiver_status", "received_tokens", "t_ended")
)
MAX_COMPLAINTS_KEPT = 100


class Receiver:
    """Owned by: the harness's main thread; the only writer of the receiver block but for its two close columns."""

    def __init__(self, wire: Wire, collector: Collector) -> None:
        self._wire = wire
        self._num_rows = collector.shape.rows
        self._cells = memoryview(collector.receiver).cast("B").cast("q")
        self._width = collector.receiver.shape[1]
        self._control = memoryview(collector.control).cast("B").cast("q")
        self.messages = 0
        self.terminal = 0
        self.complaints: list[Complaint] = []

    def consume(self) -> int:
        """Take everything that is there; returns the number of messages."""
        before = self.messages
        while (arrival := self._wire.pop()) is not None:
            self.messages += 1
            try:
                news = unpack_results(arrival.frame, self._num_rows)
            except FrameError:
                self._count("result_bad_frames")
                continue
            if isinstance(news, Complaint):
                self._count("complaints")
                if len(self.complaints) < MAX_COMPLAINTS_KEPT:
                    self.complaints.append(news)
                continue
            self._apply(news, arrival.t_wire)
        return self.messages - before

    def _apply(self, events: list[ResultEvent], t_wire: int) -> None:
        """Stamp the rows of one message, then count: a pacer looks at the rows when the count has changed."""
        cells, width = self._cells, self._width
        results = delivered = finished = 0
        for row, tokens, status, _ in events:
            base = row * width
            if cells[base + STATUS] != Status.NONE:  # a second end, or a token after the end: a bug of ours
                self._count("repeated_results")
                continue
            results += 1
            cells[base + TOKENS] = tokens
            if tokens and cells[base + DELIVERED] == 0:
                cells[base + DELIVERED] = t_wire
                delivered += 1
            if status != Status.NONE:
                cells[base + STATUS] = status
                if status == Status.COMPLETED and tokens:
                    cells[base + FINISHED] = t_wire
                cells[base + ENDED] = t_wire
                finished += 1
        self._count("results", results)
        self._count("delivered", delivered)
        self._count("finished", finished)
        self.terminal += finished

    def _count(self, word: str, events: int = 1) -> None:
        self._control[CONTROL_WORDS[word]] += events
