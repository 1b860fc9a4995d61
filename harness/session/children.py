"""Starting and ending the two child processes; each has a control channel, a pidfd and a log file."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.common import control as words
from harness.common.control import ControlChannel, PeerGoneError
from harness.host.cores import format_cpu_list

_ROOT = Path(__file__).resolve().parents[2]
LOG_TAIL_BYTES = 4096


@dataclass(slots=True)
class Child:
    """A running child. Owned by: the harness's main thread (the kernel's death signal is tied to that thread)."""

    name: str
    process: subprocess.Popen[bytes]
    channel: ControlChannel
    pidfd: int
    log: Path

    def exit_word(self) -> str:
        """How it ended: "signal SIGKILL", "exit code 70", or "still running"."""
        code = self.process.poll()
        if code is None:
            return "still running"
        if code < 0:
            return f"signal {signal.Signals(-code).name}"
        return f"exit code {code}"

    def log_tail(self) -> str:
        """The last lines of what it wrote to stdout and stderr."""
        try:
            with open(self.log, "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(file.tell() - LOG_TAIL_BYTES, 0))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def stop(self) -> None:
        """Ask it to end; a child that is gone already needs no asking."""
        try:
            self.channel.send(words.STOP)
        except PeerGoneError:
            return

    def end(self, timeout_s: float) -> None:
        """Wait for its end, then terminate, then kill; closes what belongs to it."""
        for ask in (None, self.process.terminate, self.process.kill):
            if ask is not None:
                ask()
            try:
                self.process.wait(timeout_s if ask is None else 1.0)
                break
            except subprocess.TimeoutExpired:
                continue
        self.channel.close()
        os.close(self.pidfd)


def spawn(module: str, name: str, cores: tuple[int, ...], folder: Path) -> Child:
    """Start `python -m module` under `taskset` with an inherited control channel; its output goes to `name`.log."""
    ours, theirs = socket.socketpair()
    log = folder / f"{name}.log"
    taskset = shutil.which("taskset")  # where it is missing, the child pins itself before it imports anything
    prefix = [taskset, "-c", format_cpu_list(cores)] if taskset else []
    command = [
        *prefix, sys.executable, "-m", module, "--control-fd", str(theirs.fileno()), "--parent-pid", str(os.getpid()),
    ]  # fmt: skip
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")])))
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
            env=environment,
        )
    theirs.close()
    return Child(name, process, ControlChannel(ours), os.pidfd_open(process.pid), log)
