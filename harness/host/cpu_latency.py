"""/dev/cpu_dma_latency: while it is held open with a 0 in it, no CPU enters an idle state that takes time to leave."""

from __future__ import annotations

import os
from pathlib import Path

from harness.common.isolation import Held

_DEVICE = Path("/dev/cpu_dma_latency")


class CpuLatency:
    """Holds the device from the beginning to `release`; `held` says so, or why it could not be."""

    def __init__(self, device: Path = _DEVICE) -> None:
        self._fd = -1
        try:
            self._fd = os.open(device, os.O_WRONLY | os.O_CLOEXEC)
            os.write(self._fd, bytes(4))  # an int32 of microseconds
            self.held = Held(True, f"{device} is held at 0 us")
        except OSError as error:
            self.held = Held(False, f"--hold-cpu-latency is not used: {device}: {error.strerror}")
            self.release()

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
