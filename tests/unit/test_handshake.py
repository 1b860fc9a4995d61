"""The clock handshake: every stamp of a child must lie between our send and our receive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from fakes import FakeClock

from harness.common.control import PING, PONG
from harness.common.errors import ClockError
from harness.session.handshake import PINGS, check_clock


@dataclass
class FakeChild:
    name: str = "engine"


@dataclass
class FakeEvents:
    """A child whose clock is off by `offset` ns from ping number `wrong_from` on."""

    clock: FakeClock
    offset: int = 0
    wrong_from: int = 0
    sent: list[str] = field(default_factory=list)

    def send(self, child: FakeChild, kind: str, **body: Any) -> None:
        self.sent.append(kind)

    def expect(self, child: FakeChild, kind: str, timeout_s: float) -> dict[str, Any]:
        assert kind == PONG
        wrong = len(self.sent) > self.wrong_from
        return {"stamp": self.clock.now + (self.offset if wrong else 0)}


def check(events: FakeEvents) -> dict[str, Any]:
    return check_clock(FakeChild(), events, events.clock)  # type: ignore[arg-type]


def test_one_clock_passes_and_bounds_the_offset_by_half_the_shortest_round_trip() -> None:
    events = FakeEvents(FakeClock(1_000, tick=100))
    assert check(events) == {"pings": PINGS, "offset_bound_ns": 50}
    assert events.sent == [PING] * PINGS


@pytest.mark.parametrize("offset", [0, 100])
def test_a_stamp_at_either_bound_passes(offset: int) -> None:
    assert check(FakeEvents(FakeClock(1_000, tick=100), offset))["pings"] == PINGS


@pytest.mark.parametrize("offset", [-1, 101, -(10**18), 10**18])
def test_a_stamp_outside_is_an_error_that_names_the_child(offset: int) -> None:
    with pytest.raises(ClockError, match="engine's clock"):
        check(FakeEvents(FakeClock(1_000, tick=100), offset))


def test_every_ping_is_checked() -> None:
    events = FakeEvents(FakeClock(1_000, tick=100), offset=500, wrong_from=PINGS - 1)
    with pytest.raises(ClockError):
        check(events)
    assert len(events.sent) == PINGS


def test_a_clock_without_resolution_has_bound_zero() -> None:
    assert check(FakeEvents(FakeClock(1_000)))["offset_bound_ns"] == 0
