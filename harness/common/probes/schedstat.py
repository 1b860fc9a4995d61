"""Run-queue delay of a thread: field 2 of /proc/self/task/TID/schedstat, ns that it was ready and another one ran."""

from __future__ import annotations

import os
import threading
from typing import Any

SCHEDSTAT_BYTES = 96  # three decimal numbers of at most 20 digits


def open_schedstat() -> int:
    """A descriptor on the calling thread's own schedstat; -1 where the kernel has none. The caller closes it."""
    try:
        return os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def run_delay(fd: int) -> int:
    """ns of run-queue delay so far; 0 for a descriptor of -1."""
    return int(os.pread(fd, SCHEDSTAT_BYTES, 0).split()[1]) if fd >= 0 else 0


def compiled_run_delay() -> Any:
    """The same for compiled loops: `(fd, address of SCHEDSTAT_BYTES bytes) -> ns`, without the GIL."""
    from harness.common.nogil_numba import loop, octets, pread

    @loop
    def read(fd, address):  # type: ignore[no-untyped-def]
        text = octets(address)
        length = pread(fd, address, SCHEDSTAT_BYTES, 0)
        field = 0
        value = 0
        for i in range(length):
            if text[i] == 32:
                field += 1
            elif field == 1:
                value = value * 10 + (text[i] - 48)
        return value

    return read
