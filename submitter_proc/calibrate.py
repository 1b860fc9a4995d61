"""How late this thread wakes from a sleep, measured at start: it decides how long the pacer spins before a deadline."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from harness.common.clock import Clock

SLEEPS = 250
SLEEP_NS = 1_000_000
SAFETY = 1.5
#: Bounds of the spin. Below the floor the lag's p99 is what calibration happened to miss (measured at 1,000/s on a
#: virtual machine: margin 30 us, p99 50-94 us; 100 us, 0.2-53 us; from 150 us, below 1 us); long ones cost a core.
MIN_MARGIN_NS, MAX_MARGIN_NS = 200_000, 400_000


class Calibration(NamedTuple):
    """Overshoot of `SLEEPS` sleeps of `SLEEP_NS`, in ns, and the spin margin that follows from it."""

    p50_ns: int
    p99_ns: int
    max_ns: int
    margin_ns: int


def calibrate(clock: Clock) -> Calibration:
    """Measure sleep overshoot on the calling thread (0.25 s).

    margin = 1.5 x p99, within 200..400 us: rare outliers of a virtual machine are not worth a spin each.
    """
    overshoot = np.zeros(SLEEPS, dtype=np.int64)
    for i in range(SLEEPS):
        deadline = clock() + SLEEP_NS
        time.sleep(max(deadline - clock(), 0) / 1e9)
        overshoot[i] = clock() - deadline
    p50, p99 = (int(value) for value in np.percentile(overshoot, [50, 99]))
    margin = int(np.clip(p99 * SAFETY, MIN_MARGIN_NS, MAX_MARGIN_NS))
    return Calibration(p50, p99, int(overshoot.max()), margin)
