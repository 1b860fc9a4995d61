"""The control channel between the harness and a child: one inherited socketpair, length-prefixed msgpack messages.

Its end-of-file is the death pipe both ways. Nothing of it is on the timed path.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import Any, NamedTuple

import msgpack

from harness.common.errors import ProtocolError

#: Messages, by who sends them.
HELLO, DESCRIBED, TOKENIZED, READY, PONG, ARMED, RUN_SENT, DETOKENIZED, DEAD = (
    "HELLO", "DESCRIBED", "TOKENIZED", "READY", "PONG", "ARMED", "RUN_SENT", "DETOKENIZED", "DEAD",
)  # fmt: skip
CONFIGURE, DESCRIBE, TOKENIZE, PREPARE, PING, ARM, START, DETOKENIZE, STOP = (
    "CONFIGURE", "DESCRIBE", "TOKENIZE", "PREPARE", "PING", "ARM", "START", "DETOKENIZE", "STOP",
)  # fmt: skip

_LENGTH = struct.Struct("<Q")
MAX_MESSAGE_BYTES = 1 << 32


class ControlMessage(NamedTuple):
    """One message: its kind and its fields."""

    kind: str
    body: dict[str, Any]


class PeerGoneError(ProtocolError):
    """The other end of a control channel is closed: its process is gone."""


class ControlChannel:
    """One end of the socketpair. Used by one thread at a time."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        end.setblocking(True)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, kind: str, **body: Any) -> None:
        """Send one message. Raises PeerGoneError."""
        payload: bytes = msgpack.packb([kind, body], use_bin_type=True)
        try:
            self._socket.sendall(_LENGTH.pack(len(payload)) + payload)
        except OSError as error:
            raise PeerGoneError(f"control channel closed while sending {kind}") from error

    def receive(self, timeout_s: float | None = None) -> ControlMessage | None:
        """The next message, or None after `timeout_s`. Raises PeerGoneError at end-of-file, ProtocolError for junk."""
        if timeout_s is not None and not self._readable(timeout_s):
            return None
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"control message of {length} bytes")
        try:
            kind, body = msgpack.unpackb(self._exactly(length), raw=False, strict_map_key=False)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise ProtocolError("control message that is not [kind, fields]") from error
        if type(kind) is not str or type(body) is not dict:
            raise ProtocolError("control message that is not [kind, fields]")
        return ControlMessage(kind, body)

    def expect(self, kind: str, timeout_s: float) -> ControlMessage:
        """The next message, which must be of `kind`. Raises ProtocolError for another or for none in time."""
        deadline = time.monotonic() + timeout_s
        message = self.receive(max(deadline - time.monotonic(), 0))
        if message is None:
            raise ProtocolError(f"no {kind} within {timeout_s:.0f} s")
        if message.kind != kind:
            raise ProtocolError(f"expected {kind}, got {message.kind}")
        return message

    def close(self) -> None:
        self._socket.close()

    def _readable(self, timeout_s: float) -> bool:
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(int(timeout_s * 1000)))

    def _exactly(self, nbytes: int) -> bytes:
        chunks = []
        while nbytes:
            try:
                chunk = self._socket.recv(min(nbytes, 1 << 20))
            except OSError as error:
                raise PeerGoneError("control channel reset") from error
            if not chunk:
                raise PeerGoneError("control channel closed")
            chunks.append(chunk)
            nbytes -= len(chunk)
        return b"".join(chunks)
