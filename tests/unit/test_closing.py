"""The end of a session gives every open row one status and a reason, and no other row any."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import make_collector

from harness.common.collector import Collector
from harness.common.stamps import EndReason, Reason, SendResult, Status
from harness.session.closing import close_rows

OPEN = {
    EndReason.DONE: (Status.LOST, Reason.NO_WORD),
    EndReason.DRAIN_TIMEOUT: (Status.UNFINISHED, Reason.DRAIN_TIMEOUT),
    EndReason.INTERRUPTED: (Status.UNFINISHED, Reason.INTERRUPTED),
    EndReason.ENGINE_DIED: (Status.FAILED, Reason.ENGINE_DIED),
    EndReason.SUBMITTER_DIED: (Status.FAILED, Reason.SUBMITTER_DIED),
    EndReason.STALLED: (Status.FAILED, Reason.STALLED),
    EndReason.FAILED: (Status.FAILED, Reason.RUN_FAILED),
    EndReason.PARENT_DIED: (Status.UNFINISHED, Reason.PARENT_DIED),
}


def closed(collector: Collector, end: EndReason, first_row: int = 0, rows: int = 8) -> list[tuple[int, int]]:
    close_rows(collector, first_row, rows, end)
    return list(
        zip(collector.column("close_status").tolist(), collector.column("close_reason").tolist(), strict=True)
    )


@pytest.fixture
def collector(tmp_path: Path) -> Collector:
    """Row 0 is sent and has had no word."""
    made = make_collector(tmp_path)
    made.column("t_send")[0] = 5
    made.column("send_result")[0] = SendResult.SENT
    return made


@pytest.mark.parametrize("end", list(EndReason))
def test_a_row_without_word_gets_what_the_end_of_the_session_gives(collector: Collector, end: EndReason) -> None:
    assert closed(collector, end)[0] == OPEN[end]


@pytest.mark.parametrize("end", list(EndReason))
def test_a_row_that_was_never_sent_is_unfinished(collector: Collector, end: EndReason) -> None:
    assert closed(collector, end)[1:] == [(Status.UNFINISHED, Reason.NOT_SENT)] * 7


@pytest.mark.parametrize("end", list(EndReason))
def test_a_row_that_the_receiver_heard_of_is_left_alone(collector: Collector, end: EndReason) -> None:
    collector.column("receiver_status")[0] = Status.COMPLETED
    assert closed(collector, end)[0] == (Status.NONE, Reason.NONE)


@pytest.mark.parametrize("result", [SendResult.REFUSED, SendResult.ERROR])
def test_a_row_whose_send_failed_is_explained_by_its_send(collector: Collector, result: SendResult) -> None:
    collector.column("send_result")[0] = result
    assert closed(collector, EndReason.DONE)[0] == (Status.NONE, Reason.NONE)


def test_a_row_whose_send_call_never_returned_may_be_under_way(collector: Collector) -> None:
    """The submitter was killed inside the call: whether the message left is not known, so it is not "never sent"."""
    collector.column("send_result")[0] = SendResult.NOT_SENT
    assert closed(collector, EndReason.SUBMITTER_DIED)[0] == (Status.FAILED, Reason.SUBMITTER_DIED)


def test_a_row_that_a_stalled_engine_had_ended_in_silence_is_lost(collector: Collector) -> None:
    collector.column("engine_status")[0] = Status.COMPLETED
    assert closed(collector, EndReason.STALLED)[0] == (Status.LOST, Reason.NO_WORD)


@pytest.mark.parametrize("end", [EndReason.DRAIN_TIMEOUT, EndReason.INTERRUPTED])
def test_a_row_of_the_step_that_was_running_at_the_stop_is_not_lost(collector: Collector, end: EndReason) -> None:
    """It once was: every run that ended by its drain timeout failed with one batch of "lost" rows."""
    collector.column("engine_status")[0] = Status.COMPLETED
    assert closed(collector, end)[0] == OPEN[end]


def test_a_result_that_died_with_the_engine_is_the_engine_s(collector: Collector) -> None:
    collector.column("engine_status")[0] = Status.COMPLETED
    assert closed(collector, EndReason.ENGINE_DIED)[0] == (Status.FAILED, Reason.ENGINE_DIED)


def test_rows_of_other_runs_are_left_alone(collector: Collector) -> None:
    assert closed(collector, EndReason.DONE, first_row=2, rows=3) == [
        (0, 0), (0, 0), *[(Status.UNFINISHED, Reason.NOT_SENT)] * 3, (0, 0), (0, 0), (0, 0),
    ]  # fmt: skip
