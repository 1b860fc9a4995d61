"""A null engine with a heap that takes long to collect: step 400 collects all of it, as generation 2 would."""

from __future__ import annotations

import gc

from engine_proc.backends.base import StepOutput
from engine_proc.backends.null import NullBackend
from harness.common.clock import Clock
from harness.common.specs import EngineSpec, NullSpec

OBJECTS = 600_000
AT_STEP = 400


class GarbageBackend(NullBackend):
    """Run it with --gc on: frozen objects are not looked at."""

    def __init__(self, spec: EngineSpec, clock: Clock) -> None:
        super().__init__(NullSpec(service_ns=1_000_000), spec.max_batch_size, 50_257, clock)
        self._heap = [[index] for index in range(OBJECTS)]
        self._steps = 0

    def step(self) -> StepOutput:
        self._steps += 1
        if self._steps == AT_STEP:
            gc.collect()
        return super().step()


def make(spec: EngineSpec, clock: Clock) -> GarbageBackend:
    """The factory of `--engine gc_engine:make`."""
    return GarbageBackend(spec, clock)
