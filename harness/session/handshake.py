"""The clock handshake: proof, not belief, that a child reads the same monotonic clock as the harness."""

from __future__ import annotations

from typing import Any

from harness.common import control as words
from harness.common.clock import Clock
from harness.common.errors import ClockError
from harness.session.children import Child
from harness.session.events import Events

PINGS = 8


def check_clock(child: Child, events: Events, clock: Clock) -> dict[str, Any]:
    """Ping the child: each of its stamps must lie between our send and our receive.

    Returns the bound on the offset in ns (half the shortest round trip). Raises ClockError.
    """
    shortest = None
    for _ in range(PINGS):
        sent = clock()
        events.send(child, words.PING)
        stamp = events.expect(child, words.PONG, timeout_s=30)["stamp"]
        received = clock()
        if not sent <= stamp <= received:
            raise ClockError(
                f"the {child.name}'s clock does not fit ours: {sent} <= {stamp} <= {received} does not hold"
            )
        shortest = min(received - sent, shortest if shortest is not None else received - sent)
    return {"pings": PINGS, "offset_bound_ns": (shortest or 0) // 2}
