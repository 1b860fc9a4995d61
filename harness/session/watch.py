"""When a run is over: pure decisions from counters and a clock, so that each rule can be tested by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from harness.common.clock import NS_PER_S
from harness.common.stamps import EndReason

#: Everything settled and silent for this long while rows have had no word: they are lost.
SETTLE_NS = 2 * NS_PER_S
MIN_STALL_S = 60.0


class Counters(NamedTuple):
    """What the processes have counted so far, over the whole session."""

    sent: int
    handled: int  # sent, refused or in error
    wire_messages: int
    ingress: int
    turned_away: int  # bad frames and duplicates at ingress
    terminal: int  # rows that the engine ended
    egress_messages: int
    steps: int
    receiver_messages: int  # taken by the receiver
    received_terminal: int  # rows whose end the receiver has seen


@dataclass(slots=True)
class Watch:
    """Watches one run. `base` are the counters at its start; times in ns of CLOCK_MONOTONIC."""

    base: Counters
    stall_ns: int
    longest_gap_ns: int  # longest planned pause between two sends
    drain_ns: int | None
    now: int
    reacts: bool = False  # ends of requests decide when others leave: the submitter may rightly wait for the engine
    all_due_at: int = 0  # by then every request of a capped plan is due, whatever waits for a slot; 0: not known
    sent_at: int = 0  # when the submitter said that it was through; 0: it is still pacing
    _engine_seen: tuple[int, ...] = ()
    _engine_since: int = 0
    _handled_seen: int = -1
    _handled_since: int = 0

    def __post_init__(self) -> None:
        self._engine_since = self._handled_since = self.now

    def decide(self, counters: Counters, now: int) -> EndReason | None:
        """DONE, DRAIN_TIMEOUT, STALLED, or None while the run goes on."""
        outstanding = (counters.sent - self.base.sent) - (counters.received_terminal - self.base.received_terminal)
        if self.sent_at and outstanding <= 0:
            return EndReason.DONE
        # Arrivals are no progress: a hung engine still takes messages in.
        signature = (counters.steps, counters.terminal, counters.receiver_messages)
        if signature != self._engine_seen or outstanding <= 0:
            self._engine_seen, self._engine_since = signature, now
        if counters.handled != self._handled_seen or (self.reacts and outstanding > 0):
            self._handled_seen, self._handled_since = counters.handled, now
        if self.sent_at and _settled(counters) and now - self._engine_since >= SETTLE_NS:
            return EndReason.DONE
        draining_since = self.sent_at or self.all_due_at
        if self.drain_ns is not None and draining_since and now - draining_since >= self.drain_ns:
            return EndReason.DRAIN_TIMEOUT
        if outstanding > 0 and now - self._engine_since >= self.stall_ns:
            return EndReason.STALLED
        if self.reacts and not self.sent_at and outstanding > 0 and _settled(counters):
            # Rows without a word, and nothing under way that could bring one: what waits for their ends waits for good.
            waits_ns = SETTLE_NS + self.longest_gap_ns
            return EndReason.STALLED if now - self._engine_since >= waits_ns else None
        if not self.sent_at and now - self._handled_since >= self.stall_ns + self.longest_gap_ns:
            return EndReason.STALLED
        return None


def _settled(counters: Counters) -> bool:
    """Every message that was sent was taken, every row taken was ended, every result was received."""
    return (
        counters.wire_messages >= counters.sent
        and counters.ingress + counters.turned_away >= counters.wire_messages
        and counters.terminal >= counters.ingress
        and counters.receiver_messages >= counters.egress_messages
    )


def stall_timeout_ns(asked_s: float | None, longest_warmup_step_ns: int) -> int:
    """What was asked for, else max(60 s, 10 x the longest step of the warm-up)."""
    if asked_s is not None:
        return int(asked_s * NS_PER_S)
    return max(int(MIN_STALL_S * NS_PER_S), 10 * longest_warmup_step_ns)
