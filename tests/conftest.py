"""Rules for every test: a private temp folder for the session, and nothing left behind by any test.

A harness that starts processes, threads, shared memory and sockets is only right when all of them are gone afterwards,
on every path. So each test is checked for it, not only those that are about shutdown.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers import child_env

SHM = Path("/dev/shm")
DEADLINE_S = 3.0  # what a test ended may need this long to go
POLL_S = 0.02
MARK = "ISORATE_TEST_SESSION"
# Threads that libraries keep for the process's life once used.
LIBRARY_THREADS = ("TMonitor", "tqdm_monitor", "pytest_timeout", "pymp-", "InductorSubproc", "compile_worker")


def pytest_configure(config: pytest.Config) -> None:
    """Isolate the session: children are recognized by an environment mark, temp folders lie in a folder of our own."""
    os.environ[MARK] = uuid.uuid4().hex
    if "PYTEST_XDIST_WORKER" in os.environ:  # a worker a core: torch with more threads waits for its own in turns
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTHONPATH"] = child_env()["PYTHONPATH"]
    # Short, since a socket's path may have 107 bytes and pytest's own folders come on top.
    folder = tempfile.TemporaryDirectory(prefix="it-", dir="/tmp" if os.access("/tmp", os.W_OK) else None)
    config.add_cleanup(folder.cleanup)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # tmp_path stays for a look afterwards
    os.environ["TMPDIR"] = folder.name
    tempfile.tempdir = None  # read TMPDIR anew


def _marked_processes(skip: frozenset[int]) -> dict[int, str]:
    """Living processes of this session: those that carry the mark (orphans too), and forked children, which do not."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = {pid: _command(pid) for pid in _children(os.getpid())}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in skip or int(entry) == os.getpid():
            continue
        try:
            environ = Path("/proc", entry, "environ").read_bytes()
        except OSError:  # gone, or somebody else's
            continue
        if mark in environ:
            found[int(entry)] = _command(int(entry))
    return {pid: command for pid, command in found.items() if command}


def _children(pid: int) -> set[int]:
    """All descendants of `pid`, by the kernel's own list."""
    found: set[int] = set()
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        for task in tasks:
            direct = {int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()}
            found |= direct.union(*(_children(child) for child in direct))
    except OSError:  # ended while we looked
        pass
    return found


def _command(pid: int) -> str:
    """The command line; empty for a process that is gone or a zombie (its parent may still hold the Popen object)."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _shm_files() -> set[str]:
    return {name for name in os.listdir(SHM) if name.startswith("isorate")} if SHM.is_dir() else set()


def _held_by_others(path: str) -> bool:
    """Another session on this machine has it mapped: not ours to judge."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                maps = Path("/proc", entry, "maps").read_text(errors="replace")
                environ = Path("/proc", entry, "environ").read_bytes()
            except OSError:
                continue
            if path in maps and os.environ[MARK].encode() not in environ:
                return True
    return False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What exists beside the test itself."""

    processes: dict[int, str]
    threads: frozenset[threading.Thread]
    shm: frozenset[str]
    temp: frozenset[str]

    @classmethod
    def take(cls, skip: frozenset[int]) -> Snapshot:
        return cls(
            _marked_processes(skip),
            frozenset(t for t in threading.enumerate() if not t.name.startswith(LIBRARY_THREADS)),
            frozenset(_shm_files()),
            frozenset(name for name in os.listdir(tempfile.gettempdir()) if name.startswith("isorate-")),
        )

    def leaks_since(self, before: Snapshot) -> list[str]:
        """One line for each thing that is new."""
        new_processes = [pid for pid in self.processes if pid not in before.processes]
        return [
            *(f"process {pid}: {self.processes[pid]}" for pid in new_processes),
            *(f"thread {t.name!r} (daemon: {t.daemon})" for t in self.threads - before.threads),
            *(f"{SHM / name}" for name in sorted(self.shm - before.shm) if not _held_by_others(str(SHM / name))),
            *(f"{tempfile.gettempdir()}/{name}" for name in sorted(self.temp - before.temp)),
        ]


@pytest.fixture(scope="session")
def _foreign_processes() -> frozenset[int]:
    """Processes that were there before the first test: need not be looked at again, which keeps the check cheap."""
    return frozenset(int(entry) for entry in os.listdir("/proc") if entry.isdigit())


@pytest.fixture(autouse=True)
def _no_leaks(_foreign_processes: frozenset[int]) -> Iterator[None]:
    """Fail a test that leaves a process, thread, shared-memory file or socket folder behind after a grace time."""
    before = Snapshot.take(_foreign_processes)
    yield
    end = time.monotonic() + DEADLINE_S
    while leaks := (after := Snapshot.take(_foreign_processes)).leaks_since(before):
        if time.monotonic() >= end:
            for pid in after.processes.keys() - before.processes.keys():  # the next tests shall not pay for it
                _kill(pid)
            pytest.fail("left behind:\n  " + "\n  ".join(leaks), pytrace=False)
        time.sleep(POLL_S)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
