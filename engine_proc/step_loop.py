"""The step loop: drains the inbox, steps the backend, stamps and sends what came out. The engine's main thread."""

from __future__ import annotations

from contextlib import nullcontext
from enum import IntEnum

from engine_proc.backends.base import EngineBackend, EngineRequest, StepOutput
from engine_proc.egress import Egress
from engine_proc.intake.inbox import Abort, Duplicate, Inbox, InboxItem, Turned
from engine_proc.stopping import StopMatcher, TokenBytes, watch
from harness.common.clock import Clock
from harness.common.collector import CONTROL_WORDS, Collector
from harness.common.errors import BackendError
from harness.common.protocol import ResultEvent
from harness.common.stamps import ENGINE_COLUMNS, STEP_COLUMNS, FinishReason, Reason, Status, reason_text

IDLE_WAIT_S = 0.05  # how often an idle loop looks at the stop word

_CELL = {name: i for i, name in enumerate(ENGINE_COLUMNS)}
QUEUED, SCHEDULED, FIRST, LAST = (_CELL[name] for name in ("t_queued", "t_scheduled", "t_first_token", "t_last_token"))
CACHED_TOKENS, OUTPUT_TOKENS, PREEMPTIONS, PREEMPTED_NS = (
    _CELL[name] for name in ("cached_tokens", "output_tokens", "preemptions", "preempted_ns")
)
STATUS, FINISH, ERROR_CODE, ERROR_A, ERROR_B = (
    _CELL[name] for name in ("engine_status", "finish_reason", "error_code", "error_a", "error_b")
)


class RowState(IntEnum):
    """Where the loop believes a row to be; decides that it gets one terminal event, whoever speaks of it again."""

    AWAITED = 0  # not here yet: not sent, or with a tokenizer worker
    GIVEN_UP = 1  # aborted while it was with a tokenizer worker: ends when it arrives
    LIVE = 2  # in the backend
    ENDED = 3  # by the loop, on a stop or an abort: the step under way may still give it a token
    OVER = 4  # by the backend, which must not speak of it again


_FINISHES = frozenset(FinishReason)


