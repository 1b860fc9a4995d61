"""From the collector to records: final status, errors, token times, outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_session import T0, TOKEN_GAP, MadeSession, make_session

from harness.common.collector import RUN_T0_CELL
from harness.common.errors import CollectorError
from harness.common.stamps import EndReason, Reason, SendResult, Status, reason_text
from harness.measures.records import RunRecord, read_outputs, read_session


@pytest.fixture
def made(tmp_path: Path) -> MadeSession:
    return make_session(tmp_path)


def record_of(made: MadeSession, run: int = 0) -> RunRecord:
    return read_session(made.collector, made.plan).runs[run]


def silence(made: MadeSession, row: int) -> None:
    """Take back every word of the row's end."""
    made.clear(row, "receiver_status", "close_status", "close_reason", "t_delivered", "t_finished", "finish_reason")


def unsend(made: MadeSession, row: int) -> None:
    silence(made, row)
    for block in (made.collector.submitter, made.collector.engine, made.collector.receiver):
        block[row] = 0


def test_a_run_is_its_rows_of_the_collector(tmp_path: Path) -> None:
    made = make_session(tmp_path, n=4, warmups=(True, False))
    first, second = read_session(made.collector, made.plan).runs
    assert (first.index, first.warmup, first.first_row, first.rows) == (0, True, 0, 4)
    assert (second.index, second.warmup, second.first_row, second.t0_ns) == (1, False, 4, T0 + 10**10)
    assert second.columns["t_intended"].tolist() == made.collector.column("t_intended")[4:8].tolist()


def test_a_warmup_run_may_hold_only_the_first_rows_of_the_plan(made: MadeSession) -> None:
    made.collector.meta["runs"] = [{"index": 0, "warmup": True, "first_row": 0, "rows": 3}]
    assert record_of(made).offsets_ns.tolist() == made.plan.offsets_ns[:3].tolist()


def test_a_run_without_t0_is_left_out_and_named(tmp_path: Path) -> None:
    made = make_session(tmp_path, warmups=(True, False))
    made.collector.control[RUN_T0_CELL + 1] = 0
    session = read_session(made.collector, made.plan)
    assert [run.index for run in session.runs] == [0]
    assert session.not_started == (1,)


def test_records_survive_the_collector(made: MadeSession) -> None:
    record = record_of(made)
    made.collector.submitter[:] = 0
    assert record.sent.all()


def test_no_array_of_a_record_is_the_collectors_whether_it_holds_zeros_or_not(made: MadeSession) -> None:
    record = record_of(made)
    before = {name: column.copy() for name, column in record.columns.items()}
    assert not before["preemptions"].any() and before["t_send"].all()
    for block in (made.collector.submitter, made.collector.engine, made.collector.receiver):
        block[:] = 7
    assert all(np.array_equal(record.columns[name], column) for name, column in before.items())
    assert not any(np.shares_memory(record.columns[name], made.collector.column(name)) for name in before)


def test_every_completed_row_is_completed_without_error(made: MadeSession) -> None:
    record = record_of(made)
    assert set(record.status.tolist()) == {Status.COMPLETED}
    assert record.error_text(0) == ""
    assert record.finish_word(0) == "length"


def test_a_refused_send_is_refused_with_its_errno(made: MadeSession) -> None:
    unsend(made, 2)
    made.set("send_result", 2, SendResult.REFUSED)
    made.set("send_errno", 2, 11)
    record = record_of(made)
    assert record.status[2] == Status.REFUSED
    assert record.error_text(2) == reason_text(Reason.SEND_WOULD_BLOCK, 11, 0)


def test_a_failed_send_is_failed_with_its_errno(made: MadeSession) -> None:
    made.set("send_result", 2, SendResult.ERROR)
    made.set("send_errno", 2, 32)
    record = record_of(made)
    assert record.status[2] == Status.FAILED
    assert record.error_text(2) == "the send call failed (errno 32)"


def test_what_the_receiver_heard_counts_before_what_the_harness_wrote(made: MadeSession) -> None:
    made.set("receiver_status", 2, Status.REJECTED)
    made.set("close_status", 2, Status.LOST)
    for name, value in (("error_code", Reason.TOO_LONG), ("error_a", 1030), ("error_b", 1024)):
        made.set(name, 2, value)
    record = record_of(made)
    assert record.status[2] == Status.REJECTED
    assert record.error_text(2) == "1030 prompt tokens and the new tokens exceed the context of 1024"


