"""The step loop: drains the inbox, steps the backend, stamps and sends what came out. The engine's main thread."""

from __future__ import annotations

from engine_proc.backends.base import EngineBackend, EngineRequest, StepOutput
from engine_proc.egress import Egress
from engine_proc.inbox import Duplicate, Inbox, InboxItem, Turned
from harness.common.clock import Clock
from harness.common.collector import CONTROL_WORDS, Collector
from harness.common.errors import BackendError
from harness.common.protocol import ResultEvent
from harness.common.stamps import ENGINE_COLUMNS, STEP_COLUMNS, FinishReason, Reason, Status, reason_text

IDLE_WAIT_S = 0.05  # how often an idle loop looks at the stop word

_CELL = {name: i for i, name in enumerate(ENGINE_COLUMNS)}
QUEUED, SCHEDULED, FIRST, LAST = (
    _CELL[name] for name in ("t_queued", "t_scheduled", "t_first_token", "t_last_token")
)
OUTPUT_TOKENS, PREEMPTIONS, PREEMPTED_NS = (
    _CELL[name] for name in ("output_tokens", "preemptions", "preempted_ns")
)
STATUS, FINISH, ERROR_CODE, ERROR_A, ERROR_B = (
    _CELL[name] for name in ("engine_status", "finish_reason", "error_code", "error_a", "error_b")
)

_FINISHES = frozenset(FinishReason)


