"""The inbox that the step loop fills itself: the same items and stamps as with an ingress thread, and no thread."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from fakes import FakeClock, ScriptedWire, make_collector

from engine_proc.backends.base import Capacity, EngineRequest
from engine_proc.intake.inbox import Inbox
from engine_proc.intake.ingress import Ingress
from engine_proc.intake.polled_inbox import PolledInbox
from engine_proc.tokenize import UnlockedEncoder, load_tokenizer
from harness.common.collector import Collector
from harness.common.errors import RunError
from harness.common.protocol import TOKENS, Sampling, pack_request
from harness.common.wire import Arrival

pytestmark = pytest.mark.timeout(20)


class ReadyWire(ScriptedWire):
    """A scripted wire with a real descriptor, ready as long as `ring` was called since the last look."""

    def __init__(self, arrivals: list[Arrival | None]) -> None:
        super().__init__(arrivals)
        self.fd = os.eventfd(0, os.EFD_CLOEXEC)

    def ring(self) -> None:
        os.eventfd_write(self.fd, 1)

    def park(self) -> None:
        super().park()
        os.eventfd_read(self.fd)


def request(row: int) -> Arrival:
    payload = np.array([5], dtype="<i4").tobytes()
    return Arrival(100 + row, row == 1, pack_request(TOKENS, row, 3, Sampling(), payload))


def polled(tmp_path: Path, arrivals: list[Arrival | None]) -> tuple[PolledInbox, ReadyWire, Collector]:
    wire, inbox, collector = ReadyWire(arrivals), PolledInbox(), make_collector(tmp_path)
    ingress = Ingress(wire, collector, inbox, _NoText(), Capacity(10, 100), 0, FakeClock(1_000), lambda error: None)
    inbox.fill_from(ingress, wire)
    return inbox, wire, collector


class _NoText:
    def encode(self, text: str) -> list[int]:
        raise AssertionError("these requests have token ids")


def rows(items: list[object]) -> list[int]:
    return [item.row for item in items if isinstance(item, EngineRequest)]


def test_everything_that_has_arrived_is_taken_with_its_stamps_and_without_a_thread(tmp_path: Path) -> None:
    threads = threading.active_count()
    inbox, wire, collector = polled(tmp_path, [request(1), request(0), None, request(2), None, None])
    assert rows(inbox.take_all()) == [1, 0]
    assert rows(inbox.take_all()) == [2]
    assert threading.active_count() == threads
    assert collector.column("t_wire")[:3].tolist() == [100, 101, 102]
    assert collector.column("t_ingress")[:3].tolist() == [1_000] * 3
    assert collector.column("ingress_parked")[:3].tolist() == [0, 1, 0]
    os.close(wire.fd)


def test_an_idle_loop_parks_on_the_wire_and_takes_what_wakes_it(tmp_path: Path) -> None:
    inbox, wire, _ = polled(tmp_path, [None, request(1), None, None])
    wire.ring()
    item = inbox.wait(10)
    assert isinstance(item, EngineRequest) and item.row == 1
    assert wire.log == ["arm", "park"]
    os.close(wire.fd)


def test_a_wait_for_what_is_there_already_does_not_park(tmp_path: Path) -> None:
    inbox, wire, _ = polled(tmp_path, [request(1), None, None])
    assert inbox.wait(10) is not None and wire.log == []
    os.close(wire.fd)


def test_an_idle_loop_gets_back_to_the_stop_word_in_time(tmp_path: Path) -> None:
    inbox, wire, _ = polled(tmp_path, [None, None, None])
    assert inbox.wait(0.001) is None and wire.log == ["arm"]
    os.close(wire.fd)


def test_a_wire_that_ends_in_the_middle_of_a_session_ends_the_loop(tmp_path: Path) -> None:
    inbox, wire, collector = polled(tmp_path, [])
    with pytest.raises(RunError, match="wire thread ended"):
        inbox.take_all()
    collector.set_word("stop", 1)
    assert inbox.take_all() == []
    os.close(wire.fd)


def test_it_is_an_inbox_for_everyone_else() -> None:
    assert issubclass(PolledInbox, Inbox)


@pytest.mark.parametrize("text", ["", "Hello world", "a" * 500, "naïve \U0001f600 <|endoftext|>", "\udcff lone"])
def test_both_calls_of_the_tokenizer_give_the_same_ids(text: str) -> None:
    tokenizer = load_tokenizer("builtin:gpt2")
    assert UnlockedEncoder(tokenizer).encode(text) == tokenizer.encode(text)
