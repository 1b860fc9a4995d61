"""Garbage collections of this process, from `gc.callbacks`: when, how long, which generation, how many objects.

A row: start (ns), length (ns), generation, objects collected. A collection stops all of a process's Python: it holds
the GIL from start to end.
"""

from __future__ import annotations

import gc

from harness.common.clock import Clock
from harness.common.collector import CONTROL_WORDS, Int64Array
from harness.common.probes.ring import EXACT, RingWriter

_REST = CONTROL_WORDS["probes_rest"]


class GcProbe:
    """Listens between `install` and `remove`. The collector may run in any thread, one at a time."""

    def __init__(self, ring: Int64Array, control: Int64Array, clock: Clock) -> None:
        ring[0, EXACT] = 1
        self._writer = RingWriter(ring)
        self._control = control
        self._clock = clock
        self._start = 0

    def install(self) -> None:
        gc.callbacks.append(self._note)

    def remove(self) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._start = 0 if self._control[_REST] else self._clock()
        elif self._start:
            self._writer.write(self._start, self._clock() - self._start, info["generation"], info["collected"])
            self._start = 0
