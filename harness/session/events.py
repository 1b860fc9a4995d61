"""One place where the harness waits: control channels, ends of children, received results, Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from harness.common import control as words
from harness.common.control import ControlMessage, PeerGoneError
from harness.common.errors import ChildDiedError, ConfigError, ProtocolError
from harness.session.children import Child


class InterruptedRunError(ChildDiedError):
    """Ctrl-C, SIGTERM or a closed terminal: keep what was measured, exit 130."""


class Events:
    """Waits on everything at once. Owned by: the harness's main thread."""

    def __init__(self) -> None:
        self.interrupted = False
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._children: list[Child] = []

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Turn SIGINT, SIGTERM and SIGHUP into a flag and a wake-up while inside; a second one changes nothing.

        A SIGHUP that is ignored stays so: `nohup` asked for that.
        """

        def interrupt(number: int, frame: FrameType | None) -> None:
            self.interrupted = True
            if self._wake_write < 0:  # closed: the number may be one of the report's files by now
                return
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake_write, b"!")

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, interrupt) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def watch_child(self, child: Child) -> None:
        self._children.append(child)
        self._selector.register(child.channel.fileno(), selectors.EVENT_READ, child)
        self._selector.register(child.pidfd, selectors.EVENT_READ, child)

    def watch_results(self, fd: int) -> None:
        self._selector.register(fd, selectors.EVENT_READ, None)

    def forget_results(self, fd: int) -> None:
        self._selector.unregister(fd)

    def wait(self, timeout_s: float) -> tuple[list[tuple[Child, ControlMessage]], set[int]]:
        """Wait for anything: returns control messages, and the file descriptors that were ready.

        Raises InterruptedRunError; ChildDiedError for a child that died or said DEAD (ConfigError where it blames the
        input).
        """
        ready = self._selector.select(timeout_s)
        if self.interrupted:
            raise InterruptedRunError("interrupted")
        messages: list[tuple[Child, ControlMessage]] = []
        for child in {key.data.name: key.data for key, _ in ready if key.data is not None}.values():
            messages.extend((child, message) for message in self._messages(child))
        return messages, {key.fd for key, _ in ready}

    def send(self, child: Child, kind: str, **body: Any) -> None:
        """Send a message; to a child that is gone, raise what it said before it went."""
        try:
            child.channel.send(kind, **body)
        except PeerGoneError:
            for _ in self._messages(child):
                continue
            raise DeadChildError(child, child.exit_word()) from None

    def expect(self, child: Child, kind: str, timeout_s: float) -> dict[str, Any]:
        """Wait for one message of `kind` from `child`. Raises as `wait`, and ProtocolError for another or for none."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            for sender, message in self.wait(min(left, 1.0))[0]:
                if sender is child and message.kind == kind:
                    return message.body
                raise ProtocolError(f"expected {kind} of the {child.name}, got {message.kind} of the {sender.name}")
        raise ChildDiedError(f"the {child.name} gave no {kind} within {timeout_s:g} s (--start-timeout)")

    def expect_each(self, children: Iterable[Child], kind: str, timeout_s: float) -> None:
        """Wait for one message of `kind` from each of `children`, in any order. Raises as `expect`."""
        awaited = {child.name: child for child in children}
        deadline = time.monotonic() + timeout_s
        while awaited:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ChildDiedError(f"the {' and the '.join(awaited)} gave no {kind} within {timeout_s:g} s")
            for sender, message in self.wait(min(left, 1.0))[0]:
                if message.kind != kind or awaited.pop(sender.name, None) is not sender:
                    raise ProtocolError(f"expected {kind}, got {message.kind} of the {sender.name}")

    def close(self) -> None:
        """Signals are still taken afterwards, and change nothing."""
        wake_write, self._wake_write = self._wake_write, -1  # first: a signal may come in between
        self._selector.close()
        os.close(self._wake_read)
        os.close(wake_write)

    def _messages(self, child: Child) -> Iterator[ControlMessage]:
        try:
            while (message := child.channel.receive(timeout_s=0)) is not None:
                if message.kind == words.DEAD:
                    if message.body["usage"]:
                        raise ConfigError(message.body["reason"])
                    raise DeadChildError(child, message.body["reason"])
                yield message
        except PeerGoneError:
            with contextlib.suppress(Exception):
                child.process.wait(1.0)
            raise DeadChildError(child, child.exit_word()) from None
        if child.process.poll() is not None:
            raise DeadChildError(child, child.exit_word())


class DeadChildError(ChildDiedError):
    """Which child died, and how."""

    def __init__(self, child: Child, how: str) -> None:
        super().__init__(f"the {child.name} process died: {how}")
        self.child = child
