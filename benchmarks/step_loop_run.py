"""The native engine under its real step loop, collector and result socket, all in this process: for step by step times.

What the benchmarks that need the step table share; a run of isorate does not keep the table.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from engine_proc.backends.base import EngineRequest
from engine_proc.backends.native import NativeBackend
from engine_proc.egress import Egress
from engine_proc.intake.inbox import Inbox
from engine_proc.step_loop import StepLoop
from harness.common.clock import monotonic_ns
from harness.common.collector import Collector, CollectorShape
from harness.common.protocol import Sampling
from harness.common.stamps import STEP_COLUMNS

Int64Array = npt.NDArray[np.int64]


def make_backend(dtype: str, **options: Any) -> NativeBackend:
    backend = NativeBackend("builtin:gpt2", "cpu", dtype, 16, 16, monotonic_ns, **options)
    backend.warm_up()
    return backend


def request(row: int, prompt_ids: Sequence[int], new_tokens: int) -> EngineRequest:
    return EngineRequest(row, prompt_ids, new_tokens, Sampling(stop_on_eos=False))


class LoopRun:
    """One run of the loop over a backend. `steps` and `tokens` are what the collector holds afterwards."""

    def __init__(self, backend: NativeBackend, rows: int, collector: Collector, socket: Any) -> None:
        self.inbox = Inbox()
        self._collector = collector
        self._rows = rows
        self.loop = StepLoop(backend, self.inbox, Egress(socket), collector, monotonic_ns, lambda token: b"")
        self.steps: dict[str, Int64Array] = {}
        self.token_rows: Int64Array = np.empty(0, np.int64)

    def word(self, name: str) -> int:
        return self._collector.word(name)

    def drive(self, requests: Sequence[EngineRequest], late: EngineRequest | None = None, late_step: int = 0) -> None:
        """Send `requests`, and `late` once the loop has done `late_step` steps; return when all have ended."""
        for item in requests:
            self.inbox.put(item)
        sender = threading.Thread(target=self._watch, args=(late, late_step))
        sender.start()
        self.loop.run()
        sender.join()
        count = self.word("steps")
        self.steps = {name: self._collector.steps[:count, i].copy() for i, name in enumerate(STEP_COLUMNS)}
        self.token_rows = self._collector.tokens[: self.word("tokens")] >> 32

    def _watch(self, late: EngineRequest | None, late_step: int) -> None:
        while late is not None and self.word("steps") < late_step:
            time.sleep(0.0005)
        if late is not None:
            self.inbox.put(late)
        while self.word("terminal") < self._rows:
            time.sleep(0.005)
        self._collector.set_word("stop", 1)

    def gaps_ns(self, row: int, with_all: int) -> Int64Array:
        """ITL of a row: between the steps that gave it its tokens, once rows 0 to `with_all` - 1 have all begun."""
        begun = max(self._times(other)[0] for other in range(with_all))
        times = self._times(row)
        gaps: Int64Array = np.diff(times[times >= begun])
        return gaps

    def _times(self, row: int) -> Int64Array:
        """When each token of a row came, from the token log and the step table."""
        step_of = np.searchsorted(self.steps["tokens_end"], np.flatnonzero(self.token_rows == row), side="right")
        times: Int64Array = self.steps["t_tokens"][step_of]
        return times


@contextmanager
def loop_run(backend: NativeBackend, rows: int) -> Iterator[LoopRun]:
    """A loop for `rows` requests, whose results somebody takes."""
    context: zmq.Context[Any] = zmq.Context()
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/dev/shm") as folder:
        shape = CollectorShape(rows, 100_000, 1_000_000)
        collector = Collector.create(Path(folder) / "c", shape, {}, (os.getpid(), 1))
        receiver, sender = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        receiver.set_hwm(0)
        sender.set_hwm(0)
        receiver.bind(f"ipc://{folder}/results")
        sender.connect(f"ipc://{folder}/results")
        try:
            yield LoopRun(backend, rows, collector, sender)
        finally:
            context.destroy(linger=0)
            collector.close()
