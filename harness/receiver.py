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
            for event in news:
                self._apply(event, arrival.t_wire)
        return self.messages - before

    def _apply(self, event: ResultEvent, t_wire: int) -> None:
        cells = self._cells
        base = event.row * self._width
        if cells[base + STATUS] != Status.NONE:  # a second end, or a token after the end: a bug of ours
            self._count("repeated_results")
            return
        self._count("results")
        cells[base + TOKENS] = event.tokens
        if event.tokens and cells[base + DELIVERED] == 0:
            cells[base + DELIVERED] = t_wire
            self._count("delivered")
        if event.status != Status.NONE:
            cells[base + STATUS] = event.status
            if event.status == Status.COMPLETED and event.tokens:
                cells[base + FINISHED] = t_wire
            cells[base + ENDED] = t_wire  # before the count: a pacer looks at the rows when the count has changed
            self._count("finished")
            self.terminal += 1

    def _count(self, word: str) -> None:
        self._control[CONTROL_WORDS[word]] += 1
