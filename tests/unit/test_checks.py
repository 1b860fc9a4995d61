"""The verdict: each check flips on its own fault, at its limit, and says what to do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_session import GAP, STAMPS_AFTER_SEND, TTFT, MadeSession, make_session, verdict_of

from harness.checks.check import Bound, Reading
from harness.checks.registry import CHECKS
from harness.common.collector import RUN_T0_CELL
from harness.common.stamps import EndReason, SendResult, Status


@pytest.fixture
def made(tmp_path: Path) -> MadeSession:
    return make_session(tmp_path, n=20)


def grades(made: MadeSession) -> dict[str, str]:
    """The checks that did not pass, by id."""
    checks = verdict_of(made).to_json()["checks"]
    return {check["id"]: check["status"] for check in checks if check["status"] not in ("PASS", "N/A")}


def check_of(made: MadeSession, check_id: str) -> dict[str, Any]:
    return next(check for check in verdict_of(made).to_json()["checks"] if check["id"] == check_id)


def delay(made: MadeSession, lag_ns: int, rows: range) -> None:
    """Let the rows be sent, and everything after, `lag_ns` later than intended."""
    for row in rows:
        for stamp in STAMPS_AFTER_SEND:
            made.add(stamp, row, lag_ns)


def all_rows(made: MadeSession) -> range:
    return range(made.collector.shape.rows)


def test_a_good_run_is_valid(made: MadeSession) -> None:
    verdict = verdict_of(made)
    assert grades(made) == {}
    assert (verdict.status, verdict.bound_by) == ("VALID", Bound.NOTHING)


def test_ids_are_unique_and_every_check_says_what_to_do() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    assert all(check.advice.endswith(".") and check.name and check.unit for check in CHECKS)


def test_every_check_names_its_rule_and_its_source() -> None:
    rule = re.compile(r"own|V[0-9]+(, V[0-9]+)*")
    assert all(rule.fullmatch(check.rule) and check.source for check in CHECKS)


def test_submit_lag_limit_is_a_tenth_of_ttft(made: MadeSession) -> None:
    check = check_of(made, "submit_lag")
    assert check["invalid_above"] == pytest.approx(TTFT / 1e3 / 10)
    assert check["warn_above"] == 1000.0
    assert check["value"] == 0.04


def test_submit_lag_limit_is_at_least_100_us(made: MadeSession) -> None:
    for row in all_rows(made):
        for stamp in ("t_wire", "t_ingress", "t_tokenize_start", "t_tokenized", "t_queued", "t_scheduled",
                      "t_first_token", "t_delivered"):  # fmt: skip
            made.set(stamp, row, int(made.collector.column("t_send")[row]) + 50)
    assert check_of(made, "submit_lag")["threshold"] == 100.0


def test_submit_lag_above_its_limit_is_invalid_and_blames_the_submitter(made: MadeSession) -> None:
    delay(made, 2 * GAP, all_rows(made))
    verdict = verdict_of(made)
    late = {"submit_lag": "INVALID", "lag_share": "INVALID"}
    assert grades(made) == {**late, "submit_lag_p50": "WARN", "submit_lag_gap": "WARN", "omission_gap": "WARN"}
    assert (verdict.status, verdict.bound_by) == ("INVALID", Bound.SUBMITTER)


def test_submit_lag_above_one_mean_gap_is_suspect(made: MadeSession) -> None:
    delay(made, GAP, all_rows(made))
    assert "submit_lag_gap" in grades(made) and set(grades(made).values()) == {"WARN"}
    assert verdict_of(made).status == "SUSPECT"


def test_a_burst_has_neither_gap_nor_rate(made: MadeSession) -> None:
    made.plan = replace(made.plan, offsets_ns=made.plan.offsets_ns * 0)
    assert check_of(made, "submit_lag_gap")["status"] == "N/A"
    assert check_of(made, "offered_rate")["status"] == "N/A"


@pytest.mark.parametrize(("stretch", "status"), [(1.015, "PASS"), (1.03, "INVALID"), (0.97, "INVALID")])
def test_an_offered_rate_that_misses_the_plan_by_over_2_percent_is_invalid(
    made: MadeSession, stretch: float, status: str
) -> None:
    made.plan = replace(made.plan, offsets_ns=(made.plan.offsets_ns * stretch).astype("int64"))
    assert check_of(made, "offered_rate")["status"] == status


def test_a_run_cut_short_is_judged_on_what_it_sent(made: MadeSession) -> None:
    for row in range(10, 20):
        made.set("send_result", row, SendResult.NOT_SENT)
    assert check_of(made, "offered_rate")["status"] == "PASS"


def test_a_relative_schedule_promises_no_rate(tmp_path: Path) -> None:
    made = make_session(tmp_path, schedule="relative")
    assert check_of(made, "offered_rate")["status"] == "N/A"


def test_a_lost_request_is_invalid(made: MadeSession) -> None:
    made.clear(19, "receiver_status", "close_status", "t_finished", "t_delivered", "finish_reason")
    assert grades(made) == {"lost": "INVALID"}


def test_a_refused_request_is_invalid(made: MadeSession) -> None:
    made.set("send_result", 19, SendResult.REFUSED)
    assert grades(made) == {"refused": "INVALID"}


def test_requests_without_a_result_make_a_run_suspect(made: MadeSession) -> None:
    made.set("receiver_status", 19, Status.UNFINISHED)
    assert grades(made) == {"missing": "WARN"}


def test_a_run_of_which_nothing_completed_is_suspect(made: MadeSession) -> None:
    made.collector.column("receiver_status")[:] = Status.REJECTED
    assert grades(made) == {"missing": "WARN"}
    assert "nothing was measured" in check_of(made, "missing")["explanation"]


def test_a_session_without_a_measured_run_is_invalid(tmp_path: Path) -> None:
    made = make_session(tmp_path, warmups=(True, False))
    made.collector.control[RUN_T0_CELL + 1] = 0
    made.collector.set_word("end_reason", EndReason.ENGINE_DIED)
    assert grades(made) == {"missing": "INVALID"}
    assert "engine_died" in check_of(made, "missing")["explanation"]


def test_a_broken_stamp_chain_is_invalid_and_named(made: MadeSession) -> None:
    made.add("t_wire", 4, -(10**9))
    assert grades(made) == {"stamp_chain": "INVALID"}
    assert "run 0 request 4: transit" in check_of(made, "stamp_chain")["explanation"]


def test_a_broken_stamp_chain_of_a_warmup_run_counts_too(tmp_path: Path) -> None:
    made = make_session(tmp_path, n=20, warmups=(True, False))
    made.add("t_wire", 4, -(10**9))
    assert grades(made) == {"stamp_chain": "INVALID"}


def test_tokens_that_both_sides_count_differently_are_invalid(made: MadeSession) -> None:
    made.add("received_tokens", 7, -1)
    assert grades(made) == {"token_count": "INVALID"}
    assert "request 7" in check_of(made, "token_count")["explanation"]


@pytest.mark.parametrize(
    ("placement", "status"),
    [
        ({"engine": [0, 1], "submitter": [1], "asked": False}, "INVALID"),
        ({"engine": [0, 1], "submitter": [1], "asked": True}, "WARN"),
        ({"engine": [0], "submitter": [1], "asked": False}, "PASS"),
        ({}, "N/A"),
    ],
)
def test_a_core_shared_by_engine_and_submitter_is_invalid_unless_asked_for(
    made: MadeSession, placement: dict[str, Any], status: str
) -> None:
    made.info = replace(made.info, placement=placement)
    assert check_of(made, "shared_core")["status"] == status


def test_a_shared_core_blames_the_host_before_the_submitter(made: MadeSession) -> None:
    made.info = replace(made.info, placement={"engine": [0], "submitter": [0], "asked": False})
    delay(made, 2 * GAP, all_rows(made))
    assert verdict_of(made).bound_by is Bound.HOST


@pytest.mark.parametrize(
    ("word", "check_id", "status"),
    [
        ("steps_lost", "records_lost", "WARN"),
        ("tokens_lost", "records_lost", "WARN"),
        ("bad_frames", "bad_frames", "INVALID"),
        ("wire_bad_frames", "bad_frames", "INVALID"),
        ("result_bad_frames", "bad_frames", "INVALID"),
        ("receiver_bad_frames", "bad_frames", "INVALID"),
        ("complaints", "stray_messages", "INVALID"),
        ("duplicates", "stray_messages", "INVALID"),
        ("repeated_results", "stray_messages", "INVALID"),
    ],
)
def test_lost_or_foreign_data_is_told(made: MadeSession, word: str, check_id: str, status: str) -> None:
    made.collector.set_word(word, 3)
    assert grades(made) == {check_id: status}
    assert "3" in check_of(made, check_id)["explanation"]


def test_of_several_runs_the_worst_counts_and_is_named(tmp_path: Path) -> None:
    made = make_session(tmp_path, n=20, warmups=(False, False, False))
    delay(made, 2 * GAP, range(20, 40))
    check = check_of(made, "submit_lag")
    assert (check["status"], check["run"]) == ("INVALID", 1)
    assert check["explanation"].startswith("run 1: ")


def test_a_warmup_run_is_in_no_figure(tmp_path: Path) -> None:
    made = make_session(tmp_path, n=20, warmups=(True, False))
    delay(made, 2 * GAP, range(20))
    assert grades(made) == {}


def test_an_engine_that_is_always_busy_is_what_bounds_a_valid_run(made: MadeSession) -> None:
    made.collector.set_word("steps", 1)
    made.collector.steps[0, 0] = 1
    made.collector.steps[0, 3] = 2**62
    assert verdict_of(made).status == "VALID"
    assert verdict_of(made).bound_by is Bound.ENGINE


def test_a_value_at_its_limit_passes() -> None:
    assert Reading(2.0, "", warn_above=2.0, invalid_above=3.0).grade.word == "PASS"
    assert Reading(3.0, "", warn_above=2.0, invalid_above=3.0).grade.word == "WARN"
    assert Reading(3.1, "", warn_above=2.0, invalid_above=3.0).grade.word == "INVALID"


def test_advice_is_given_where_a_check_did_not_pass(made: MadeSession) -> None:
    advice = "keep the result folder and report it."
    assert not check_of(made, "lost")["explanation"].endswith(advice)
    made.clear(19, "receiver_status", "close_status", "t_finished", "t_delivered", "finish_reason")
    assert check_of(made, "lost")["explanation"].endswith(advice)


def test_a_graph_captured_after_warm_up_flags_the_run(made: MadeSession) -> None:
    made.collector.set_word("late_captures", 2)
    assert grades(made) == {"late_captures": "WARN"}
    assert "--cuda-graph off" in check_of(made, "late_captures")["explanation"]


@pytest.mark.parametrize(("graphs", "status"), [(None, "N/A"), (False, "N/A"), (True, "PASS")])
def test_without_graphs_there_is_none_to_capture_late(tmp_path: Path, graphs: bool | None, status: str) -> None:
    made = make_session(tmp_path, engine={"cuda_graph": graphs})
    assert check_of(made, "late_captures")["status"] == status


def test_requests_that_the_client_gave_up_are_no_results(made: MadeSession) -> None:
    made.set("receiver_status", 3, Status.ABORTED)
    assert grades(made) == {"missing": "WARN"}


def test_a_capped_run_is_judged_by_the_rate_that_its_cap_let_go(made: MadeSession) -> None:
    """Half the planned rate, because slots came free no faster: not the submitter's doing."""
    for row in all_rows(made):
        for stamp in ("t_slot", *STAMPS_AFTER_SEND, "t_ended"):
            made.add(stamp, row, row * GAP)
    assert check_of(made, "offered_rate")["status"] == "INVALID"
    made.info = replace(made.info, plan={**made.info.plan, "max_concurrency": 20})
    assert check_of(made, "offered_rate")["status"] == check_of(made, "submit_lag")["status"] == "PASS"
    assert check_of(made, "gap_shift")["status"] == "N/A"


