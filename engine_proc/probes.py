"""The probes of the engine's process: its GIL and its garbage collector."""

from __future__ import annotations

from harness.common.clock import Clock
from harness.common.collector import CONTROL_WORDS, Collector
from harness.common.probes.gc_pauses import GcProbe
from harness.common.probes.gil import make_gil_probe


class EngineProbes:
    """Both, from START to the end of the step loop. Owned by: the engine's main thread."""

    def __init__(self, collector: Collector, clock: Clock, *, plain: bool) -> None:
        """Compiles the GIL probe, which takes a third of a second, unless `plain`."""
        self._gil = make_gil_probe(collector.rings["gil"], collector.control, CONTROL_WORDS["stop"], clock, plain=plain)
        self._gc = GcProbe(collector.rings["gc_engine"], collector.control, clock)

    def start(self) -> None:
        self._gil.start()
        self._gc.install()

    def stop(self) -> None:
        """End the probe thread before the interpreter may go away."""
        self._gil.stop()
        self._gc.remove()