class StepLoop:
    """Owns the backend, the egress socket, the step table and the token log."""

    def __init__(
        self, backend: EngineBackend, inbox: Inbox, egress: Egress, collector: Collector, clock: Clock
    ) -> None:
        self._backend = backend
        self._inbox = inbox
        self._egress = egress
        self._clock = clock
        self._shape = collector.shape
        self._control = memoryview(collector.control).cast("B").cast("q")
        self._cells = memoryview(collector.engine).cast("B").cast("q")
        self._width = collector.engine.shape[1]
        self._steps = memoryview(collector.steps).cast("B").cast("q")
        self._step_width = collector.steps.shape[1]
        self._tokens = memoryview(collector.tokens).cast("B").cast("q")
        self._vocab_size = backend.capacity().vocab_size
        self._open: dict[int, int] = {}  # rows that the backend holds: the most tokens that each may get
        self._crash: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Called by another thread that cannot go on; the loop raises it at its next turn."""
        self._crash = error

    def run(self) -> None:
        """Loop until the stop word is set. Raises what the backend or a helper thread raised."""
        stop = CONTROL_WORDS["stop"]
        while self._control[stop] == 0:
            if self._crash is not None:
                raise self._crash
            items = self._inbox.take_all()
            if items:
                self._enter(items)
            if self._backend.has_work():
                self._step()
            elif not items:
                item = self._inbox.wait(IDLE_WAIT_S)
                if item is not None:
                    self._enter([item])

    def _enter(self, items: list[InboxItem]) -> None:
        """Put new requests into the waiting queue; pass on what ended before it."""
        now = self._clock()
        ended = []
        for item in items:
            if isinstance(item, EngineRequest):
                self._cells[item.row * self._width + QUEUED] = now
                self._open[item.row] = item.max_new_tokens
                self._backend.add(item)
            elif isinstance(item, Turned):
                if item.status == Status.COMPLETED:
                    self._cells[item.row * self._width + QUEUED] = now
                ended.append(ResultEvent(item.row, 0, item.status, item.finish))
            else:
                self._complain(item)
        self._send(ended, terminal=len(ended))

    def _complain(self, duplicate: Duplicate) -> None:
        text = reason_text(Reason.DUPLICATE_ID, 0, 0)
        self._control[CONTROL_WORDS["egress_messages"]] += self._egress.complaint(duplicate.row, text)

    def _step(self) -> None:
        start = self._clock()
        output = self._backend.step()
        end = self._clock()
        batch_ns = output.batch_ns or start
        tokens_ns = output.tokens_ns or end
        for row in output.admitted:
            self._require_open(row, "an admission")
            self._cells[row * self._width + SCHEDULED] = batch_ns
        for row, preempted_ns in output.preempted:
            self._require_open(row, "a preemption")
            self._cells[row * self._width + PREEMPTIONS] += 1
            self._cells[row * self._width + PREEMPTED_NS] += preempted_ns
        events, terminal = self._events(output, tokens_ns)
        self._log_tokens(output)
        self._send(events, terminal)
        self._log_step(output, start, batch_ns, tokens_ns)

    def _require_open(self, row: int, what: str) -> None:
        """No row but one in the backend's hands: another's cells would be written, or none at all."""
        if row not in self._open:
            raise BackendError(f"step() returned {what} of row {row!r}, which the engine does not hold")

    def _check_token(self, row: int, token_id: int, finish: int, count: int) -> None:
        """Raises BackendError for a token that the request cannot have got."""
        if count > self._open[row]:
            raise BackendError(f"step() returned token {count} of row {row}, which asked for {self._open[row]}")
        if not 0 <= token_id < self._vocab_size:
            raise BackendError(f"step() gave token id {token_id} of row {row}, the vocabulary has {self._vocab_size}")
        if finish not in _FINISHES:
            raise BackendError(f"step() returned finish {finish!r} of row {row}, which is no FinishReason")

    def _events(self, output: StepOutput, tokens_ns: int) -> tuple[list[ResultEvent], int]:
        """Stamp the rows and list their news: first tokens and ends; tokens in between need no message."""
        cells, width = self._cells, self._width
        events = []
        terminal = 0
        for row, token_id, finish in output.tokens:
            self._require_open(row, "a token")
            base = row * width
            count = cells[base + OUTPUT_TOKENS] + 1
            self._check_token(row, token_id, finish, count)
            cells[base + OUTPUT_TOKENS] = count
            if count == 1:
                cells[base + FIRST] = tokens_ns
            cells[base + LAST] = tokens_ns
            if finish != FinishReason.NONE:
                cells[base + STATUS] = Status.COMPLETED
                cells[base + FINISH] = finish
                events.append(ResultEvent(row, count, Status.COMPLETED, finish))
                del self._open[row]
                terminal += 1
            elif count == 1:
                events.append(ResultEvent(row, 1, Status.NONE, FinishReason.NONE))
        for row, reason, a, b in output.failed:
            self._require_open(row, "a failure")
            base = row * width
            cells[base + ERROR_CODE], cells[base + ERROR_A], cells[base + ERROR_B] = reason, a, b
            cells[base + STATUS] = Status.FAILED
            events.append(ResultEvent(row, cells[base + OUTPUT_TOKENS], Status.FAILED, FinishReason.NONE))
            del self._open[row]
            terminal += 1
        return events, terminal

    def _log_tokens(self, output: StepOutput) -> None:
        word = CONTROL_WORDS["tokens"]
        at = self._control[word]
        room = self._shape.tokens - at
        if len(output.tokens) > room:
            self._control[CONTROL_WORDS["tokens_lost"]] += len(output.tokens) - max(room, 0)
        for row, token_id, _ in output.tokens[: max(room, 0)]:
            self._tokens[at] = row << 32 | token_id
            at += 1
        self._control[word] = at

    def _send(self, events: list[ResultEvent], terminal: int) -> None:
        if events:
            self._control[CONTROL_WORDS["egress_messages"]] += self._egress.results(events)
            self._control[CONTROL_WORDS["terminal"]] += terminal

    def _log_step(self, output: StepOutput, start: int, batch_ns: int, tokens_ns: int) -> None:
        control = self._control
        number = control[CONTROL_WORDS["steps"]]
        end = self._clock()
        if number < self._shape.steps:
            base = number * self._step_width
            row = (
                start, batch_ns, tokens_ns, end, output.prefill_tokens, output.decode_rows, output.kv_blocks_used,
                output.preemptions, control[CONTROL_WORDS["tokens"]], control[CONTROL_WORDS["current_run"]],
            )  # fmt: skip
            for i, value in enumerate(row):
                self._steps[base + i] = value
            control[CONTROL_WORDS["steps"]] = number + 1
        else:
            control[CONTROL_WORDS["steps_lost"]] += 1
        control[CONTROL_WORDS["step_beat_ns"]] = end
        if end - start > control[CONTROL_WORDS["longest_step_ns"]]:
            control[CONTROL_WORDS["longest_step_ns"]] = end - start


assert len(STEP_COLUMNS) == 10, "_log_step writes one value a column"
