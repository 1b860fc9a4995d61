"""Ctrl-C in a campaign: the first one ends it, and nothing keeps it from saving and printing what it knows."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interrupted_once() -> Iterator[None]:
    """Inside, the first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt, and later ones change nothing, as in `run`.

    A signal that is ignored stays so: `nohup` and a shell's background jobs asked for that. Main thread only.
    """
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if not came:
            came = True
            raise KeyboardInterrupt

    taken = [number for number in _NUMBERS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