def test_a_late_submitter_shows_under_a_cap_too(made: MadeSession) -> None:
    made.info = replace(made.info, plan={**made.info.plan, "max_concurrency": 20})
    for row in all_rows(made):
        for stamp in (*STAMPS_AFTER_SEND, "t_ended"):
            made.add(stamp, row, row * GAP)
    assert check_of(made, "offered_rate")["status"] == check_of(made, "submit_lag")["status"] == "INVALID"


def test_a_closed_loop_promises_no_rate_and_no_gaps(made: MadeSession) -> None:
    after = np.arange(-1, 19, dtype=np.int32)
    made.plan = replace(made.plan, after=after, think_ns=np.zeros(20, dtype=np.int64))
    names = ("offered_rate", "submit_lag_gap", "gap_shift", "plan_shape")
    assert {check_of(made, name)["status"] for name in names} == {"N/A"}


@pytest.mark.parametrize(
    ("harness", "spin_ns", "status"),
    [([1], 10**6, "WARN"), ([1], 10**5, "PASS"), ([0], 10**6, "N/A")],
)
def test_a_spin_counts_where_it_takes_a_core_from_somebody(
    made: MadeSession, harness: list[int], spin_ns: int, status: str
) -> None:
    made.info = replace(made.info, placement={"engine": [0], "submitter": [1], "harness": harness, "asked": False})
    made.collector.set_word("spin_ns", spin_ns)
    assert check_of(made, "spin_duty")["status"] == status


