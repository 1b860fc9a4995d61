"""The control channel: messages whole and in order, an end that is noticed, and junk that is named."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator

import msgpack
import pytest

from harness.common.control import MAX_MESSAGE_BYTES, PONG, READY, ControlChannel, ControlMessage, PeerGoneError
from harness.common.errors import ProtocolError

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def channel(ends: tuple[socket.socket, socket.socket]) -> ControlChannel:
    return ControlChannel(ends[0])


@pytest.fixture
def peer(ends: tuple[socket.socket, socket.socket]) -> ControlChannel:
    return ControlChannel(ends[1])


def framed(payload: bytes) -> bytes:
    return struct.pack("<Q", len(payload)) + payload


def test_messages_come_back_as_they_went_and_in_order(channel: ControlChannel, peer: ControlChannel) -> None:
    body = {"rows": [1, 2], "text": "grüß", "raw": b"\x00\xff", "none": None, "deep": {"a": {"b": 1.5}}}
    channel.send(READY, **body)
    channel.send(PONG)
    assert peer.receive() == ControlMessage(READY, body)
    assert peer.receive() == ControlMessage(PONG, {})


def test_a_message_larger_than_the_socket_buffer_passes(channel: ControlChannel, peer: ControlChannel) -> None:
    data = os.urandom(3 << 20)
    sender = threading.Thread(target=channel.send, args=(READY,), kwargs={"data": data}, daemon=True)
    sender.start()
    message = peer.receive()
    sender.join()
    assert message is not None and message.body["data"] == data


def test_a_message_in_pieces_is_put_together(
    channel: ControlChannel, ends: tuple[socket.socket, socket.socket]
) -> None:
    data = framed(msgpack.packb([READY, {"x": 1}]))

    def drip() -> None:
        for i in range(len(data)):
            ends[1].send(data[i : i + 1])

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    assert channel.receive() == ControlMessage(READY, {"x": 1})
    thread.join()


def test_nothing_within_the_timeout_is_none(channel: ControlChannel, peer: ControlChannel) -> None:
    assert channel.receive(timeout_s=0) is None
    assert channel.receive(timeout_s=0.01) is None


def test_the_end_of_the_peer_is_seen_by_a_receiver(channel: ControlChannel, peer: ControlChannel) -> None:
    peer.close()
    with pytest.raises(PeerGoneError):
        channel.receive()
    with pytest.raises(PeerGoneError):
        channel.receive(timeout_s=0)


def test_what_the_peer_said_before_its_end_is_still_read(channel: ControlChannel, peer: ControlChannel) -> None:
    peer.send(READY)
    peer.close()
    assert channel.receive() == ControlMessage(READY, {})
    with pytest.raises(PeerGoneError):
        channel.receive()


def test_an_end_in_the_middle_of_a_message_is_an_end(
    channel: ControlChannel, ends: tuple[socket.socket, socket.socket]
) -> None:
    ends[1].send(framed(b"x" * 100)[:50])
    ends[1].close()
    with pytest.raises(PeerGoneError):
        channel.receive()


def test_the_end_of_the_peer_is_seen_by_a_sender(channel: ControlChannel, peer: ControlChannel) -> None:
    peer.close()
    with pytest.raises(PeerGoneError, match="READY"):
        channel.send(READY)


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"\xc1", b"\x91" * 2000, b"\x92\xa1",
        *(msgpack.packb(value) for value in (7, None, [], ["READY"], ["READY", {}, 1], "ab", {"a": 1, "b": 2}, [1, {}],
                                             ["READY", 1], ["READY", None], ["READY", []])),
        msgpack.packb(["READY", {}]) + b"\x00",
        b"\x92\xa1\xff\x80",
    ],
)  # fmt: skip
def test_junk_is_a_protocol_error(
    channel: ControlChannel, ends: tuple[socket.socket, socket.socket], payload: bytes
) -> None:
    ends[1].send(framed(payload))
    with pytest.raises(ProtocolError) as caught:
        channel.receive(timeout_s=5)
    assert not isinstance(caught.value, PeerGoneError)


def test_an_absurd_length_is_a_protocol_error(
    channel: ControlChannel, ends: tuple[socket.socket, socket.socket]
) -> None:
    ends[1].send(struct.pack("<Q", MAX_MESSAGE_BYTES + 1))
    with pytest.raises(ProtocolError, match=str(MAX_MESSAGE_BYTES + 1)):
        channel.receive(timeout_s=5)


def test_expect_returns_the_message_that_was_expected(channel: ControlChannel, peer: ControlChannel) -> None:
    peer.send(READY, x=1)
    assert channel.expect(READY, timeout_s=5).body == {"x": 1}


def test_expect_names_another_message_and_a_silence(channel: ControlChannel, peer: ControlChannel) -> None:
    peer.send(PONG)
    with pytest.raises(ProtocolError, match="expected READY, got PONG"):
        channel.expect(READY, timeout_s=5)
    with pytest.raises(ProtocolError, match="no READY within"):
        channel.expect(READY, timeout_s=0)
