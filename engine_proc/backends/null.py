"""The null engine: no model, a scripted service time. It sleeps, spins, or keeps a GIL-holding thread; it can fail.

An ideal service sleeps too, but to the end that a server without any overhead would have: it begins when the server is
free and a request of the batch has arrived, not when the step loop gets there. So k services in a row take k times
`service_ns`, the capacity is exactly known, and what differs from the Lindley recursion is the error of the harness.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque

from engine_proc.backends.base import Capacity, EngineRequest, StepOutput, TokenEvent
from harness.common.clock import Clock
from harness.common.processes import name_thread
from harness.common.specs import NullSpec
from harness.common.stamps import FinishReason

MAX_MODEL_LEN = 1 << 20
#: The last part of an ideal service is not slept through: a tenth of it within these bounds. Virtual machines wake a
#: thread up to a millisecond late at p99.
_LAST_NS = (150_000, 1_000_000)


class NullBackend:
    """Each step admits waiting requests up to the batch size, takes `service_ns`, and gives each row one token."""

    def __init__(self, spec: NullSpec, max_batch_size: int, vocab_size: int, clock: Clock) -> None:
        self._spec = spec
        self._max_batch_size = max_batch_size
        self._vocab_size = vocab_size
        self._clock = clock
        self._waiting: deque[EngineRequest] = deque()
        self._running: dict[int, tuple[EngineRequest, int]] = {}
        self._step = 0
        self._free_ns = 0  # when the ideal server is done with what it has
        self._closed = threading.Event()
        self._spinner: threading.Thread | None = None
        if spec.start_delay_ns:
            time.sleep(spec.start_delay_ns / 1e9)
        if spec.hold_gil:
            self._spinner = threading.Thread(target=self._spin_for_ever, name="gil-hog", daemon=True)
            self._spinner.start()

    def capacity(self) -> Capacity:
        return Capacity(MAX_MODEL_LEN, self._vocab_size)

    def describe(self) -> dict[str, object]:
        service = "spins" if self._spec.spin else "ideal," if self._spec.ideal else "sleeps"
        return {
            "model": "null",
            "weights": "none",
            "device": "cpu",
            "dtype": "none",
            "service": f"{service} {self._spec.service_ns / 1e6:g} ms a step",
            "hold_gil": self._spec.hold_gil,
        }

    def add(self, request: EngineRequest) -> None:
        self._waiting.append(request)

    def abort(self, row: int) -> bool:
        if self._running.pop(row, None) is not None:
            return True
        for request in self._waiting:
            if request.row == row:
                self._waiting.remove(request)
                return True
        return False

    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def step(self) -> StepOutput:
        self._step += 1
        output = StepOutput(batch_ns=self._clock())
        arrived = 0
        while self._waiting and len(self._running) < self._max_batch_size:
            request = self._waiting.popleft()
            arrived = arrived or request.arrived_ns
            self._running[request.row] = (request, 0)
            output.admitted.append(request.row)
            output.prefill_tokens += len(request.prompt_ids)
        output.prefill_rows = len(output.admitted)
        output.decode_rows = len(self._running) - output.prefill_rows
        self._misbehave()
        self._serve(self._ideal_start(arrived, output) if self._spec.ideal else output.batch_ns)
        for row, (request, done) in list(self._running.items()):
            last = done + 1 >= request.max_new_tokens
            token_id = scripted_token(row, done, self._vocab_size)
            output.tokens.append(TokenEvent(row, token_id, FinishReason.LENGTH if last else FinishReason.NONE))
            if last:
                del self._running[row]
            else:
                self._running[row] = (request, done + 1)
        output.tokens_ns = self._clock()
        return output

    def close(self) -> None:
        self._closed.set()
        if self._spinner is not None:
            self._spinner.join()

    def _ideal_start(self, arrived: int, output: StepOutput) -> int:
        """When an ideal server begins this batch: as soon as it is free if rows of it are there already, else when its
        first request is there too. A request that came without a stamp counts as come now."""
        continues = output.decode_rows > 0
        start = self._free_ns if continues else max(self._free_ns, arrived or output.batch_ns)
        self._free_ns = start + self._spec.service_ns
        return start

    def _serve(self, start: int) -> None:
        end = start + self._spec.service_ns
        if self._spec.spin:
            while self._clock() < end:
                pass
        elif self._spec.ideal:
            last = min(max(self._spec.service_ns // 10, _LAST_NS[0]), _LAST_NS[1])
            time.sleep(max(end - last - self._clock(), 0) / 1e9)
            while self._clock() < end:  # a sleep overshoots by more than the harness may be off
                time.sleep(0)  # gives the GIL up
        elif self._spec.service_ns:
            time.sleep(max(end - self._clock(), 0) / 1e9)

    def _misbehave(self) -> None:
        if self._step == self._spec.crash_at_step:
            os._exit(70)
        if self._step == self._spec.hang_at_step:
            while not self._closed.wait(3600):
                pass

    def _spin_for_ever(self) -> None:
        name_thread("gil-hog")
        closed = self._closed
        while not closed.is_set():
            for _ in range(100_000):
                pass


def scripted_token(row: int, index: int, vocab_size: int) -> int:
    """The null engine's token `index` of a row: a function of both, so that mixed-up rows are seen without a model."""
    return (row * 31 + index * 7 + 1) % vocab_size
