"""The GIL probe: a thread of the engine that sleeps, then asks for the GIL, and writes how long it had to wait.

`compiled`: one nogil loop; the wake-up is stamped before the GIL is asked for, so the wait is exact and no timer error
is in it. `python`, the plain twin: the overshoot of a sleep, which also holds timer error; readers subtract the
control's. Both read the run-queue delay that fell into the wait from schedstat. Periods are exponential (as in
gil_load), else the probe could run in step with what it probes.

A row: when the wait began (ns), the wait (ns), the run-queue delay within it (ns), how late the sleep ended (ns; 0 in
the plain twin, whose wait holds it). Cell 1 of the head is 1 where the waits are exact.
"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from harness.common.clock import NS_PER_S, Clock
from harness.common.collector import CONTROL_WORDS, Int64Array
from harness.common.nogil import NogilUnavailableError, at, compile_loop
from harness.common.probes.ring import EXACT, REST_NS, RingWriter
from harness.common.probes.schedstat import SCHEDSTAT_BYTES, compiled_run_delay, open_schedstat, run_delay
from harness.common.processes import name_thread

#: 100 looks a second: about 0.25 % of a core, and a stall of 5 ms is met by two looks of five. (Twice as many, with the
#: hiccup monitor beside them, were 1 % of a core that the engine needs.)
PERIOD_NS = 10_000_000
LONGEST_SLEEP = 10  # periods; the stop word is read at every wake-up
NAME = "gil-probe"
REST = CONTROL_WORDS["probes_rest"]
_WORTH_READING_NS = 20_000  # a shorter wait holds no run-queue delay worth a system call


class GilProbe(Protocol):
    """A probe thread; `stop` ends it within ten periods, also without the stop word."""

    exact: bool

    def start(self) -> None: ...
    def stop(self) -> None: ...


class _ProbeThread:
    exact = False

    def __init__(self, ring: Int64Array, control: Int64Array, stop_cell: int, period_ns: int) -> None:
        self._ring = ring
        self._control = control
        self._stop_cell = stop_cell
        self._period_ns = period_ns
        self._own_stop = np.zeros(1, dtype=np.int64)  # owned by: who calls stop()
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)

    def start(self) -> None:
        self._ring[0, EXACT] = int(self.exact)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it: it must not ask for the GIL of an interpreter that is going away."""
        self._own_stop[0] = 1
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        name_thread(NAME)
        fd = open_schedstat()
        try:
            self._loop(fd)
        finally:
            if fd >= 0:
                os.close(fd)

    def _loop(self, fd: int) -> None:
        raise AssertionError("subclasses loop")


class CompiledGilProbe(_ProbeThread):
    """Asks for the GIL from compiled code; `loop` is what `compile_probe` returned."""

    exact = True

    def __init__(self, ring: Int64Array, control: Int64Array, stop_cell: int, period_ns: int, loop: Any) -> None:
        super().__init__(ring, control, stop_cell, period_ns)
        self._compiled = loop

    def _loop(self, fd: int) -> None:
        _call(self._compiled, self._ring, self._control, self._stop_cell, self._own_stop, fd, self._period_ns)


class PlainGilProbe(_ProbeThread):
    """The plain twin: a sleep in Python, whose overshoot holds timer error, run-queue delay and the wait."""

    def __init__(self, ring: Int64Array, control: Int64Array, stop_cell: int, period_ns: int, clock: Clock) -> None:
        super().__init__(ring, control, stop_cell, period_ns)
        self._clock = clock

    def _loop(self, fd: int) -> None:
        writer, draw = RingWriter(self._ring), random.Random(1)
        while self._control[self._stop_cell] == 0 and self._own_stop[0] == 0:
            if self._control[REST]:
                time.sleep(REST_NS / NS_PER_S)
                continue
            pause = min(int(draw.expovariate(1 / self._period_ns)), LONGEST_SLEEP * self._period_ns)
            before = run_delay(fd)
            due = self._clock() + pause
            time.sleep(pause / NS_PER_S)
            wait = self._clock() - due
            writer.write(due, wait, run_delay(fd) - before, 0)


def make_gil_probe(
    ring: Int64Array, control: Int64Array, stop_cell: int, clock: Clock, *, plain: bool, period_ns: int = PERIOD_NS
) -> GilProbe:
    """The compiled probe, or the plain one where that is asked for or the other cannot be had."""
    if not plain:
        try:
            return CompiledGilProbe(ring, control, stop_cell, period_ns, compile_probe())
        except NogilUnavailableError:
            pass
    return PlainGilProbe(ring, control, stop_cell, period_ns, clock)


def compile_probe() -> Any:
    """The compiled loop. Raises NogilUnavailableError."""
    return compile_loop("gil-probe", _build, 10, Path(__file__).parent)


def _call(
    loop: Any, ring: Int64Array, control: Int64Array, stop_cell: int, own_stop: Int64Array, fd: int, period_ns: int
) -> None:
    scratch, text = np.zeros(2, dtype=np.int64), np.zeros(SCHEDSTAT_BYTES, dtype=np.uint8)
    loop(
        at(ring), *ring.shape, at(control), stop_cell, at(own_stop), at(scratch), at(text), fd, period_ns,
    )  # fmt: skip


def _build() -> Any:
    from harness.common.nogil_numba import cells, clock_gettime, clock_nanosleep, give_gil, rows, take_gil

    read_delay = compiled_run_delay()

    def probe(  # type: ignore[no-untyped-def]
        ring_at, length, columns, control_at, stop_cell, own_stop_at, here, text, fd, period
    ):  # fmt: skip
        ring, control, scratch = rows(ring_at, columns), cells(control_at), cells(here)
        own_stop = cells(own_stop_at)
        state = 88172645463325252
        clock_gettime(1, here)
        now = scratch[0] * 1_000_000_000 + scratch[1]
        while control[stop_cell] == 0 and own_stop[0] == 0:
            state = state * 6364136223846793005 + 1442695040888963407  # Knuth's MMIX generator, modulo 2**64
            share = ((state >> 11) & 9007199254740991) / 9007199254740992.0
            resting = control[REST] != 0
            due = now + (REST_NS if resting else min(int(-np.log(1.0 - share) * period), LONGEST_SLEEP * period))
            scratch[0] = due // 1_000_000_000
            scratch[1] = due % 1_000_000_000
            while clock_nanosleep(1, 1, here, 0) == 4:
                pass
            if resting:
                clock_gettime(1, here)
                now = scratch[0] * 1_000_000_000 + scratch[1]
                continue
            before = read_delay(fd, text)
            clock_gettime(1, here)
            woke = scratch[0] * 1_000_000_000 + scratch[1]
            held = take_gil()
            clock_gettime(1, here)
            give_gil(held)
            now = scratch[0] * 1_000_000_000 + scratch[1]
            count = ring[0, 0]
            at = 1 + count % (length - 1)
            ring[at, 0] = woke
            ring[at, 1] = now - woke
            ring[at, 2] = read_delay(fd, text) - before if now - woke > _WORTH_READING_NS else 0
            ring[at, 3] = woke - due
            ring[0, 0] = count + 1

    return probe
