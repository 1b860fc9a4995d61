"""The receiver: what a result message does to its rows, once, and what is counted instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import ScriptedWire, make_collector

from harness.common.collector import Collector
from harness.common.protocol import TEXT, Complaint, ResultEvent, Sampling, pack_complaint, pack_request, pack_results
from harness.common.stamps import FinishReason, Status
from harness.common.wire import Arrival
from harness.session.receiver import MAX_COMPLAINTS_KEPT, Receiver

NONE, LENGTH = FinishReason.NONE, FinishReason.LENGTH


class Received:
    """A receiver that has consumed `frames`, frame i having arrived at 100 + i."""

    def __init__(self, folder: Path, *frames: bytes | list[ResultEvent]) -> None:
        packed = [frame if isinstance(frame, bytes) else pack_results(frame) for frame in frames]
        self.collector: Collector = make_collector(folder)
        wire = ScriptedWire(Arrival(100 + i, False, frame) for i, frame in enumerate(packed))
        self.receiver = Receiver(wire, self.collector)
        self.consumed = self.receiver.consume()

    def row(self, row: int) -> tuple[int, int, int, int]:
        names = ("t_delivered", "t_finished", "receiver_status", "received_tokens")
        delivered, finished, status, tokens = (int(self.collector.column(name)[row]) for name in names)
        return delivered, finished, status, tokens

    def word(self, name: str) -> int:
        return self.collector.word(name)


def first(row: int) -> ResultEvent:
    return ResultEvent(row, 1, Status.NONE, NONE)


def end(row: int, tokens: int, status: Status = Status.COMPLETED) -> ResultEvent:
    return ResultEvent(row, tokens, status, LENGTH if status == Status.COMPLETED else NONE)


def test_first_and_last_token_get_the_times_of_their_messages(tmp_path: Path) -> None:
    received = Received(tmp_path, [first(3)], [first(4)], [end(3, 9)])
    assert received.row(3) == (100, 102, Status.COMPLETED, 9)
    assert received.row(4) == (101, 0, Status.NONE, 1)
    assert received.receiver.terminal == received.word("finished") == 1
    assert (received.word("delivered"), received.word("results")) == (2, 3)


def test_delivery_is_stamped_once(tmp_path: Path) -> None:
    received = Received(tmp_path, [first(3)], [first(3)], [end(3, 2)])
    assert received.row(3)[0] == 100
    assert received.word("delivered") == 1


def test_one_message_for_both_tokens_stamps_both(tmp_path: Path) -> None:
    assert Received(tmp_path, [end(3, 1)]).row(3) == (100, 100, Status.COMPLETED, 1)


def test_all_events_of_a_message_share_its_time(tmp_path: Path) -> None:
    received = Received(tmp_path, [first(3), end(5, 1), first(4)])
    assert [received.row(row)[0] for row in (3, 4, 5)] == [100, 100, 100]
    assert received.consumed == received.receiver.messages == 1


@pytest.mark.parametrize("status", [Status.REJECTED, Status.FAILED, Status.ABORTED])
def test_a_row_that_did_not_complete_has_no_finish_time(tmp_path: Path, status: Status) -> None:
    received = Received(tmp_path, [end(3, 0, status)], [first(4)], [end(4, 1, status)])
    assert received.row(3) == (0, 0, status, 0)
    assert received.row(4) == (101, 0, status, 1)
    assert received.receiver.terminal == 2


def test_a_completed_row_without_tokens_has_neither_time(tmp_path: Path) -> None:
    received = Received(tmp_path, [ResultEvent(3, 0, Status.COMPLETED, FinishReason.EMPTY)])
    assert received.row(3) == (0, 0, Status.COMPLETED, 0)


@pytest.mark.parametrize("late", [end(3, 5), first(3), end(3, 2, Status.FAILED)])
def test_what_comes_after_the_end_is_counted_and_changes_nothing(tmp_path: Path, late: ResultEvent) -> None:
    received = Received(tmp_path, [end(3, 2)], [late])
    assert received.row(3) == (100, 100, Status.COMPLETED, 2)
    assert (received.word("repeated_results"), received.receiver.terminal) == (1, 1)


def test_a_complaint_is_kept_and_touches_no_row(tmp_path: Path) -> None:
    received = Received(tmp_path, pack_complaint(3, "seen before"), [first(4)])
    assert received.receiver.complaints == [Complaint(3, "seen before")]
    assert received.row(3) == (0, 0, 0, 0)
    assert (received.word("complaints"), received.word("delivered")) == (1, 1)


def test_complaints_without_end_are_all_counted_but_not_all_kept(tmp_path: Path) -> None:
    received = Received(tmp_path, *[pack_complaint(3, "again")] * (MAX_COMPLAINTS_KEPT + 5))
    assert len(received.receiver.complaints) == MAX_COMPLAINTS_KEPT
    assert received.word("complaints") == MAX_COMPLAINTS_KEPT + 5


@pytest.mark.parametrize(
    "junk",
    [
        b"", b"junk", pack_request(TEXT, 1, 1, Sampling(), b"x"), pack_results([first(8)]),
        pack_results([ResultEvent(1, 2**63, 0, 0)]), pack_results([ResultEvent(1, 1, 99, 0)]),
    ],
    ids=["empty", "no msgpack", "a request", "no such row", "too many tokens", "no such status"],
)  # fmt: skip
def test_junk_is_counted_and_harms_nobody(tmp_path: Path, junk: bytes) -> None:
    received = Received(tmp_path, [first(3)], junk, [end(3, 2)])
    assert received.row(3) == (100, 102, Status.COMPLETED, 2)
    assert (received.word("result_bad_frames"), received.consumed) == (1, 3)
    assert received.row(1) == (0, 0, 0, 0)


def test_nothing_there_is_nothing_consumed(tmp_path: Path) -> None:
    received = Received(tmp_path)
    assert received.consumed == received.receiver.consume() == 0
