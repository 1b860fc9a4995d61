"""Lets the probes of a running session rest in every second of its runs, so that one session holds both sides."""

from __future__ import annotations

import threading
from pathlib import Path

from harness.common.collector import CONTROL_WORDS
from harness.selftest.attached import SHM, attach_to

_LOOK_S = 0.02


def rests(run: int) -> bool:
    """Whether the probes rest in measured run 0, 1, ...: no yes yes no, so that a drift hits both sides alike."""
    return run % 4 in (1, 2)


class ProbesRest:
    """Sets the word `probes_rest` of the session that will publish its folder as `final`, from the moment in which a
    run is announced, 100 ms before it begins. Owned by: its thread until `stop` has returned."""

    def __init__(self, final: Path, first_run: int, folder: Path = SHM) -> None:
        """first_run: number of the first measured run, behind those that warm up."""
        self._final = final
        self._first_run = first_run
        self._folder = folder
        self._stop = threading.Event()
        self.seen: set[int] = set()
        self._thread = threading.Thread(target=self._watch, name="probes-rest", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. `seen` then holds the measured runs, from 0, whose beginning it met."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        collector = attach_to(self._final, self._stop, self._folder, writable=True)
        if collector is None:
            return
        while not self._stop.wait(_LOOK_S) and not collector.word("receiver_stop"):
            run = collector.word("current_run") - self._first_run
            if run >= 0 and run not in self.seen:
                collector.control[CONTROL_WORDS["probes_rest"]] = int(rests(run))
                self.seen.add(run)
        collector.close()