def test_what_the_pacer_gave_away_itself_is_no_wait_for_its_core(tmp_path: Path) -> None:
    """Ready to run while libzmq's I/O thread has the core, it has run-queue delay of its own choice."""
    from made_faults import clean, hog

    made = clean(tmp_path, "constant")
    hog(made)
    before = check_of(made, "run_delay")
    assert before["status"] == "INVALID" and before["value"] > 1.0
    made.collector.set_word("yield_ns", 10**6)
    after = check_of(made, "run_delay")
    given = re.search(r"beside ([0-9.]+) % in which", after["explanation"])
    assert given is not None and 0.0 < float(given[1]) < before["value"]
    assert after["value"] == pytest.approx(before["value"] - float(given[1]), abs=1e-3)
    made.collector.set_word("yield_ns", 10**15)
    assert check_of(made, "run_delay")["value"] == 0.0  # never below


def test_what_lay_unread_behind_a_full_ring_is_backlog_and_not_the_hosts_fault(made: MadeSession) -> None:
    for stamp in STAMPS_AFTER_SEND[STAMPS_AFTER_SEND.index("t_wire") :]:
        made.add(stamp, 3, 10 * TTFT)
    assert check_of(made, "unread")["status"] == "WARN"
    made.collector.set_word("wire_ring_waits", 1)
    assert check_of(made, "unread")["status"] == "N/A"
    assert "backlog" in check_of(made, "unread")["explanation"]


