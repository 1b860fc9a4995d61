"""What becomes of a request once Python has it: stamps, tokenizing (inline or by workers), validation, the inbox."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from engine_proc.backends.base import Capacity, EngineRequest
from engine_proc.intake.inbox import Abort, Duplicate, Inbox, Turned
from engine_proc.intake.validate import Rejection, check_request
from harness.common.clock import Clock
from harness.common.collector import CONTROL_WORDS, Collector
from harness.common.errors import FrameError
from harness.common.processes import name_thread
from harness.common.protocol import TEXT, TOKEN_ID_BYTES, RequestFrame
from harness.common.stamps import ENGINE_COLUMNS, FinishReason, Reason, Status

_CELL = {name: i for i, name in enumerate(ENGINE_COLUMNS)}
WIRE, INGRESS, TOKENIZE_START, TOKENIZED = (
    _CELL[name] for name in ("t_wire", "t_ingress", "t_tokenize_start", "t_tokenized")
)
PARKED, PROMPT_TOKENS, STATUS, FINISH = (
    _CELL[name] for name in ("ingress_parked", "prompt_tokens", "engine_status", "finish_reason")
)
ERROR_CODE, ERROR_A, ERROR_B = (_CELL[name] for name in ("error_code", "error_a", "error_b"))
TAKEN, BEAT = CONTROL_WORDS["ingress"], CONTROL_WORDS["ingress_beat_ns"]


class TextEncoder(Protocol):
    """The part of a tokenizer that admission needs."""

    def encode(self, text: str) -> list[int]: ...


class _Raw(NamedTuple):
    """A raw request on its way to a tokenizer worker."""

    frame: RequestFrame
    text: str


class Admission:
    """The only writer of a row until it is in the inbox; owns the tokenizer workers.

    `take` and `abort` are called by one thread alone: the ingress thread, or the submitter's own (`--topology inproc`).
    """

    def __init__(
        self,
        collector: Collector,
        inbox: Inbox,
        tokenizer: TextEncoder,
        capacity: Capacity,
        workers: int,
        clock: Clock,
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._control = memoryview(collector.control).cast("B").cast("q")
        self._cells = memoryview(collector.engine).cast("B").cast("q")
        self._width = collector.engine.shape[1]
        self._seen = bytearray(collector.shape.rows)  # owned by: the calling thread
        self._given_up: set[int] = set()  # rows whose abort overtook their request; owned by: the calling thread
        self._inbox = inbox
        self._tokenizer = tokenizer
        self._capacity = capacity
        self._clock = clock
        self._on_crash = on_crash
        self._raw: SimpleQueue[_Raw | None] = SimpleQueue()
        self._workers = [
            threading.Thread(target=self._guard, args=(self._work,), name=f"tokenizer-{i}", daemon=True)
            for i in range(workers)
        ]

    def start(self) -> None:
        """Start the tokenizer workers."""
        for worker in self._workers:
            worker.start()

    def end(self) -> None:
        """Nothing more will be taken: the workers end behind what they have."""
        for _ in self._workers:
            self._raw.put(None)

    def join(self) -> None:
        """Wait for the workers, after `end`."""
        for worker in self._workers:
            worker.join()

    def take(self, frame: RequestFrame, t_wire: int, t_ingress: int, *, parked: bool) -> None:
        """Take a request that Python holds since `t_ingress`. Raises FrameError for a payload that is not its kind's.

        Times in CLOCK_MONOTONIC ns; parked: the message found its taker waiting with nothing ahead.
        """
        text, ids = _payload(frame)
        control, row = self._control, frame.row
        if self._seen[row]:
            control[CONTROL_WORDS["duplicates"]] += 1
            self._inbox.put(Duplicate(row))
            return
        self._seen[row] = 1
        base = row * self._width
        cells = self._cells
        cells[base + WIRE] = t_wire
        cells[base + INGRESS] = t_ingress
        if parked:
            cells[base + PARKED] = 1
        control[TAKEN] += 1
        control[BEAT] = t_ingress
        if row in self._given_up:
            self._turn_away(row, Status.ABORTED, Rejection(Reason.CLIENT_GAVE_UP))
        elif ids is not None:
            cells[base + TOKENIZE_START] = t_ingress
            cells[base + TOKENIZED] = t_ingress
            self._admit(frame, ids)
        elif self._workers:
            self._raw.put(_Raw(frame, text))
        else:
            self._tokenize(_Raw(frame, text))

    def abort(self, row: int) -> None:
        """Hand an abort on behind its request. Messages keep their order only within one client's connection."""
        self._control[CONTROL_WORDS["aborts"]] += 1
        if self._seen[row]:
            self._inbox.put(Abort(row))
        else:
            self._given_up.add(row)

    def _guard(self, body: Callable[[], None]) -> None:
        name_thread(threading.current_thread().name)
        try:
            body()
        except BaseException as error:  # never a silent exit: everything later would hang
            self._on_crash(error)

    def _work(self) -> None:
        while (raw := self._raw.get()) is not None:
            self._tokenize(raw)

    def _tokenize(self, raw: _Raw) -> None:
        base = raw.frame.row * self._width
        self._cells[base + TOKENIZE_START] = self._clock()
        try:
            ids = self._tokenizer.encode(raw.text)
        except Exception:  # the tokenizer is foreign code: its error is this request's, not the engine's
            self._turn_away(raw.frame.row, Status.REJECTED, Rejection(Reason.TOKENIZER_ERROR))
            return
        self._cells[base + TOKENIZED] = self._clock()
        self._admit(raw.frame, ids)

    def _admit(self, frame: RequestFrame, ids: list[int]) -> None:
        row = frame.row
        base = row * self._width
        self._cells[base + PROMPT_TOKENS] = len(ids)
        rejection = check_request(ids, frame.max_new_tokens, self._capacity)
        if rejection is not None:
            self._turn_away(row, Status.REJECTED, rejection)
        elif frame.max_new_tokens == 0:
            self._cells[base + STATUS] = Status.COMPLETED
            self._cells[base + FINISH] = FinishReason.EMPTY
            self._inbox.put(Turned(row, Status.COMPLETED, FinishReason.EMPTY))
        else:
            arrived = self._cells[base + TOKENIZED]
            self._inbox.put(EngineRequest(row, ids, frame.max_new_tokens, frame.sampling, arrived))

    def _turn_away(self, row: int, status: Status, why: Rejection) -> None:
        base = row * self._width
        cells = self._cells
        cells[base + ERROR_CODE], cells[base + ERROR_A], cells[base + ERROR_B] = why
        cells[base + STATUS] = status
        self._inbox.put(Turned(row, status, FinishReason.NONE))


def _payload(frame: RequestFrame) -> tuple[str, list[int] | None]:
    """Text or token ids of a frame. Raises FrameError where the payload is not what its kind says."""
    if frame.kind == TEXT:
        try:
            return frame.payload.decode("utf-8"), None
        except UnicodeDecodeError as error:
            raise FrameError("text payload that is not UTF-8") from error
    if len(frame.payload) % TOKEN_ID_BYTES:
        raise FrameError("token payload that is not whole int32 ids")
    return "", array("i", frame.payload).tolist()
