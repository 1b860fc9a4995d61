"""The line that moves while a run goes on; silent where stdout is no terminal."""

from __future__ import annotations

import sys
from typing import NamedTuple

REFRESH_S = 0.25


class Snapshot(NamedTuple):
    """What the line says. tokens_per_s: since the run began; lag_us: submit lag of the last request sent."""

    title: str
    planned: int
    sent: int
    completed: int
    tokens_per_s: float
    lag_us: float | None


class Progress:
    """Writes one line over itself on stderr, so that stdout holds the report alone."""

    def __init__(self, quiet: bool) -> None:
        self.active = not quiet and sys.stdout.isatty() and sys.stderr.isatty()
        self._width = 0

    def say(self, text: str) -> None:
        """A stage of the session, such as loading."""
        self._write(text)

    def show(self, now: Snapshot) -> None:
        lag = "-" if now.lag_us is None else f"{now.lag_us:.1f} us"
        self._write(
            f"{now.title}: sent {now.sent}/{now.planned}, completed {now.completed}, "
            f"{now.tokens_per_s:.0f} tokens/s, submit lag {lag}"
        )

    def clear(self) -> None:
        if self.active and self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0

    def _write(self, text: str) -> None:
        if not self.active:
            return
        sys.stderr.write("\r" + text.ljust(self._width)[:500])
        sys.stderr.flush()
        self._width = max(self._width, len(text))
