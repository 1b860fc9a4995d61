"""Reading /proc: who is alive, since when, and where it may run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from harness.common.processes import (
    affinity_of,
    defer_io_threads,
    is_alive,
    pin_self,
    sharpen_timers,
    start_ticks,
)
from harness.common.sockets import make_context
from helpers import wait_until

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose name holds a blank, brackets and bytes that are no UTF-8; it lives until its stdin closes."""
    code = (
        "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'a) R \\xff', 0, 0, 0);"
        "print('named', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_this_process_is_alive() -> None:
    assert is_alive(os.getpid(), start_ticks(os.getpid()))


def test_a_pid_that_was_given_out_again_is_another_process() -> None:
    assert not is_alive(os.getpid(), start_ticks(os.getpid()) - 1)
    assert not is_alive(os.getpid(), 0)


def test_a_process_may_have_any_name(child: subprocess.Popen[bytes]) -> None:
    start = start_ticks(child.pid)
    assert start >= start_ticks(os.getpid()) > 0
    assert is_alive(child.pid, start)


def test_a_zombie_is_not_alive(child: subprocess.Popen[bytes]) -> None:
    start = start_ticks(child.pid)
    child.kill()
    wait_until(lambda: not is_alive(child.pid, start), what="the child's death")
    assert start_ticks(child.pid) == start, "nobody has waited for it: it is there, as a zombie"


def test_a_process_that_never_was_has_no_start_and_no_cores() -> None:
    pid = 2**22 + 1  # above the kernel's largest
    assert start_ticks(pid) == 0
    assert not is_alive(pid, 0) and affinity_of(pid) == []


def test_affinity_is_read_back_from_the_kernel(child: subprocess.Popen[bytes]) -> None:
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(child.pid, {core})
    assert affinity_of(child.pid) == [core]


def test_pinning_to_a_core_that_is_not_there_is_an_error() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(OSError, match=r"."):
        pin_self([1023])
    pin_self([])
    assert os.sched_getaffinity(0) == before


def test_timers_can_be_sharpened() -> None:
    """In a process of its own: the slack of this one's threads stays."""
    code = "from harness.common.processes import sharpen_timers as s; import sys; sys.exit(0 if s() else 1)"
    assert callable(sharpen_timers)
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_io_threads_get_the_batch_policy_and_nothing_else_does() -> None:
    context = make_context()
    socket = context.socket(zmq.PUSH)  # the I/O thread exists from the first socket on
    try:
        wait_until(lambda: defer_io_threads() >= 1, 5, "the I/O thread to have its name")
        policies = {
            Path(f"/proc/self/task/{task}/comm").read_text().strip(): os.sched_getscheduler(int(task))
            for task in os.listdir("/proc/self/task")
        }
    finally:
        socket.close(linger=0)
        context.term()
    assert {name for name, policy in policies.items() if policy == os.SCHED_BATCH} == {"ZMQbg/IO/0"}
