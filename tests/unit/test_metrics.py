"""Every figure of a run from rows made by hand, in exact integers; and a corrupted stamp is caught and named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_session import FINISH, GAP, PARTS, SEND_CALL, T0, TOKEN_GAP, TTFT, MadeSession, make_session

from harness.common.stamps import SEPARATE_LEDGER, STAMPS, FinishReason, Reason, SendResult, Status
from harness.measures.ledger import MAX_EXAMPLES, Violation, audit_run, ledger_json
from harness.measures.metrics import Conditions, RunMetrics, measure_run
from harness.measures.records import read_session

CONDITIONS = Conditions(relative=False, nominal_rate=1000.0, wire_measured=True)


@pytest.fixture
def made(tmp_path: Path) -> MadeSession:
    return make_session(tmp_path)


def measure(made: MadeSession, conditions: Conditions = CONDITIONS) -> RunMetrics:
    return measure_run(read_session(made.collector, made.plan).runs[0], SEPARATE_LEDGER, conditions)


def values(made: MadeSession, name: str, conditions: Conditions = CONDITIONS) -> list[float]:
    found = measure(made, conditions).values[name]
    assert found is not None
    return found.tolist()


def violations(made: MadeSession, *, relative: bool = False, killed: bool = False) -> tuple[Violation, ...]:
    record = read_session(made.collector, made.plan).runs[0]
    return audit_run(record, SEPARATE_LEDGER, relative=relative, killed=killed).examples


def reject(made: MadeSession, row: int, *, last_stamp: str = "t_tokenized") -> None:
    """Make the row one that validation turned away: stamped up to `last_stamp`."""
    engine = STAMPS[4:]
    made.clear(row, *engine[engine.index(last_stamp) + 1 :], "output_tokens", "received_tokens", "finish_reason")
    made.set("receiver_status", row, Status.REJECTED)
    made.set("error_code", row, Reason.TOO_LONG)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, value) for name, value in PARTS.items() if name != "cap_wait"),
        ("ttft", TTFT),
        ("ttft_from_submit", TTFT - PARTS["submit_lag"]),
        ("add_request", SEND_CALL),
        ("wire_offset", PARTS["submit_lag"] + PARTS["transit"]),
        ("gil_wait", PARTS["ingress_wait"]),
        ("queue_wait_post_tok", PARTS["loop_wait"] + PARTS["queue_wait"]),
        ("prefill_to_first", PARTS["prefill"] + PARTS["delivery"]),
        ("tpot", TOKEN_GAP),
        ("itl", TOKEN_GAP),
        ("e2e", TTFT - PARTS["delivery"] + 2 * TOKEN_GAP + FINISH),
    ],
)
def test_metric_is_the_difference_that_the_design_states(made: MadeSession, name: str, expected: int) -> None:
    assert set(values(made, name)) == {expected}


def test_values_are_made_when_asked_for_and_not_kept(made: MadeSession) -> None:
    """A run of millions of rows cannot hold all of them beside its record."""
    found = measure(made).values
    assert list(found)[:2] == ["ttft", "ttft_from_submit"] and len(found) == len(list(found))
    for name in set(found) - {"itl", "drift"}:
        assert found[name] is not found[name], name
        np.testing.assert_array_equal(found[name], found[name])


def test_drift_of_a_relative_schedule_grows_by_each_send(tmp_path: Path) -> None:
    made = make_session(tmp_path, n=3, schedule="relative")
    step = PARTS["submit_lag"] + SEND_CALL
    drift = values(made, "drift", Conditions(relative=True, nominal_rate=1000.0, wire_measured=True))
    assert drift == [PARTS["submit_lag"], PARTS["submit_lag"] + step, PARTS["submit_lag"] + 2 * step]


def test_drift_is_not_measured_of_an_absolute_schedule(made: MadeSession) -> None:
    assert measure(made).values["drift"] is None


def test_tpot_is_null_for_fewer_than_two_tokens(tmp_path: Path) -> None:
    made = make_session(tmp_path, tokens=1)
    assert values(made, "tpot") == []
    assert values(made, "itl") == []


def test_gil_wait_is_of_messages_that_found_the_thread_parked(made: MadeSession) -> None:
    made.clear(3, "ingress_parked")
    assert len(values(made, "gil_wait")) == 7
    assert len(values(made, "ingress_wait")) == 8


def test_waits_for_the_gil_are_null_without_a_wire_thread(made: MadeSession) -> None:
    metrics = measure(made, Conditions(relative=False, nominal_rate=None, wire_measured=False))
    assert metrics.values["gil_wait"] is metrics.values["ingress_wait"] is metrics.values["wire_offset"] is None
    assert metrics.ledger["mean"]["parts"]["ingress_wait"] is None
    assert metrics.to_json()["metrics"]["gil_wait"] is None


def test_percentiles_are_over_completed_requests_and_submit_lag_over_sent_ones(made: MadeSession) -> None:
    reject(made, 0)
    assert len(values(made, "ttft")) == len(values(made, "transit")) == 7
    assert len(values(made, "submit_lag")) == len(values(made, "add_request")) == 8


def test_an_empty_completion_counts_and_has_no_ttft(made: MadeSession) -> None:
    reject(made, 0, last_stamp="t_queued")
    made.set("receiver_status", 0, Status.COMPLETED)
    made.set("finish_reason", 0, FinishReason.EMPTY)
    metrics = measure(made)
    assert metrics.counts["completed"] == 8
    assert len(values(made, "ttft")) == len(values(made, "e2e")) == 7
    assert metrics.audit.count == 0


def test_offered_rate_is_gaps_over_the_time_between_first_and_last_send(made: MadeSession) -> None:
    assert measure(made).rate["offered"] == 7 * 10**9 / (7 * GAP)
    assert measure(made).rate["nominal"] == 1000.0


def test_rates_of_nothing_are_null(made: MadeSession) -> None:
    made.collector.column("send_result")[:] = SendResult.NOT_SENT
    made.collector.column("receiver_status")[:] = Status.FAILED
    metrics = measure(made)
    assert metrics.rate["offered"] is metrics.rate["completed"] is metrics.submit_wall_ns is None
    assert metrics.throughput["output_tokens_per_s"] is None


def test_submit_wall_is_last_sent_less_first_send(made: MadeSession) -> None:
    assert measure(made).submit_wall_ns == 7 * GAP + SEND_CALL


def test_throughput_counts_tokens_of_completed_requests_over_the_whole_run(made: MadeSession) -> None:
    reject(made, 0)
    metrics = measure(made)
    end = T0 + 7 * GAP + TTFT - PARTS["delivery"] + 2 * TOKEN_GAP + FINISH
    assert metrics.duration_ns == end - T0
    assert metrics.tokens == {"prompt": 35, "completion": 21, "prompt_all": 40}
    assert metrics.throughput["output_tokens_per_s"] == 21 * 10**9 / (end - T0)
    assert metrics.throughput["total_tokens_per_s"] == 56 * 10**9 / (end - T0)
    assert metrics.rate["completed"] == 7 * 10**9 / (end - T0)


def test_counts_hold_every_status_and_add_up_to_planned(made: MadeSession) -> None:
    reject(made, 0)
    counts = dict(measure(made).counts)
    planned, sent = counts.pop("planned"), counts.pop("sent")
    assert (planned, sent, counts["completed"], counts["rejected"]) == (8, 8, 7, 1)
    assert list(counts) == [status.word for status in Status if status]
    assert sum(counts.values()) == planned


def test_ledger_of_means_adds_up_to_the_mean_ttft(made: MadeSession) -> None:
    mean = measure(made).ledger["mean"]
    assert sum(mean["parts"].values()) == pytest.approx(mean["ttft"], rel=1e-12)
    assert mean["ttft"] == TTFT / 1e6


def p99_request(made: MadeSession) -> int:
    record = read_session(made.collector, made.plan).runs[0]
    return int(ledger_json(record, SEPARATE_LEDGER)["p99_request"]["request"])


def test_p99_request_is_the_one_nearest_to_p99(tmp_path: Path) -> None:
    made = make_session(tmp_path, n=10)
    made.add("t_delivered", 4, 1000)
    assert p99_request(made) == 4


def test_p99_request_is_the_lower_one_on_ties(tmp_path: Path) -> None:
    made = make_session(tmp_path, n=51)  # 0.99 * 50 = 49.5: halfway between the two largest
    for row in range(51):
        made.add("t_delivered", row, 1000 * (51 - row))
    assert p99_request(made) == 1


def test_ledger_of_no_completed_request_is_null(made: MadeSession) -> None:
    made.collector.column("receiver_status")[:] = Status.FAILED
    ledger = measure(made).ledger
    assert ledger["mean"] is ledger["p99_request"] is None


def test_good_rows_have_no_violation(made: MadeSession) -> None:
    assert violations(made) == ()


@pytest.mark.parametrize("stamp", STAMPS)
@pytest.mark.parametrize("shift", [-(10**9), 10**9])
def test_a_shifted_stamp_is_caught_on_its_row(made: MadeSession, stamp: str, shift: int) -> None:
    made.add(stamp, 3, shift)
    ends_a_chain = stamp in ("t_sent", "t_finished")  # so a later one is possible
    found = violations(made)
    assert {violation.request for violation in found} == (set() if ends_a_chain and shift > 0 else {3})


@pytest.mark.parametrize("stamp", STAMPS)
def test_a_missing_stamp_of_a_completed_row_is_caught_and_named(made: MadeSession, stamp: str) -> None:
    made.clear(3, stamp)
    assert any(violation.request == 3 and violation.part == stamp for violation in violations(made))


@pytest.mark.parametrize("part", SEPARATE_LEDGER.parts, ids=lambda part: part.name)
def test_a_negative_part_is_named(made: MadeSession, part: object) -> None:
    start, end, name = part.start, part.end, part.name  # type: ignore[attr-defined]
    made.set(start, 5, int(made.collector.column(end)[5]) + 1)
    found = [violation for violation in violations(made) if violation.part == name]
    assert found[0].request == 5
    assert "is -1 ns" in found[0].detail


def test_a_stamp_after_an_unstamped_one_is_caught_on_rows_that_did_not_complete(made: MadeSession) -> None:
    reject(made, 2)
    assert violations(made) == ()
    made.set("t_scheduled", 2, T0 + 10**9)
    assert [(violation.request, violation.part) for violation in violations(made)] == [(2, "queue_wait")]


def test_the_intended_time_is_checked_against_the_relative_plan(tmp_path: Path) -> None:
    made = make_session(tmp_path, schedule="relative")
    assert violations(made, relative=True) == ()
    made.add("t_intended", 3, -1)
    made.add("t_slot", 3, -1)
    assert [(violation.request, violation.part) for violation in violations(made, relative=True)] == [(3, "t_intended")]


def test_parts_that_do_not_span_ttft_are_caught(made: MadeSession) -> None:
    broken = SEPARATE_LEDGER._replace(parts=SEPARATE_LEDGER.parts[:3] + SEPARATE_LEDGER.parts[4:])
    record = read_session(made.collector, made.plan).runs[0]
    audit = audit_run(record, broken, relative=False)
    assert audit.count == 8
    assert {violation.part for violation in audit.examples} == {"ttft"}


def test_a_killed_submitter_may_leave_one_message_without_its_stamps(made: MadeSession) -> None:
    made.clear(7, *STAMPS[:4], "send_result", *STAMPS[5:], "receiver_status", "finish_reason")
    made.set("close_status", 7, Status.FAILED)
    assert violations(made, killed=True) == ()
    assert [violation.part for violation in violations(made)] == ["transit"]


def test_all_violations_are_counted_and_the_first_are_kept(tmp_path: Path) -> None:
    made = make_session(tmp_path, n=300)
    made.collector.column("t_wire")[:] = np.array(1)
    audit = measure(made).audit
    assert audit.count >= 300
    assert len(audit.examples) == MAX_EXAMPLES


def test_busy_is_the_share_of_the_run_that_steps_take(made: MadeSession) -> None:
    metrics = measure(made)
    assert metrics.duration_ns is not None
    assert metrics.busy == 24 * 1010 / (metrics.duration_ns - PARTS["submit_lag"])


def capped(cap: int) -> Conditions:
    return replace(CONDITIONS, max_concurrency=cap)


def test_a_wait_for_a_slot_is_a_part_of_ttft_and_none_of_the_submit_lag(made: MadeSession) -> None:
    made.add("t_slot", 3, 30)
    metrics = measure(made, capped(8))
    assert metrics.audit.count == 0
    assert metrics.ledger["parts"][0] == "cap_wait"
    assert values(made, "cap_wait", capped(8)) == [0, 0, 0, 30, 0, 0, 0, 0]
    assert values(made, "submit_lag", capped(8))[3] == PARTS["submit_lag"] - 30


def test_without_cap_and_gates_there_is_no_such_part_and_a_wait_is_a_violation(made: MadeSession) -> None:
    assert "cap_wait" not in measure(made).ledger["parts"] and "cap_wait" not in measure(made).values
    made.add("t_slot", 3, 30)
    assert [(violation.request, violation.part) for violation in violations(made)] == [(3, "t_slot")]


@pytest.mark.parametrize(("cap", "over"), [(8, 0), (7, 1), (5, 3)])
def test_more_in_flight_than_the_cap_is_a_violation(made: MadeSession, cap: int, over: int) -> None:
    """One leaves every ms and takes over 14: the last of eight is the eighth in flight."""
    assert measure(made, capped(cap)).audit.count == over


def test_a_gated_request_is_due_at_its_predecessor_s_end_and_think_time(made: MadeSession) -> None:
    after = np.array([-1] * 7 + [0], dtype=np.int32)
    made.plan = replace(made.plan, after=after, think_ns=np.array([0] * 7 + [500], dtype=np.int64))
    assert [(violation.request, violation.part) for violation in violations(made)] == [(7, "t_intended")]
    made.set("t_ended", 0, T0 + 7 * GAP - 500)
    assert violations(made) == ()


def test_a_refused_predecessor_has_ended_when_its_send_call_returned(made: MadeSession) -> None:
    after = np.array([-1] * 7 + [0], dtype=np.int32)
    made.plan = replace(made.plan, after=after, think_ns=np.zeros(8, dtype=np.int64))
    made.clear(0, *STAMPS[4:], "t_ended", "receiver_status", "finish_reason", "output_tokens")
    made.set("send_result", 0, SendResult.REFUSED)
    for stamp, at in (("t_sent", T0 + 7 * GAP), ("t_send", T0 + 7 * GAP - 5)):
        made.set(stamp, 0, at)
    assert violations(made) == ()
