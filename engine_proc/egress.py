"""Egress: one result message a step, pushed without blocking by the step loop's own thread."""

from __future__ import annotations

import os

import zmq

from harness.common.protocol import ResultEvent, pack_complaint, pack_results

#: Most events in one message, so that a message's size has a bound: header 16 + 256 events of at most 37 bytes.
MAX_EVENTS = 256


class Egress:
    """Owned by: step loop. The socket has no high-water mark, so a slow receiver costs memory, never a step's time."""

    def __init__(self, socket: zmq.Socket[bytes], *, one_core: bool = False) -> None:
        """one_core: libzmq's I/O thread has only the core on which the step loop computes."""
        self._socket = socket
        self._one_core = one_core
        self.unsent = 0

    def results(self, events: list[ResultEvent]) -> int:
        """Push the events; returns how many messages that took."""
        messages = 0
        for start in range(0, len(events), MAX_EVENTS):
            messages += self._push(pack_results(events[start : start + MAX_EVENTS]))
        return messages

    def complaint(self, row: int, text: str) -> int:
        """Push a complaint about a message without a row of its own; returns the number of messages."""
        return self._push(pack_complaint(row, text))

    def _push(self, message: bytes) -> int:
        try:
            self._socket.send(message, zmq.DONTWAIT)
        except zmq.Again:  # the harness is gone; the death pipe ends this process
            self.unsent += 1
            return 0
        if self._one_core:
            # Else the I/O thread waits until the scheduler takes the core from the next step, up to 4 ms (measured).
            os.sched_yield()
        return 1
