"""The wire thread and its ring, compiled and plain: every message once, in order, with a stamp of its own."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from harness.common.clock import monotonic_ns
from harness.common.collector import CONTROL_WORDS
from harness.common.sockets import (
    endpoint,
    make_context,
    make_socket_folder,
    pull_socket,
    push_socket,
    wait_until_connected,
)
from harness.common.wire import (
    ENGINE_CELLS,
    MAX_RING_BYTES,
    Arrival,
    CompiledWire,
    PlainWire,
    RingSize,
    Wire,
    compile_receive,
    make_wire,
    ring_for,
)
from helpers import wait_until

pytestmark = pytest.mark.timeout(20)

MAX_FRAME = 64
NAME = "tested-wire"
ROOMY = RingSize(64, 1 << 14)
#: A wrap at every other frame; at odd places; and as few slots as there can be.
TIGHT = [RingSize(4096, 2 * MAX_FRAME), RingSize(4096, 5 * MAX_FRAME + 7), RingSize(2, 1 << 14)]


@pytest.fixture(scope="module")
def receive() -> Any:
    return compile_receive()


class Rig:
    """A PUSH socket and a wire at its other end; `control` is the collector's control page."""

    def __init__(self, folder: Path, receive: Any) -> None:
        self.control = np.zeros(512, dtype=np.int64)
        self._receive = receive
        self._endpoint = endpoint(folder, "data")
        self._context = make_context()
        self._wires: list[Wire] = []

    def start(self, kind: str, ring: RingSize = ROOMY) -> Wire:
        wire: Wire
        if kind == "compiled":
            wire = CompiledWire(self._bind, NAME, self.control, ENGINE_CELLS, MAX_FRAME, ring, self._receive)
        else:
            wire = PlainWire(self._bind, NAME, self.control, ENGINE_CELLS, MAX_FRAME)
        self._wires.append(wire)
        wire.start()
        self.push = push_socket(self._context, self._endpoint)  # after the bind: a refused connect is retried at 100 ms
        assert wait_until_connected(self.push, 5)
        return wire

    def _bind(self) -> zmq.Socket[bytes]:
        # Larger frames than the wire takes, so that it meets them; a short timeout, so that tests end fast.
        socket = pull_socket(self._context, self._endpoint, 1 << 20)
        socket.setsockopt(zmq.RCVTIMEO, 10)
        return socket

    def word(self, name: str) -> int:
        return int(self.control[CONTROL_WORDS[name]])

    def stop(self) -> None:
        self.control[CONTROL_WORDS["stop"]] = 1

    def wait_for(self, messages: int) -> None:
        wait_until(lambda: self.word("wire_messages") == messages, what=f"{messages} messages in the ring")

    def close(self) -> None:
        self.stop()
        for wire in self._wires:
            wire.join()
        self._context.destroy(linger=0)


@pytest.fixture
def rig(receive: Any) -> Iterator[Rig]:
    folder = make_socket_folder()
    rig = Rig(folder, receive)
    yield rig
    rig.close()
    shutil.rmtree(folder)


