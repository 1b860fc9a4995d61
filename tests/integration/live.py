"""A live isorate command under test: find its children, wait for a stage, look at what it left."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.common.collector import Collector
from helpers import start_cli, wait_until

#: Load of a run that is still going on whenever a test looks: 100 s of it.
STEADY = ["--engine", "null", "--null-service-ms", "1", "--rate", "100", "--num-requests", "10000",
          "--warmup-runs", "0", "--max-new-tokens", "2", "--probes", "off"]  # fmt: skip


class Live:
    """One command, its result folder `out` and its collector folder `shm`."""

    def __init__(self, process: subprocess.Popen[str], out: Path, shm: Path) -> None:
        self.process = process
        self.out = out
        self.shm = shm

    def child(self, module: str) -> int:
        """The pid of `python -m module`, waiting until it exists as such (taskset has become Python)."""
        return wait_until(lambda: self._find(module), 20, f"a child {module}")

    def _find(self, module: str) -> int:
        assert self.process.poll() is None, self.process.communicate()
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in children:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if module.encode() in words and b"-m" in words and not words[0].endswith(b"taskset"):
                return int(pid)
        return 0

    def word(self, name: str) -> int:
        """A counter of the collector, 0 where there is none yet."""
        for path in self.shm.glob("isorate-*.collector"):
            try:
                collector = Collector.attach(path, writable=False)
            except Exception:
                return 0
            try:
                return collector.word(name)
            finally:
                collector.close()
        return 0

    def wait_for(self, word: str, at_least: int) -> None:
        """Wait until a counter has reached a value."""
        wait_until(lambda: self.word(word) >= at_least, 40, f"{word} >= {at_least}")

    def end(self, timeout_s: float) -> tuple[int, str, str]:
        """Wait for its end: exit code, stdout, stderr."""
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err

    def summary(self) -> dict[str, object]:
        """summary.json of the result folder."""
        parsed: dict[str, object] = json.loads((self.out / "summary.json").read_text())
        return parsed


@contextmanager
def live(tmp_path: Path, *args: str) -> Iterator[Live]:
    """Start isorate with a result and a collector folder of its own; whatever happens, it is gone at the end."""
    shm = tmp_path / "shm"
    shm.mkdir(exist_ok=True)
    out = tmp_path / "out"
    process = start_cli([*args, "--out", str(out), "--collector-dir", str(shm)], cwd=tmp_path)
    try:
        yield Live(process, out, shm)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)


def alive(pid: int) -> bool:
    """Whether a process still runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def leftovers(tmp_path: Path) -> list[str]:
    """Collector files and socket folders that lie about."""
    import tempfile

    temp = Path(tempfile.gettempdir())
    return [str(path) for path in [*(tmp_path / "shm").glob("*"), *temp.glob("isorate-*")]]


def pids_of(live_run: Live) -> list[int]:
    return [live_run.child("engine_proc"), live_run.child("submitter_proc"), live_run.process.pid]


def send(pid: int, number: int) -> None:
    os.kill(pid, number)
