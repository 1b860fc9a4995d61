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
from pathlib import Path
from typing import Any

import numpy as np

from harness.common.clock import NS_PER_S, Clock
from harness.common.collector import CONTROL_WORDS, Int64Array
from harness.common.nogil import NogilUnavailableError, at, compile_loop
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
        return compile_loop("hiccups", _build, 9, Path(__file__).parent)
    except NogilUnavailableError:
        return None


def _call(loop: Any, ring: Int64Array, control: Int64Array, stop_cell: int, fd: int, sleep_ns: int) -> None:
    scratch, text = np.zeros(2, dtype=np.int64), np.zeros(SCHEDSTAT_BYTES, dtype=np.uint8)
    loop(at(ring), *ring.shape, at(control), stop_cell, at(scratch), at(text), fd, sleep_ns)


def _build() -> Any:
    from harness.common.nogil_numba import cells, clock_gettime, clock_nanosleep, rows

    read_delay = compiled_run_delay()

    def monitor(ring_at, length, columns, control_at, stop_cell, here, text, fd, sleep_ns):  # type: ignore[no-untyped-def]
        ring, control, scratch = rows(ring_at, columns), cells(control_at), cells(here)
        delay = read_delay(fd, text)
        clock_gettime(1, here)
        began = scratch[0] * 1_000_000_000 + scratch[1]
        while control[stop_cell] == 0:
            resting = control[REST] != 0
            due = began + (REST_NS if resting else sleep_ns)
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
            ring[0, SHORTEST] = min(ring[0, SHORTEST], took)
            ring[0, SLEEPS] += 1
            excess = took - ring[0, SHORTEST]
            waited = read_delay(fd, text)
            if excess > THRESHOLD_NS:
                count = ring[0, 0]
                at = 1 + count % (length - 1)
                ring[at, 0] = now - excess
                ring[at, 1] = excess
                ring[at, 2] = waited - delay
                ring[0, 0] = count + 1
            delay = waited
            began = now

    return monitor