@pytest.fixture(params=["python", "compiled"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def take(wire: Wire, count: int) -> list[Arrival]:
    """The next `count` messages, as a consumer takes them: look, park, look again."""
    taken: list[Arrival] = []
    while len(taken) < count:
        arrival = wire.pop()
        if arrival is not None:
            taken.append(arrival)
        else:
            assert not wire.ended(), f"ended after {len(taken)} of {count}"
            wire.park()
    return taken


def thread_runs() -> bool:
    return any(thread.name == NAME for thread in threading.enumerate())


def test_messages_arrive_in_order(rig: Rig, kind: str) -> None:
    wire = rig.start(kind)
    frames = [b"%d" % i * (i % 20) for i in range(1000)]  # empty ones among them
    for frame in frames:
        rig.push.send(frame)
    assert [arrival.frame for arrival in take(wire, 1000)] == frames
    assert wire.pop() is None
    assert rig.word("wire_messages") == 1000


def test_stamps_lie_between_send_and_take_and_never_go_back(rig: Rig, kind: str) -> None:
    wire = rig.start(kind)
    stamps = []
    for _ in range(50):
        before = monotonic_ns()
        rig.push.send(b"x")
        (arrival,) = take(wire, 1)
        assert before <= arrival.t_wire <= monotonic_ns()
        stamps.append(arrival.t_wire)
    assert stamps == sorted(stamps)


def test_messages_sent_together_have_rising_stamps(rig: Rig, kind: str) -> None:
    wire = rig.start(kind)
    for _ in range(500):
        rig.push.send(b"x")
    stamps = [arrival.t_wire for arrival in take(wire, 500)]
    assert stamps == sorted(stamps) and stamps[0] < stamps[-1]


@pytest.mark.parametrize("size", [MAX_FRAME, 1])
def test_a_frame_of_the_largest_size_is_taken(rig: Rig, kind: str, size: int) -> None:
    wire = rig.start(kind)
    rig.push.send(b"x" * size)
    assert take(wire, 1)[0].frame == b"x" * size
    assert rig.word("wire_bad_frames") == 0


@pytest.mark.parametrize(
    "bad",
    [[b"x" * (MAX_FRAME + 1)], [b"x" * 100_000], [b"a", b"b"], [b""] * 5, [b"x" * 1000, b"y" * 1000, b"z"]],
    ids=["one byte too long", "far too long", "two parts", "empty parts", "long parts"],
)
def test_a_bad_frame_is_counted_and_the_next_good_one_arrives(rig: Rig, kind: str, bad: list[bytes]) -> None:
    wire = rig.start(kind)
    for parts in ([b"before"], bad, [b"after"]):
        rig.push.send_multipart(parts)
    assert [arrival.frame for arrival in take(wire, 2)] == [b"before", b"after"]
    assert (rig.word("wire_bad_frames"), rig.word("wire_messages")) == (1, 2)


@pytest.mark.parametrize("ring", TIGHT)
def test_a_full_ring_waits_for_its_consumer_and_loses_nothing(rig: Rig, ring: RingSize) -> None:
    wire = rig.start("compiled", ring)
    draw = random.Random(7)
    frames = [bytes([i % 256]) * draw.choice([0, 1, 17, MAX_FRAME - 1, MAX_FRAME]) for i in range(2000)]
    for frame in frames:
        rig.push.send(frame)
    wait_until(lambda: rig.word("wire_ring_waits") > 0, what="the ring to be full")
    taken = [arrival.frame for arrival in take(wire, len(frames))]
    assert taken == frames
    assert sum(map(len, frames)) > 50 * ring.nbytes or ring.slots == 2


def test_a_full_ring_looks_at_the_stop_word(rig: Rig) -> None:
    rig.start("compiled", RingSize(2, 1 << 14))
    for _ in range(10):
        rig.push.send(b"x")
    wait_until(lambda: rig.word("wire_ring_waits") > 0, what="the ring to be full")
    rig.stop()
    wait_until(lambda: not thread_runs(), what="the wire thread's end")


@pytest.mark.parametrize("max_frame", [1, 100, 1 << 20, MAX_RING_BYTES + 1])
@pytest.mark.parametrize("expected", [1, 1024, 5000, 1 << 22])
def test_every_ring_holds_two_largest_frames(expected: int, max_frame: int) -> None:
    """With less, a frame that must wrap could wait for room that never comes."""
    ring = ring_for(expected, max_frame)
    assert ring.nbytes >= 2 * max_frame
    assert ring.slots & (ring.slots - 1) == 0 and 1024 <= ring.slots <= 1 << 20


def test_the_stop_word_ends_the_thread(rig: Rig, kind: str) -> None:
    wire = rig.start(kind)
    assert thread_runs() and not wire.ended()
    rig.stop()
    wait_until(lambda: not thread_runs(), what="the wire thread's end")
    assert wire.ended()


def test_a_parked_consumer_is_woken_by_the_end(rig: Rig, kind: str) -> None:
    wire = rig.start(kind)
    rig.stop()
    wire.park()  # returns, or the test's timeout ends it
    wait_until(wire.ended, what="the end")


def test_a_wire_has_ended_only_when_its_ring_is_drained(rig: Rig, kind: str) -> None:
    wire = rig.start(kind)
    for _ in range(3):
        rig.push.send(b"x")
    rig.wait_for(3)
    rig.stop()
    wait_until(lambda: not thread_runs(), what="the wire thread's end")
    for _ in range(3):
        assert not wire.ended()
        assert wire.pop() is not None
    assert wire.ended()


def test_only_the_message_that_found_the_consumer_armed_is_flagged(rig: Rig, kind: str) -> None:
    wire = rig.start(kind)
    wire.arm()
    for _ in range(3):
        rig.push.send(b"x")
    assert [arrival.parked for arrival in take(wire, 3)] == [True, False, False]


def test_a_message_that_found_nobody_armed_is_not_flagged(rig: Rig, kind: str) -> None:
    wire = rig.start(kind)
    for _ in range(2):
        rig.push.send(b"x")
    assert [arrival.parked for arrival in take(wire, 2)] == [False, False]


def test_arming_behind_an_unseen_message_flags_none(rig: Rig, kind: str) -> None:
    """The consumer looked, a message came, then it armed: the next one has that message ahead of it."""
    wire = rig.start(kind)
    rig.push.send(b"first")
    rig.wait_for(1)
    wire.arm()
    rig.push.send(b"second")
    rig.wait_for(2)
    assert [arrival.parked for arrival in take(wire, 2)] == [False, False]


def test_each_armed_wait_flags_one_message(rig: Rig, kind: str) -> None:
    wire = rig.start(kind)
    flags = []
    for _ in range(5):
        wire.arm()
        rig.push.send(b"x")
        flags += [arrival.parked for arrival in take(wire, 1)]
    assert flags == [True] * 5


def test_a_bad_frame_does_not_use_up_the_armed_flag(rig: Rig, kind: str) -> None:
    wire = rig.start(kind)
    wire.arm()
    rig.push.send_multipart([b"a", b"b"])
    rig.push.send(b"good")
    assert take(wire, 1)[0].parked
    assert rig.word("wire_bad_frames") == 1


def test_join_closes_the_descriptor_and_leaves_no_thread(rig: Rig, kind: str) -> None:
    wire = rig.start(kind)
    fd = wire.fd
    assert os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventfd]"
    rig.stop()
    wire.join()
    assert wire.fd == -1 and not thread_runs()
    assert not os.path.exists(f"/proc/self/fd/{fd}")
    wire.join()  # once more is no error


@pytest.mark.parametrize("kind", ["python", "compiled"])
def test_a_socket_that_cannot_be_made_is_raised_by_start(kind: str, receive: Any) -> None:
    def fail() -> zmq.Socket[bytes]:
        raise zmq.ZMQError(zmq.EADDRINUSE)

    control = np.zeros(512, dtype=np.int64)
    wire: Wire = (
        CompiledWire(fail, NAME, control, ENGINE_CELLS, MAX_FRAME, RingSize(2, 1 << 10), receive)
        if kind == "compiled"
        else PlainWire(fail, NAME, control, ENGINE_CELLS, MAX_FRAME)
    )
    with pytest.raises(zmq.ZMQError, match="in use"):
        wire.start()
    wire.join()
    assert not thread_runs()


def test_an_error_of_the_socket_ends_the_loop_with_its_errno(receive: Any, kind: str) -> None:
    """A PUSH socket cannot receive: ENOTSUP."""
    context, control = make_context(), np.zeros(512, dtype=np.int64)
    wire: Wire
    if kind == "compiled":
        wire = CompiledWire(
            lambda: context.socket(zmq.PUSH), NAME, control, ENGINE_CELLS, MAX_FRAME, RingSize(2, 1 << 10), receive
        )
    else:
        wire = PlainWire(lambda: context.socket(zmq.PUSH), NAME, control, ENGINE_CELLS, MAX_FRAME)
    wire.start()
    wait_until(wire.ended, what="the loop's end")
    assert control[CONTROL_WORDS["wire_errno"]] == zmq.ENOTSUP
    wire.join()
    context.term()


def test_make_wire_makes_the_kind_that_was_asked_for(kind: str) -> None:
    def never() -> zmq.Socket[bytes]:
        raise AssertionError("not started")

    wire = make_wire(kind, never, NAME, np.zeros(512, dtype=np.int64), ENGINE_CELLS, MAX_FRAME, 10)
    assert wire.compiled == (kind == "compiled")
    os.close(wire.fd)
