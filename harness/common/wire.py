"""The receiving end of a socket: a wire thread that stamps each message, and the ring that Python consumes.

`compiled`: one nogil loop for the whole run (receive, stamp, copy into a preallocated ring, eventfd). A receive call a
message is not enough: a thread that waits for the GIL is not in zmq_recv, so the next message's GIL wait would be
counted as transit. `python`: the plain twin; its stamp needs the GIL, so GIL wait cannot be measured with it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import zmq

from harness.common.clock import monotonic_ns
from harness.common.collector import CONTROL_WORDS, Int64Array
from harness.common.nogil import at, compile_loop
from harness.common.processes import name_thread

_SLOT = 4  # cells a slot: start (never wraps), length in bytes, t_wire, found the consumer parked
_HEAD, _DONE = 0, 1  # owned by: wire thread
_TAIL, _READ, _PARKED = 8, 9, 10  # owned by: consumer
_NOBODY_PARKED = -1
MAX_RING_BYTES = 256 << 20
MAX_RING_SLOTS = 1 << 20
#: How long the wire thread leaves a full ring alone. It shares the engine's core: 50 us took 3 us of it a message once
#: ten million had filled the ring; a consumer cannot empty the smallest ring meanwhile.
FULL_RING_SLEEP_NS = 500_000


class Arrival(NamedTuple):
    """One received message. t_wire: ns; parked: the consumer waited with nothing ahead; frame: the bytes."""

    t_wire: int
    parked: bool
    frame: bytes


class WireCells(NamedTuple):
    """Cells of the collector's control page: four counters that a wire thread owns, and the stop word it obeys."""

    messages: int
    ring_waits: int
    bad_frames: int
    errno: int
    stop: int


def _cells(prefix: str, stop: str) -> WireCells:
    counters = (CONTROL_WORDS[f"{prefix}_{name}"] for name in WireCells._fields[:4])
    return WireCells._make([*counters, CONTROL_WORDS[stop]])


class RingSize(NamedTuple):
    """Room between the wire thread and its consumer: messages (a power of two), bytes (two largest frames or more)."""

    slots: int
    nbytes: int


def ring_for(expected_frames: int, max_frame_bytes: int) -> RingSize:
    """Room for all `expected_frames` of a session, within bounds; never below the two frames that a wrap needs."""
    slots = 1 << max(10, (min(expected_frames, MAX_RING_SLOTS) - 1).bit_length())
    nbytes = min(MAX_RING_BYTES, max(1 << 20, slots * max_frame_bytes))
    return RingSize(slots, max(nbytes, max_frame_bytes) + max_frame_bytes)


ENGINE_CELLS = _cells("wire", "stop")
RECEIVER_CELLS = _cells("receiver", "receiver_stop")


class Wire(Protocol):
    """What consumers use. `pop` never blocks; `park` blocks until a message or the end may be there."""

    fd: int
    compiled: bool

    def start(self) -> None: ...
    def pop(self) -> Arrival | None: ...
    def park(self) -> None: ...
    def arm(self) -> None: ...
    def ended(self) -> bool: ...
    def join(self) -> None: ...


