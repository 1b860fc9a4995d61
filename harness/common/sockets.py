"""ZeroMQ sockets with the options that every isorate socket needs, and the private folder they live in."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import zmq

from harness.common.errors import ConfigError

RECEIVE_TIMEOUT_MS = 100  # how often a blocked receive looks at the stop word
HANDSHAKE_BYTES = 256  # libzmq counts the commands of its own handshake as messages; they take fewer
LINGER_MS = 1000  # set at creation: setting it late races with the I/O thread


def make_context(io_cpus: Iterable[int] = ()) -> zmq.Context[zmq.Socket[bytes]]:
    """A context with one I/O thread, on the CPUs `io_cpus` where given. Must be called before the first socket."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    for cpu in io_cpus:
        context.set(zmq.THREAD_AFFINITY_CPU_ADD, cpu)
    return context


def push_socket(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> zmq.Socket[bytes]:
    """A connected PUSH socket: no high-water mark, nothing accepted for a peer that is not there."""
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.connect(endpoint)
    return socket


def pull_socket(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, max_frame_bytes: int) -> zmq.Socket[bytes]:
    """A bound PULL socket that disconnects a peer whose message exceeds `max_frame_bytes` (and HANDSHAKE_BYTES)."""
    socket = context.socket(zmq.PULL)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.RCVTIMEO, RECEIVE_TIMEOUT_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, max(max_frame_bytes, HANDSHAKE_BYTES))
    socket.bind(endpoint)
    return socket


def wait_until_connected(socket: zmq.Socket[bytes], timeout_s: float) -> bool:
    """Whether a PUSH socket with IMMEDIATE has a live peer within `timeout_s`."""
    return bool(socket.poll(int(timeout_s * 1000), zmq.POLLOUT))


def make_socket_folder() -> Path:
    """A run-private 0700 folder for ipc sockets. Raises ConfigError where the temporary path is too long for one."""
    base = Path(tempfile.gettempdir())
    longest = base / "isorate-XXXXXXXX" / "results.sock"
    limit = zmq.IPC_PATH_MAX_LEN
    if len(os.fsencode(longest)) > limit:
        raise ConfigError(f"the temporary folder {base} is too long for an ipc socket ({limit} bytes); set TMPDIR")
    try:
        return Path(tempfile.mkdtemp(prefix="isorate-", dir=base))
    except OSError as error:
        raise ConfigError(f"cannot make a folder for sockets in {base}: {error.strerror}") from error


def endpoint(folder: Path, name: str) -> str:
    """The ipc endpoint `name` ("data" or "results") in a socket folder."""
    return f"ipc://{folder}/{name}.sock"