class StepLoop:
    """Owns the backend, the egress socket, the step table and the token log."""

    def __init__(
        self, backend: EngineBackend, inbox: Inbox, egress: Egress, collector: Collector, clock: Clock,
        token_bytes: TokenBytes,
    ) -> None:  # fmt: skip
        self._backend = backend
        self._reset_prefix_cache = getattr(backend, "reset_prefix_cache", None)
        self._range = getattr(backend, "nvtx_range", None) or (lambda name: nullcontext())
        self._inbox = inbox
        self._egress = egress
        self._clock = clock
        self._token_bytes = token_bytes
        self._shape = collector.shape
        self._control = memoryview(collector.control).cast("B").cast("q")
        self._cells = memoryview(collector.engine).cast("B").cast("q")
        self._width = collector.engine.shape[1]
        self._steps = memoryview(collector.steps).cast("B").cast("q")
        self._step_width = collector.steps.shape[1]
        self._tokens = memoryview(collector.tokens).cast("B").cast("q")
        self._vocab_size = backend.capacity().vocab_size
        self._asked: dict[int, int] = {}  # the live rows, and the most tokens that each may get
        self._states = bytearray(collector.shape.rows)
        self._stops: dict[int, StopMatcher] = {}  # of live rows that ask for a stop
        self._run = -1
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
            self._notice_run()
            items = self._inbox.take_all()
            if items:
                self._enter(items)
            if self._backend.has_work():
                self._step()
            elif not items:
                item = self._inbox.wait(IDLE_WAIT_S)
                if item is not None:
                    self._enter([item])

    def _notice_run(self) -> None:
        """Empty the prefix cache when a run begins. The harness tells before t0, so no request of it is here yet."""
        run = self._control[CONTROL_WORDS["current_run"]]
        if run != self._run:
            self._run = run
            if self._reset_prefix_cache is not None:
                self._reset_prefix_cache()

    def _enter(self, items: list[InboxItem]) -> None:
        """Put new requests into the waiting queue; pass on what ended before it, and what a client gave up."""
        self._notice_run()  # again: an idle loop may have waited for these over the beginning of a run
        now = self._clock()
        ended: list[ResultEvent] = []
        for item in items:
            if isinstance(item, EngineRequest):
                self._add(item, now, ended)
            elif isinstance(item, Turned):
                if item.status == Status.COMPLETED:
                    self._cells[item.row * self._width + QUEUED] = now
                if self._states[item.row] == RowState.GIVEN_UP:
                    self._control[CONTROL_WORDS["late_aborts"]] += 1
                self._states[item.row] = RowState.ENDED
                ended.append(ResultEvent(item.row, 0, item.status, item.finish))
            elif isinstance(item, Abort):
                self._abort(item.row, ended)
            else:
                self._complain(item)
        self._send(ended, terminal=len(ended))

    def _add(self, request: EngineRequest, now: int, ended: list[ResultEvent]) -> None:
        row = request.row
        if self._states[row] == RowState.GIVEN_UP:
            self._end_aborted(row, ended)
            return
        self._states[row] = RowState.LIVE
        self._asked[row] = request.max_new_tokens
        self._cells[row * self._width + QUEUED] = now
        matcher = watch(request.sampling, self._token_bytes)
        if matcher is not None:
            self._stops[row] = matcher
        self._backend.add(request)

    def _abort(self, row: int, ended: list[ResultEvent]) -> None:
        """End a row, wherever it is. One that has ended keeps its end: the order of commits decides."""
        state = self._states[row]
        if state == RowState.AWAITED:
            self._states[row] = RowState.GIVEN_UP
        elif state == RowState.LIVE and self._backend.abort(row):
            self._end_aborted(row, ended)
        else:
            self._control[CONTROL_WORDS["late_aborts"]] += 1

    def _end_aborted(self, row: int, ended: list[ResultEvent]) -> None:
        base = row * self._width
        self._cells[base + ERROR_CODE] = Reason.CLIENT_GAVE_UP
        ended.append(self._end(row, Status.ABORTED, FinishReason.NONE))

    def _end(self, row: int, status: Status, finish: FinishReason) -> ResultEvent:
        """Write the end of a row that the loop ends, and return its terminal event."""
        base = row * self._width
        self._cells[base + STATUS], self._cells[base + FINISH] = status, finish
        self._states[row] = RowState.ENDED
        self._stops.pop(row, None)
        self._asked.pop(row, None)
        return ResultEvent(row, self._cells[base + OUTPUT_TOKENS], status, finish)

    def _complain(self, duplicate: Duplicate) -> None:
        text = reason_text(Reason.DUPLICATE_ID, 0, 0)
        self._control[CONTROL_WORDS["egress_messages"]] += self._egress.complaint(duplicate.row, text)

    def _step(self) -> None:
        start = self._clock()
        output = self._backend.step()
        end = self._clock()
        with self._range("emit"):
            self._emit(output, start, output.batch_ns or start, output.tokens_ns or end)

    def _emit(self, output: StepOutput, start: int, batch_ns: int, tokens_ns: int) -> None:
        """Everything after the model: stamps, token log, messages, step table."""
        cells, width = self._cells, self._width
        for row in output.admitted:
            if type(row) is not int or row not in self._asked:
                self._require_known(row, "an admission")
            cells[row * width + SCHEDULED] = batch_ns
        for row, cached_tokens in output.cached_tokens:
            self._require_known(row, "cached tokens")
            cells[row * width + CACHED_TOKENS] = cached_tokens
        for row, preempted_ns in output.preempted:
            self._require_known(row, "a preemption")
            cells[row * width + PREEMPTIONS] += 1
            cells[row * width + PREEMPTED_NS] += preempted_ns
        events: list[ResultEvent] = []
        terminal = self._take_tokens(output, tokens_ns, events) + self._take_failures(output, events)
        self._send(events, terminal)
        self._log_step(output, start, batch_ns, tokens_ns)

    def _take_tokens(self, output: StepOutput, tokens_ns: int, events: list[ResultEvent]) -> int:
        """Stamp and log the tokens, and list their news: first tokens and ends, whose number is returned."""
        cells, width, asked = self._cells, self._width, self._asked
        log: list[int] = []
        terminal = 0
        for row, token_id, finish in output.tokens:
            if type(row) is not int or row not in asked:
                self._require_known(row, "a token")
                self._control[CONTROL_WORDS["late_tokens"]] += 1  # it ended while the step that made this was under way
                continue
            base = row * width
            count = cells[base + OUTPUT_TOKENS] + 1
            self._check_token(row, token_id, finish, count)
            cells[base + OUTPUT_TOKENS] = count
            if count == 1:
                cells[base + FIRST] = tokens_ns
            cells[base + LAST] = tokens_ns
            log.append(row << 32 | token_id)
            by_backend = finish != FinishReason.NONE
            if self._stops:
                finish = self._stopped(row, token_id, finish)
            if finish != FinishReason.NONE:
                events.append(self._end(row, Status.COMPLETED, finish))
                terminal += 1
                if by_backend:
                    self._states[row] = RowState.OVER
            elif count == 1:
                events.append(ResultEvent(row, 1, Status.NONE, FinishReason.NONE))
        self._log_tokens(log)
        return terminal

    def _require_known(self, row: int, what: str) -> None:
        """No row but one that the backend was given: another's cells would be written, or none at all."""
        known = type(row) is int and 0 <= row < len(self._states)
        if not known or self._states[row] not in (RowState.LIVE, RowState.ENDED):
            raise BackendError(f"step() returned {what} of row {row!r}, which the engine does not hold")

    def _check_token(self, row: int, token_id: int, finish: int, count: int) -> None:
        """Raises BackendError for a token that the request cannot have got."""
        if count > self._asked[row]:
            raise BackendError(f"step() returned token {count} of row {row}, which asked for {self._asked[row]}")
        if not 0 <= token_id < self._vocab_size:
            raise BackendError(f"step() gave token id {token_id} of row {row}, the vocabulary has {self._vocab_size}")
        if finish not in _FINISHES:
            raise BackendError(f"step() returned finish {finish!r} of row {row}, which is no FinishReason")

    def _stopped(self, row: int, token_id: int, finish: FinishReason) -> FinishReason:
        """STOP where the token ends the output; a text that ends with its last token stops as well, one at EOS not."""
        matcher = self._stops.get(row)
        if matcher is None or finish not in (FinishReason.NONE, FinishReason.LENGTH) or not matcher.feed(token_id):
            return finish
        if finish == FinishReason.NONE:
            self._backend.abort(row)
        return FinishReason.STOP

    def _take_failures(self, output: StepOutput, events: list[ResultEvent]) -> int:
        """Write the reasons of the rows that the backend gave up; returns how many ended."""
        before = len(events)
        for row, reason, a, b in output.failed:
            self._require_known(row, "a failure")
            if self._states[row] == RowState.LIVE:
                base = row * self._width
                self._cells[base + ERROR_CODE], self._cells[base + ERROR_A], self._cells[base + ERROR_B] = reason, a, b
                events.append(self._end(row, Status.FAILED, FinishReason.NONE))
        return len(events) - before

    def _log_tokens(self, entries: list[int]) -> None:
        word = CONTROL_WORDS["tokens"]
        at = self._control[word]
        room = max(self._shape.tokens - at, 0)
        if len(entries) > room:
            self._control[CONTROL_WORDS["tokens_lost"]] += len(entries) - room
        for entry in entries[:room]:
            self._tokens[at] = entry
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
                output.prefill_rows,
            )  # fmt: skip
            for i, value in enumerate(row):
                self._steps[base + i] = value
            control[CONTROL_WORDS["steps"]] = number + 1
        else:
            control[CONTROL_WORDS["steps_lost"]] += 1
        control[CONTROL_WORDS["step_beat_ns"]] = end
        if output.late_captures:
            control[CONTROL_WORDS["late_captures"]] += output.late_captures
        if end - start > control[CONTROL_WORDS["longest_step_ns"]]:
            control[CONTROL_WORDS["longest_step_ns"]] = end - start


assert len(STEP_COLUMNS) == 11, "_log_step writes one value a column"