def test_a_saturated_engine_is_named(tmp_path: Path) -> None:
    from made_faults import clean, saturated

    made = clean(tmp_path, "constant")
    saturated(made)
    verdict = verdict_of(made)
    assert verdict.saturated and verdict.bound_by is Bound.ENGINE
    assert any("saturated" in reason for reason in verdict.reasons)


def test_reasons_say_why_a_part_is_what_bounds(made: MadeSession) -> None:
    delay(made, 2 * GAP, all_rows(made))
    verdict = verdict_of(made)
    assert verdict.bound_by is Bound.SUBMITTER
    assert any("submit lag" in reason for reason in verdict.to_json()["bound_by_reasons"])


def test_a_burst_has_no_steady_state_and_its_requests_all_count(made: MadeSession) -> None:
    made.plan = replace(made.plan, offsets_ns=made.plan.offsets_ns * 0)
    for check in ("warm_up", "halves", "backlog", "independence"):
        assert check_of(made, check)["status"] == "N/A"
    assert check_of(made, "sample_size")["value"] == 11 / 20


def test_a_trace_has_no_steady_state(made: MadeSession) -> None:
    made.info = replace(made.info, plan={**made.info.plan, "trace": {"file": "x.csv"}})
    assert {check_of(made, check)["status"] for check in ("warm_up", "halves", "backlog")} == {"N/A"}
