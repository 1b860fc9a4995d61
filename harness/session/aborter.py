"""The client that gives up: sends an abort for each request that is not finished so long after it was sent.

It sits in the harness, with a connection of its own to the engine, and reads the submitter's stamps: the pacer knows
nothing of it. Messages of two connections have no order, so an abort may arrive before its request; the engine holds it
for that case. Every request has the same patience; where they leave in order, only the oldest open one is looked at,
where they wait for the ends of others, all of them.
"""

from __future__ import annotations

import numpy as np
import zmq

from harness.common.collector import CONTROL_WORDS, Collector, Int64Array
from harness.common.protocol import pack_abort
from harness.common.stamps import SendResult, Status

#: When nothing is left to abort: how long until it may be asked again.
IDLE_NS = 1_000_000_000


class Aborter:
    """Owns the socket it is given. owned by: the harness's main thread"""

    def __init__(self, socket: zmq.Socket[bytes], collector: Collector, after_ns: int) -> None:
        self._socket = socket
        self._control = collector.control
        self._sent = collector.column("t_send")
        self._send_result = collector.column("send_result")
        self._status = collector.column("receiver_status")
        self._after_ns = after_ns
        self._row = self._end = self._first_row = 0
        self._in_order = True
        self._earliest: Int64Array = np.zeros(0, dtype=np.int64)
        self._open: Int64Array = np.zeros(0, dtype=np.int64)  # rows that may yet be given up, where order says nothing

    def begin(self, first_row: int, offsets_ns: Int64Array, t0_ns: int, *, in_order: bool = True) -> None:
        """A run begins whose request i is row first_row + i and leaves no earlier than t0_ns + offsets_ns[i].

        in_order: no request leaves before an earlier one; else the offsets say nothing.
        """
        self._in_order = in_order
        self._open = np.arange(first_row, first_row + len(offsets_ns))
        self._row = self._first_row = first_row
        self._end = first_row + len(offsets_ns)
        self._earliest = offsets_ns + (t0_ns + self._after_ns)

    def act(self, now: int) -> int:
        """Abort what is due; returns in how many ns it wants to be called again."""
        if not self._in_order:
            return self._act_on_all(now)
        while self._row < self._end:
            row = self._row
            result = int(self._send_result[row])
            if result == SendResult.NOT_SENT:  # it cannot be due before it has been sent and waited for
                return max(int(self._earliest[row - self._first_row]) - now, self._after_ns)
            if result == SendResult.SENT:
                left = int(self._sent[row]) + self._after_ns - now
                if left > 0:
                    return left
                if self._status[row] == Status.NONE:
                    self._give_up(row)
            self._row = row + 1
        return IDLE_NS

    def _act_on_all(self, now: int) -> int:
        rows = self._open
        result, status = self._send_result[rows], self._status[rows]
        settled = (result > SendResult.SENT) | (status != Status.NONE)
        left = np.where(result == SendResult.SENT, self._sent[rows] + self._after_ns - now, self._after_ns)
        for row in rows[~settled & (left <= 0)].tolist():
            self._give_up(row)
        waiting = ~settled & (left > 0)
        self._open = rows[waiting]
        return int(left[waiting].min(initial=min(self._after_ns, IDLE_NS)))

    def close(self) -> None:
        self._socket.close(linger=0)

    def _give_up(self, row: int) -> None:
        try:
            self._socket.send(pack_abort(row), zmq.DONTWAIT)
        except zmq.Again:  # the engine is gone, which others find out
            return
        self._control[CONTROL_WORDS["aborts_sent"]] += 1