class _WireThread:
    """Runs `_loop(socket)` in a thread that makes, uses and closes the socket itself."""

    def __init__(self, make_socket: Callable[[], zmq.Socket[bytes]], name: str) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._make_socket = make_socket
        self._bound = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; returns when its socket is bound. Raises what making the socket raised."""
        self._thread.start()
        self._bound.wait()
        if self._error is not None:
            raise self._error

    def join(self) -> None:
        """Wait for the thread, which ends within one receive timeout of the stop word; then drop the eventfd."""
        self._thread.join()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def park(self) -> None:
        """Block until the wire thread has written something since the last look."""
        os.eventfd_read(self.fd)

    def _run(self) -> None:
        name_thread(self._thread.name)
        try:
            socket = self._make_socket()
        except BaseException as error:
            self._error = error
            return
        finally:
            self._bound.set()
        try:
            self._loop(socket)
        finally:  # whatever ended the loop: a consumer must never wait for a wire that is gone
            self._end()
            os.eventfd_write(self.fd, 1)
            socket.close()

    def _loop(self, socket: zmq.Socket[bytes]) -> None:
        raise AssertionError("subclasses loop")

    def _end(self) -> None:
        raise AssertionError("subclasses say that they are done")


class CompiledWire(_WireThread):
    """Wire thread as one compiled nogil loop over a ring of preallocated memory."""

    compiled = True

    def __init__(
        self,
        make_socket: Callable[[], zmq.Socket[bytes]],
        name: str,
        control: Int64Array,
        counters: WireCells,
        max_frame_bytes: int,
        ring: RingSize,
        receive: Any,
    ) -> None:
        """receive: what `compile_receive` returned."""
        super().__init__(make_socket, name)
        self._max_frame = max_frame_bytes
        self._slots = np.zeros((ring.slots, _SLOT), dtype=np.int64)
        self._data = np.empty(ring.nbytes, dtype=np.uint8)
        self._data.fill(0)  # touched now: a page fault while receiving would be counted as transit
        self._words = np.zeros(16, dtype=np.int64)
        self._words[_PARKED] = _NOBODY_PARKED
        self._control = control
        self._counters = counters
        self._slot_view = memoryview(self._slots).cast("B").cast("q")
        self._data_view = memoryview(self._data)
        self._word_view = memoryview(self._words).cast("B").cast("q")
        self._tail = 0
        self._mask = ring.slots - 1
        self._receive = receive

    def pop(self) -> Arrival | None:
        """The next message, or None."""
        tail = self._tail
        words = self._word_view
        if words[_HEAD] == tail:
            return None
        base = (tail & self._mask) * _SLOT
        slot = self._slot_view
        start, length = slot[base], slot[base + 1]
        position = start % len(self._data)
        arrival = Arrival(slot[base + 2], slot[base + 3] == 1, bytes(self._data_view[position : position + length]))
        self._tail = tail + 1
        words[_READ] = start + length
        words[_TAIL] = tail + 1
        return arrival

    def arm(self) -> None:
        """Declare the consumer parked for the next message. Its slot says so, and only that one: exact, no race."""
        self._word_view[_PARKED] = self._tail

    def ended(self) -> bool:
        """Whether the loop is over and nothing is left to pop."""
        return self._word_view[_DONE] == 1 and self._word_view[_HEAD] == self._tail

    def _loop(self, socket: zmq.Socket[bytes]) -> None:
        _call(
            self._receive, int(socket.underlying), self._slots, self._data, self._words, self._control,
            self._counters, self._max_frame, self.fd,
        )  # fmt: skip

    def _end(self) -> None:
        self._word_view[_DONE] = 1


class PlainWire(_WireThread):
    """Wire thread in Python: the oracle of the compiled one, and what runs where numba is absent."""

    compiled = False

    def __init__(
        self,
        make_socket: Callable[[], zmq.Socket[bytes]],
        name: str,
        control: Int64Array,
        counters: WireCells,
        max_frame_bytes: int,
    ) -> None:
        super().__init__(make_socket, name)
        self._control = control
        self._counters = counters
        self._max_frame = max_frame_bytes
        self._arrivals: deque[Arrival] = deque()
        self._parked = False
        self._done = False

    def pop(self) -> Arrival | None:
        """The next message, or None."""
        return self._arrivals.popleft() if self._arrivals else None

    def arm(self) -> None:
        """Declare the consumer parked for the next message, unless one has come since it looked."""
        self._parked = not self._arrivals

    def ended(self) -> bool:
        """Whether the loop is over and nothing is left to pop."""
        return self._done and not self._arrivals

    def _loop(self, socket: zmq.Socket[bytes]) -> None:
        control, counters = self._control, self._counters
        while control[counters.stop] == 0:
            try:
                frames = socket.recv_multipart()
            except zmq.Again:
                continue
            except zmq.ZMQError as error:
                control[counters.errno] = error.errno or -1
                break
            t_wire = monotonic_ns()
            if len(frames) > 1 or len(frames[0]) > self._max_frame:
                control[counters.bad_frames] += 1
                continue
            parked, self._parked = self._parked, False
            self._arrivals.append(Arrival(t_wire, parked, frames[0]))
            control[counters.messages] += 1
            os.eventfd_write(self.fd, 1)

    def _end(self) -> None:
        self._done = True


def make_wire(
    kind: str,
    make_socket: Callable[[], zmq.Socket[bytes]],
    name: str,
    control: Int64Array,
    counters: WireCells,
    max_frame_bytes: int,
    expected_frames: int,
) -> Wire:
    """A wire of `kind` "compiled" or "python". Raises NogilUnavailableError for a compiled one that cannot be built."""
    if kind == "compiled":
        ring = ring_for(expected_frames, max_frame_bytes)
        return CompiledWire(make_socket, name, control, counters, max_frame_bytes, ring, compile_receive())
    return PlainWire(make_socket, name, control, counters, max_frame_bytes)


def compile_receive() -> Any:
    """The receive loop. Raises NogilUnavailableError."""
    return compile_loop("receive", _build_receive, 11, Path(__file__).parent)


def _call(
    receive: Any,
    socket: int,
    slots: Int64Array,
    data: npt.NDArray[np.uint8],
    words: Int64Array,
    control: Int64Array,
    counters: WireCells,
    max_frame: int,
    eventfd: int,
) -> None:
    scratch = np.array([0, 0, 1, 0, 8, 0, FULL_RING_SLEEP_NS], dtype=np.int64)
    owned = np.array(counters, dtype=np.int64)
    receive(
        socket, at(slots), len(slots), at(data), len(data), at(words), at(control), at(owned), max_frame, eventfd,
        at(scratch),
    )  # fmt: skip


def _build_receive() -> Any:
    from harness.common.nogil_numba import (
        cells,
        clock_gettime,
        clock_nanosleep,
        fence,
        rows,
        write,
        zmq_errno,
        zmq_getsockopt,
        zmq_recv,
    )

    # scratch: [0:2] timespec, [2] the 1 for the eventfd, [3] int of RCVMORE, [4] its size, [5:7] the sleep
    def receive(  # type: ignore[no-untyped-def]
        socket, slots_at, num_slots, data, capacity, words_at, control_at, counters_at, max_frame, eventfd, here
    ):  # fmt: skip
        slots, words, control = rows(slots_at, _SLOT), cells(words_at), cells(control_at)
        counters, scratch = cells(counters_at), cells(here)
        head = 0
        position = 0
        mask = num_slots - 1
        while control[counters[4]] == 0:
            offset = position % capacity
            if capacity - offset < max_frame:
                position += capacity - offset
                offset = 0
            if head - words[_TAIL] > mask or position + max_frame - words[_READ] > capacity:
                control[counters[1]] += 1
                clock_nanosleep(1, 0, here + 40, 0)
                continue
            length = zmq_recv(socket, data + offset, max_frame, 0)
            clock_gettime(1, here)
            if length < 0:
                error = zmq_errno()
                if error == 11 or error == 4:
                    continue
                control[counters[3]] = error
                break
            parts = 1
            scratch[4] = 4
            scratch[3] = 0
            zmq_getsockopt(socket, 13, here + 24, here + 32)
            while scratch[3] != 0:
                parts += 1
                zmq_recv(socket, data + offset, max_frame, 0)
                scratch[3] = 0
                zmq_getsockopt(socket, 13, here + 24, here + 32)
            if parts > 1 or length > max_frame:
                control[counters[2]] += 1
                continue
            slot = head & mask
            slots[slot, 0] = position
            slots[slot, 1] = length
            slots[slot, 2] = scratch[0] * 1_000_000_000 + scratch[1]
            slots[slot, 3] = 1 if words[_PARKED] == head else 0
            position += length
            head += 1
            fence()
            words[_HEAD] = head
            control[counters[0]] += 1
            fence()
            write(eventfd, here + 16, 8)

    return receive
