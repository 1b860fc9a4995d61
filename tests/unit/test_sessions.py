"""Sessions: each turn's prompt is the recorded history, and is due a think time after the turn before it."""

from __future__ import annotations

from harness.plan.datasets import Conversation, Turn
from harness.plan.sessions import Sessions, make_sessions

TALK = [
    Conversation("a", (Turn("Q1", "A1"), Turn("Q2", "A2", 30.0), Turn("Q3"))),
    Conversation("b", (Turn("R1"),)),
    Conversation("c", (Turn("S1", 9), Turn("S2", 8))),
]


def made(
    turns: int | None = None,
    count: int | None = None,
    think: float | None = None,
    most: int | None = None,
    recorded: bool = False,
) -> Sessions:
    return make_sessions(TALK, turns=turns, count=count, most=most, think_ms=think, recorded=recorded)


def after_of(sessions: Sessions) -> list[int]:
    assert sessions.after is not None
    return sessions.after.tolist()


def test_a_turn_s_prompt_is_what_was_said_and_replied_before() -> None:
    assert [request.prompt for request in made().requests] == [
        "Q1", "Q1\nA1\nQ2", "Q1\nA1\nQ2\nA2\nQ3", "R1", "S1", "S1\nS2",
    ]  # fmt: skip


def test_each_turn_comes_after_the_one_before_and_sessions_do_not_wait_for_each_other() -> None:
    assert after_of(made()) == [-1, 0, 1, -1, -1, 4]
    assert made().session.tolist() == [0, 0, 0, 1, 2, 2] and made().num_sessions == 3


def test_think_times_are_those_of_the_file_where_none_is_asked_for() -> None:
    sessions = made()
    assert sessions.think_ns is not None and sessions.think_ns.tolist() == [0, 30_000_000, 0, 0, 0, 0]


def test_the_asked_think_time_holds_for_every_turn_but_the_first() -> None:
    sessions = made(think=2.5)
    assert sessions.think_ns is not None and sessions.think_ns.tolist() == [0, 2_500_000, 2_500_000, 0, 0, 2_500_000]


def test_one_turn_each_waits_for_nobody() -> None:
    sessions = made(turns=1)
    assert [request.prompt for request in sessions.requests] == ["Q1", "R1", "S1"] and sessions.after is None


def test_the_number_of_requests_counts_turns_and_cuts_the_last_session() -> None:
    sessions = made(turns=2, count=7)
    assert [request.prompt for request in sessions.requests][-2:] == ["Q1", "Q1\nA1\nQ2"]
    assert after_of(sessions) == [-1, 0, -1, -1, 3, -1, 5] and sessions.session.tolist() == [0, 0, 1, 2, 2, 3, 3]
    assert len(made(turns=2, count=6).requests) == 6


def test_with_recorded_outputs_a_session_ends_before_its_first_turn_without_a_reply() -> None:
    sessions = made(recorded=True)
    assert [request.reply for request in sessions.requests] == ["A1", "A2", 9, 8] and sessions.unanswered == 2


def test_where_no_turn_has_a_reply_there_is_no_request() -> None:
    only = [TALK[1]]
    sessions = make_sessions(only, turns=None, count=5, most=None, think_ms=None, recorded=True)
    assert sessions.requests == [] and sessions.num_sessions == 0


def test_a_number_of_sessions_ends_it_too() -> None:
    assert made(most=4).session.tolist() == [0, 0, 0, 1, 2, 2, 3, 3, 3]
    assert made(most=4, count=2).session.tolist() == [0, 0]