def test_what_the_harness_wrote_decides_for_a_silent_row(made: MadeSession) -> None:
    silence(made, 2)
    made.set("close_status", 2, Status.FAILED)
    made.set("close_reason", 2, Reason.ENGINE_DIED)
    record = record_of(made)
    assert record.status[2] == Status.FAILED
    assert record.error_text(2) == "the engine process died"


def test_a_silent_row_of_a_closed_session_is_lost(made: MadeSession) -> None:
    silence(made, 2)
    record = record_of(made)
    assert (record.status[2], record.error_code[2]) == (Status.LOST, Reason.NO_WORD)


def test_a_dead_harness_leaves_sent_rows_unfinished(made: MadeSession) -> None:
    made.collector.set_word("end_reason", EndReason.PARENT_DIED)
    silence(made, 2)
    record = record_of(made)
    assert (record.status[2], record.error_code[2]) == (Status.UNFINISHED, Reason.PARENT_DIED)
    assert record.status[1] == Status.COMPLETED


def test_a_dead_harness_leaves_unsent_rows_not_sent(made: MadeSession) -> None:
    made.collector.set_word("end_reason", EndReason.PARENT_DIED)
    unsend(made, 7)
    record = record_of(made)
    assert (record.status[7], record.error_code[7]) == (Status.UNFINISHED, Reason.NOT_SENT)


def test_a_message_that_left_in_the_act_of_dying_counts_as_under_way(made: MadeSession) -> None:
    made.collector.set_word("end_reason", EndReason.PARENT_DIED)
    unsend(made, 7)
    made.set("t_wire", 7, T0 + 10**8)
    assert record_of(made).error_code[7] == Reason.PARENT_DIED


def test_token_times_are_those_of_the_step_that_made_them(made: MadeSession) -> None:
    assert record_of(made).itl_ns.tolist() == [TOKEN_GAP] * 16


def test_a_request_with_a_token_that_was_not_logged_has_no_itl(made: MadeSession) -> None:
    made.set("output_tokens", 0, 4)
    assert len(record_of(made).itl_ns) == 14


def test_a_token_whose_step_was_lost_has_no_time(made: MadeSession) -> None:
    made.collector.set_word("steps", made.collector.word("steps") - 1)
    assert len(record_of(made).itl_ns) == 14


def test_requests_that_did_not_complete_have_no_itl(made: MadeSession) -> None:
    made.set("receiver_status", 0, Status.FAILED)
    assert len(record_of(made).itl_ns) == 14


def test_itl_of_a_run_holds_no_token_of_another(tmp_path: Path) -> None:
    made = make_session(tmp_path, n=3, warmups=(True, False))
    assert record_of(made, 1).itl_ns.tolist() == [TOKEN_GAP] * 6


def test_outputs_are_the_token_ids_of_a_row_in_order(made: MadeSession) -> None:
    outputs = read_outputs(made.collector)
    assert sorted(outputs) == list(range(8))
    assert outputs[5].tolist() == [100, 101, 102]


def test_an_empty_token_log_gives_no_outputs(made: MadeSession) -> None:
    made.collector.set_word("tokens", 0)
    assert read_outputs(made.collector) == {}
    assert len(record_of(made).itl_ns) == 0


def test_counters_past_the_tables_ends_are_cut_to_them(made: MadeSession) -> None:
    made.collector.set_word("steps", 10**6)
    made.collector.set_word("tokens", 10**6)
    assert record_of(made).rows == 8


def test_an_end_that_does_not_exist_is_a_damaged_collector(made: MadeSession) -> None:
    made.collector.set_word("end_reason", 99)
    with pytest.raises(CollectorError, match="reason 99"):
        read_session(made.collector, made.plan)


def test_steps_of_a_run_are_its_own(tmp_path: Path) -> None:
    made = make_session(tmp_path, n=3, warmups=(True, False))
    assert set(record_of(made, 1).steps["run"].tolist()) == {1}
    assert len(record_of(made, 1).steps["t_start"]) == 9
