"""The control: a thread that only sleeps 1 ms at a time, and writes when that took longer than the shortest time seen.

What stops it stops everything on its core that does nothing wrong: the hypervisor, an interrupt, a host short of CPUs
(jHiccup's method). Run-queue delay, where another of our own threads ran, is written beside it.

A row: when the hiccup began (ns), its length (ns), the run-queue delay within it (ns). Head: cell 1 is 1 where the
sleeper needs no GIL, cell 2 the shortest time of a sleep (ns), cell 3 how many sleeps there were, cell 4 how long each
should be (ns).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection
from typing import Any

import numpy as np

from harness.common.clock import NS_PER_S, Clock
from harness.common.collector import CONTROL_WORDS, Int64Array
from harness.common.nogil import NogilUnavailableError, load_numba, load_symbols
from harness.common.probes.ring import EXACT, PERIOD, REST_NS, SHORTEST, SLEEPS, RingWriter
from harness.common.probes.schedstat import SCHEDSTAT_BYTES, compiled_run_delay, open_schedstat, run_delay
from harness.common.processes import name_thread

SLEEP_NS = 1_000_000
#: On a core that the engine needs: a wake-up costs some 14 us there, a thousand a second would be seen in its speed.
SHARED_SLEEP_NS = 10_000_000
THRESHOLD_NS = 100_000  # below it, it is the timer
NAME = "hiccups"
REST = CONTROL_WORDS["probes_rest"]
_LONG = 1 << 62


class HiccupMonitor:
    """Owns the monitor's thread. `loop` None: the plain twin, whose sleeps also wait for this process's GIL."""

    def __init__(
        self,
        ring: Int64Array,
        control: Int64Array,
        stop_cell: int,
        cpus: Collection[int],
        clock: Clock,
        loop: Any,
        sleep_ns: int = SLEEP_NS,
    ) -> None:
        """cpus: where the thread runs; empty leaves it where the process is."""
        self._sleep_ns = sleep_ns
        self.exact = loop is not None
        self._ring = ring
        self._control = control
        self._stop_cell = stop_cell
        self._cpus = cpus
        self._clock = clock
        self._compiled = loop
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)

    def start(self) -> None:
        self._ring[0, EXACT] = int(self.exact)
        self._ring[0, SHORTEST] = _LONG
        self._ring[0, PERIOD] = self._sleep_ns
        self._thread.start()

    def join(self) -> None:
        """Wait for its end, which comes within a sleep of the stop word."""
        self._thread.join()

    def _run(self) -> None:
        name_thread(NAME)
        if self._cpus:
            os.sched_setaffinity(threading.get_native_id(), self._cpus)
        fd = open_schedstat()
        try:
            if self._compiled is not None:
                _call(self._compiled, self._ring, self._control, self._stop_cell, fd, self._sleep_ns)
            else:
                self._sleep_in_python(fd)
        finally:
            if fd >= 0:
                os.close(fd)

    def _sleep_in_python(self, fd: int) -> None:
        ring, clock, writer = self._ring, self._clock, RingWriter(self._ring)
        delay, began = run_delay(fd), clock()
        while self._control[self._stop_cell] == 0:
            if self._control[REST]:
                time.sleep(REST_NS / NS_PER_S)
                delay, began = run_delay(fd), clock()
                continue
            time.sleep(self._sleep_ns / NS_PER_S)
            took, waited = clock() - began, run_delay(fd)
            shortest = min(int(ring[0, SHORTEST]), took)
            ring[0, SHORTEST] = shortest
            ring[0, SLEEPS] += 1
            if took - shortest > THRESHOLD_NS:
                writer.write(began + shortest, took - shortest, waited - delay)
            delay, began = waited, clock()


def compile_hiccups() -> Any:
    """The compiled loop, or None where it cannot be built."""
    try:
        loop = _build()
    except NogilUnavailableError:
        return None
    _call(loop, np.zeros((2, 8), dtype=np.int64), np.ones(REST + 1, dtype=np.int64), 0, -1, SLEEP_NS)
    loop.disable_compile()
    return loop


def _call(loop: Any, ring: Int64Array, control: Int64Array, stop_cell: int, fd: int, sleep_ns: int) -> None:
    scratch, text = np.zeros(2, dtype=np.int64), np.zeros(SCHEDSTAT_BYTES, dtype=np.uint8)
    loop(ring, control, stop_cell, scratch, text, fd, sleep_ns)


def _build() -> Any:
    symbols, njit = load_symbols(), load_numba()
    clock_gettime, clock_nanosleep = symbols.clock_gettime, symbols.clock_nanosleep
    read_delay = compiled_run_delay(njit, symbols.pread)
    threshold, shortest_cell, sleeps_cell = THRESHOLD_NS, SHORTEST, SLEEPS
    rest, rest_ns = REST, REST_NS

    def monitor(ring, control, stop_cell, scratch, text, fd, sleep_ns):  # type: ignore[no-untyped-def]
        here = scratch.ctypes.data
        rows = ring.shape[0] - 1
        delay = read_delay(fd, text)
        clock_gettime(1, here)
        began = scratch[0] * 1_000_000_000 + scratch[1]
        while control[stop_cell] == 0:
            resting = control[rest] != 0
            due = began + (rest_ns if resting else sleep_ns)
            scratch[0] = due // 1_000_000_000
            scratch[1] = due % 1_000_000_000
            while clock_nanosleep(1, 1, here, 0) == 4:
                pass
            clock_gettime(1, here)
            now = scratch[0] * 1_000_000_000 + scratch[1]
            if resting:
                delay = read_delay(fd, text)
                began = now
                continue
            took = now - began
            ring[0, shortest_cell] = min(ring[0, shortest_cell], took)
            ring[0, sleeps_cell] += 1
            excess = took - ring[0, shortest_cell]
            waited = read_delay(fd, text)
            if excess > threshold:
                count = ring[0, 0]
                at = 1 + count % rows
                ring[at, 0] = now - excess
                ring[at, 1] = excess
                ring[at, 2] = waited - delay
                ring[0, 0] = count + 1
            delay = waited
            began = now

    return njit(nogil=True)(monitor)
