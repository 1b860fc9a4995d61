"""The one clock: CLOCK_MONOTONIC in integer nanoseconds, passed in wherever time is read."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Reads int64 nanoseconds of CLOCK_MONOTONIC; tests pass a fake.
Clock = Callable[[], int]

monotonic_ns: Clock = time.monotonic_ns

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_ROUNDS, _READINGS = 8, 100


def clock_report() -> dict[str, object]:
    """How this process reads the clock: implementation, resolution, cost, boot offset, time namespace.

    Returns a JSON-able dict; `boot_offset_ns` is CLOCK_BOOTTIME - CLOCK_MONOTONIC, `time_ns` the namespace link,
    `read_ns` what a reading from Python takes.
    """
    info = time.get_clock_info("monotonic")
    return {
        "implementation": info.implementation,
        "resolution_s": info.resolution,
        "read_ns": read_cost_ns(monotonic_ns),
        "boot_offset_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns(),
        "time_ns": _time_namespace(),
    }


def read_cost_ns(clock: Clock) -> int:
    """What a reading takes: the shortest of several rounds, so that an interruption does not count."""
    return min(_round_ns(clock) for _ in range(_ROUNDS)) // _READINGS


def _round_ns(clock: Clock) -> int:
    begun = clock()
    for _ in range(_READINGS):
        clock()
    return clock() - begun


def _time_namespace() -> str:
    import os

    try:
        return os.readlink("/proc/self/ns/time")
    except OSError:
        return "unknown"
