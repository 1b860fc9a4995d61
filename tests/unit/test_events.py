"""The one place where the harness waits: messages, deaths and Ctrl-C each come out of it as what they are."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.common.control import ARM, DEAD, PONG, READY, ControlChannel
from harness.common.errors import ChildDiedError, ConfigError, ProtocolError
from harness.session.children import Child
from harness.session.events import DeadChildError, Events, InterruptedRunError

pytestmark = pytest.mark.timeout(20)


@dataclass
class Pair:
    """A child as the harness sees it, and the child's own end of the channel, held by the test."""

    child: Child
    theirs: ControlChannel


@pytest.fixture
def events() -> Iterator[Events]:
    made = Events()
    yield made
    made.close()


@pytest.fixture
def pair(events: Events, tmp_path: Path) -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    child = Child("engine", process, ControlChannel(ours), os.pidfd_open(process.pid), tmp_path / "log")
    events.watch_child(child)
    yield Pair(child, ControlChannel(theirs))
    theirs.close()
    assert process.stdin is not None
    process.stdin.close()
    child.end(5)


def test_messages_come_with_their_sender_and_in_order(events: Events, pair: Pair) -> None:
    pair.theirs.send(READY, x=1)
    pair.theirs.send(PONG)
    messages, _ = events.wait(5)
    assert [(child.name, message.kind) for child, message in messages] == [("engine", READY), ("engine", PONG)]


def test_nothing_within_the_timeout_is_nothing(events: Events, pair: Pair) -> None:
    assert events.wait(0) == ([], set())


def test_a_ready_descriptor_is_named(events: Events) -> None:
    fd = os.eventfd(1, os.EFD_CLOEXEC)
    events.watch_results(fd)
    assert events.wait(5) == ([], {fd})
    events.forget_results(fd)
    assert events.wait(0) == ([], set())
    os.close(fd)


def test_the_end_of_a_channel_is_the_child_s_death(events: Events, pair: Pair) -> None:
    pair.child.process.kill()
    pair.child.process.wait()
    pair.theirs.close()
    with pytest.raises(DeadChildError, match="the engine process died: signal SIGKILL") as caught:
        events.wait(5)
    assert caught.value.child is pair.child


def test_a_death_is_seen_although_the_channel_is_held_open(events: Events, pair: Pair) -> None:
    """By a grandchild that inherited it, say."""
    pair.child.process.kill()
    pair.child.process.wait()
    with pytest.raises(DeadChildError, match="SIGKILL"):
        events.wait(5)


def test_what_a_child_says_of_its_death_is_its_reason(events: Events, pair: Pair) -> None:
    pair.theirs.send(DEAD, reason="device lost", usage=False)
    with pytest.raises(DeadChildError, match="the engine process died: device lost"):
        events.wait(5)


def test_a_child_that_blames_the_input_is_a_usage_error(events: Events, pair: Pair) -> None:
    pair.theirs.send(DEAD, reason="no such model", usage=True)
    with pytest.raises(ConfigError, match=r"^no such model$"):
        events.wait(5)


def test_expect_returns_the_fields(events: Events, pair: Pair) -> None:
    pair.theirs.send(READY, x=1)
    assert events.expect(pair.child, READY, 5) == {"x": 1}


def test_expect_names_another_message(events: Events, pair: Pair) -> None:
    pair.theirs.send(PONG)
    with pytest.raises(ProtocolError, match="expected READY of the engine, got PONG of the engine"):
        events.expect(pair.child, READY, 5)


def test_expect_names_a_silence(events: Events, pair: Pair) -> None:
    with pytest.raises(ChildDiedError, match=r"the engine gave no READY within 0\.01 s"):
        events.expect(pair.child, READY, 0.01)


def test_a_message_to_a_child_reaches_it(events: Events, pair: Pair) -> None:
    events.send(pair.child, ARM, rows=3)
    message = pair.theirs.receive(5)
    assert message is not None and (message.kind, message.body) == (ARM, {"rows": 3})


def test_speaking_to_a_dead_child_raises_what_it_said_before(events: Events, pair: Pair) -> None:
    pair.theirs.send(DEAD, reason="device lost", usage=False)
    pair.theirs.close()
    with pytest.raises(DeadChildError, match="device lost"):
        events.send(pair.child, ARM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait_as_an_interruption(events: Events, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with events.signals():
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # a second one changes nothing
        with pytest.raises(InterruptedRunError):
            events.wait(5)
    assert signal.getsignal(number) is before


def test_a_signal_while_the_report_is_written_writes_into_none_of_its_files(tmp_path: Path) -> None:
    """The pipe is closed by then, and the next files that are opened get its numbers."""
    made = Events()
    with made.signals():
        made.close()
        with contextlib.ExitStack() as files:
            opened = [files.enter_context(open(tmp_path / f"{i}", "wb", buffering=0)) for i in range(8)]
            os.kill(os.getpid(), signal.SIGINT)
            assert made.interrupted and len(opened) == 8
    assert all((tmp_path / f"{i}").stat().st_size == 0 for i in range(8))
