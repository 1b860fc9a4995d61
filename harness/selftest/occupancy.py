"""How many requests are in the engine, seen from outside: the counters of a running session's collector, sampled.

Little's law is then no identity: one side comes from these counters, the other from the stamps of the requests.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.common.clock import NS_PER_MS, NS_PER_S, Clock
from harness.common.collector import Int64Array
from harness.selftest.attached import SHM, attach_to

#: Short against a service of 5 ms, long enough that looking costs the shared core next to nothing.
SAMPLE_NS = 2 * NS_PER_MS


class Occupancy(NamedTuple):
    """Samples, int64[m] each: when (CLOCK_MONOTONIC ns), and how many requests were in the engine."""

    times: Int64Array
    counts: Int64Array

    def area_ns(self) -> float:
        """Time-integral of the number in the engine, request-ns, by trapezoids: its mean times the time."""
        return float(np.trapezoid(self.counts.astype(np.float64), self.times.astype(np.float64)))


class OccupancyWatch:
    """Samples the session that will publish its folder as `final`, over run number `run`. Owned by its thread until
    `stop` has returned. Each request gets one token, so that tokens made are requests that left."""

    def __init__(self, final: Path, run: int, clock: Clock, folder: Path = SHM) -> None:
        self._final = final
        self._run = run
        self._clock = clock
        self._folder = folder
        self._stop = threading.Event()
        self._samples: list[tuple[int, int]] = []
        self._thread = threading.Thread(target=self._watch, name="occupancy", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> Occupancy:
        """End the thread and return what it saw; nothing where the session's collector was not found."""
        self._stop.set()
        self._thread.join()
        samples = np.array(self._samples, dtype=np.int64).reshape(-1, 2)
        return Occupancy(samples[:, 0], samples[:, 1])

    def _watch(self) -> None:
        collector = attach_to(self._final, self._stop, self._folder)
        if collector is None:
            return
        period_s = SAMPLE_NS / NS_PER_S
        while not self._stop.wait(period_s) and not collector.word("receiver_stop"):
            if collector.word("current_run") == self._run:
                tokens = collector.word("tokens")  # first: one that leaves between the two looks is counted as in
                self._samples.append((self._clock(), collector.word("ingress") - tokens))
        collector.close()
