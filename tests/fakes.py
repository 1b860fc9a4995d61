"""Stand-ins for the things that the timed parts get passed in: clocks, wires, collectors of a handful of rows."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.common.collector import Collector, CollectorShape
from harness.common.wire import Arrival


class FakeClock:
    """Advances by `tick` ns at every reading and remembers what it said."""

    def __init__(self, now: int = 1_000, tick: int = 0) -> None:
        self.now = now
        self.tick = tick
        self.readings: list[int] = []

    def __call__(self) -> int:
        self.now += self.tick
        self.readings.append(self.now)
        return self.now


class ScriptedWire:
    """A wire whose arrivals are scripted; None stands for "nothing there at this moment". Ends after the last one."""

    fd = -1

    def __init__(self, arrivals: Iterable[Arrival | None], *, compiled: bool = True) -> None:
        self.compiled = compiled
        self.log: list[str] = []
        self._arrivals = list(arrivals)

    def start(self) -> None:
        self.log.append("start")

    def pop(self) -> Arrival | None:
        return self._arrivals.pop(0) if self._arrivals else None

    def arm(self) -> None:
        self.log.append("arm")

    def park(self) -> None:
        self.log.append("park")

    def ended(self) -> bool:
        return not self._arrivals

    def join(self) -> None:
        self.log.append("join")


def make_collector(
    folder: Path, rows: int = 8, steps: int = 8, tokens: int = 32, meta: dict[str, Any] | None = None
) -> Collector:
    """A small collector in `folder`, owned by this process."""
    return Collector.create(folder / "c.bin", CollectorShape(rows, steps, tokens), meta or {}, (os.getpid(), 1))
