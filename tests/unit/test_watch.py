"""When a run is over: each rule by itself."""

from __future__ import annotations

import pytest

from harness.common.clock import NS_PER_S
from harness.common.stamps import EndReason
from harness.session.watch import SETTLE_NS, Counters, Watch, stall_timeout_ns

S = NS_PER_S
STALL = 60 * S
START = 1_000 * S


def counters(**changed: int) -> Counters:
    """A session at rest, but for what is given."""
    return Counters(**{**dict.fromkeys(Counters._fields, 0), **changed})


def settled(n: int, **changed: int) -> Counters:
    """`n` rows sent, taken, ended and received."""
    names = ("sent", "handled", "wire_messages", "ingress", "terminal", "egress_messages", "receiver_messages",
             "received_terminal")  # fmt: skip
    return counters(**{**dict.fromkeys(names, n), **changed})


def watch(base: Counters | None = None, longest_gap_s: float = 0, drain_s: float | None = None) -> Watch:
    drain_ns = None if drain_s is None else int(drain_s * S)
    return Watch(base or counters(), STALL, int(longest_gap_s * S), drain_ns, START)


def sent(watch: Watch, at: int = START) -> Watch:
    """The submitter said that it is through."""
    watch.sent_at = at
    return watch


def test_a_run_is_done_when_all_is_sent_and_every_row_has_ended() -> None:
    assert sent(watch()).decide(settled(5), START) is EndReason.DONE


def test_a_run_goes_on_while_the_submitter_paces() -> None:
    assert watch().decide(settled(5), START) is None


def test_a_run_goes_on_while_a_row_is_open() -> None:
    assert sent(watch()).decide(settled(5, received_terminal=4, receiver_messages=4, terminal=4), START) is None


def test_rows_of_earlier_runs_do_not_count() -> None:
    base = settled(5)
    assert sent(watch(base)).decide(settled(5, sent=8, handled=8), START) is None
    assert sent(watch(base)).decide(settled(8), START) is EndReason.DONE


def test_a_row_that_an_earlier_run_lost_does_not_keep_this_one_open() -> None:
    base = settled(5, received_terminal=4)
    assert sent(watch(base)).decide(settled(8, received_terminal=7), START) is EndReason.DONE


def test_refused_rows_are_not_waited_for() -> None:
    assert sent(watch()).decide(settled(5, handled=9), START) is EndReason.DONE


def test_nothing_sent_at_all_is_done() -> None:
    assert sent(watch()).decide(counters(handled=4), START) is EndReason.DONE


def test_settled_and_silent_rows_without_word_end_the_run() -> None:
    """Everything sent was taken, ended and received, yet a row has no end: it is lost, and waiting brings nothing."""
    run, lost = sent(watch()), settled(5, received_terminal=4)
    assert run.decide(lost, START) is None
    assert run.decide(lost, START + SETTLE_NS - 1) is None
    assert run.decide(lost, START + SETTLE_NS) is EndReason.DONE


def test_any_sign_of_life_starts_the_silence_anew() -> None:
    run = sent(watch())
    run.decide(settled(5, received_terminal=4), START)
    run.decide(settled(5, received_terminal=4, steps=1), START + SETTLE_NS - 1)
    assert run.decide(settled(5, received_terminal=4, steps=1), START + SETTLE_NS + 1) is None


@pytest.mark.parametrize("behind", ["wire_messages", "ingress", "terminal", "receiver_messages"])
def test_what_is_still_under_way_is_not_settled(behind: str) -> None:
    run, under_way = sent(watch()), settled(5, received_terminal=4)._replace(**{behind: 4})
    assert run.decide(under_way, START) is None
    assert run.decide(under_way, START + 2 * SETTLE_NS) is None


def test_messages_that_were_turned_away_are_settled() -> None:
    run = sent(watch())
    turned = settled(5, ingress=3, turned_away=2, terminal=3, received_terminal=3)
    run.decide(turned, START)
    assert run.decide(turned, START + SETTLE_NS) is EndReason.DONE


def test_a_stopped_engine_is_stalled_only_after_the_timeout() -> None:
    run, open_row = sent(watch()), counters(sent=5, handled=5, wire_messages=5, ingress=5, steps=3)
    assert run.decide(open_row, START) is None
    assert run.decide(open_row, START + STALL - 1) is None
    assert run.decide(open_row, START + STALL) is EndReason.STALLED


def test_an_engine_that_stops_while_requests_go_on_coming_is_stalled() -> None:
    """Not sent through yet; nobody takes the messages, so only `sent` grows."""
    run, end = watch(), None
    for second in range(61):
        end = run.decide(counters(sent=second + 1, handled=second + 1, steps=3), START + second * S)
    assert end is EndReason.STALLED


def test_a_saturated_engine_is_not_stalled() -> None:
    """Steps advance for an hour and nothing ends."""
    run = sent(watch())
    for minute in range(60):
        busy = counters(sent=500, handled=500, wire_messages=500, ingress=500, steps=minute)
        assert run.decide(busy, START + minute * 59 * S) is None


@pytest.mark.parametrize("sign", ["steps", "terminal", "receiver_messages"])
def test_every_kind_of_progress_keeps_a_run_from_stalling(sign: str) -> None:
    run = sent(watch())
    for i in range(5):
        assert run.decide(counters(sent=500, handled=500)._replace(**{sign: i}), START + i * 59 * S) is None


@pytest.mark.parametrize("sign", ["sent", "wire_messages", "ingress", "turned_away"])
def test_arrivals_alone_are_no_progress(sign: str) -> None:
    """A hung engine's other threads still take messages in."""
    run = watch()
    ends = [run.decide(counters(sent=500, handled=i)._replace(**{sign: 500 + i}), START + i * 15 * S) for i in range(5)]
    assert ends == [None, None, None, None, EndReason.STALLED]


def test_an_idle_engine_is_not_stalled_when_it_gets_work_again() -> None:
    run = watch(longest_gap_s=3_600)
    run.decide(settled(5), START)
    assert run.decide(settled(5), START + 1_000 * S) is None
    assert run.decide(settled(5, sent=6, handled=6), START + 1_001 * S) is None, "the time without work does not count"
    assert run.decide(settled(5, sent=6, handled=6), START + 1_000 * S + STALL) is EndReason.STALLED


def test_a_submitter_that_hangs_is_stalled() -> None:
    run = watch()
    run.decide(settled(5), START)
    assert run.decide(settled(5), START + STALL - 1) is None
    assert run.decide(settled(5), START + STALL) is EndReason.STALLED


def test_a_submitter_that_never_begins_is_stalled() -> None:
    run = watch()
    run.decide(counters(), START)
    assert run.decide(counters(), START + STALL) is EndReason.STALLED


def test_a_long_planned_gap_is_no_stall() -> None:
    run = watch(longest_gap_s=500)
    run.decide(settled(5), START)
    assert run.decide(settled(5), START + 500 * S + STALL - 1) is None
    assert run.decide(settled(5), START + 500 * S + STALL) is EndReason.STALLED


def test_refused_sends_are_progress_of_the_submitter() -> None:
    run = watch()
    for i in range(5):
        assert run.decide(counters(handled=i), START + i * 59 * S) is None


def test_the_drain_timeout_runs_from_the_last_send() -> None:
    run = sent(watch(drain_s=10), at=START + 100 * S)
    for second in range(110):  # the engine goes on working all the time
        busy = counters(sent=9, handled=9, wire_messages=9, ingress=9, steps=second)
        assert run.decide(busy, START + second * S) is None
    assert run.decide(busy, START + 110 * S) is EndReason.DRAIN_TIMEOUT


def test_there_is_no_drain_timeout_while_the_submitter_paces() -> None:
    run = watch(drain_s=0)
    assert run.decide(counters(sent=9, handled=9), START + S) is None


def test_a_drained_run_is_done_however_late_it_is_looked_at() -> None:
    assert sent(watch(drain_s=10)).decide(settled(5), START + 100 * S) is EndReason.DONE


@pytest.mark.parametrize(
    ("asked_s", "longest_step_ns", "timeout_ns"),
    [(None, 0, 60 * S), (None, 6 * S, 60 * S), (None, 7 * S, 70 * S), (5.0, 7 * S, 5 * S), (0.5, 0, S // 2)],
)
def test_the_stall_timeout_is_what_was_asked_or_follows_the_warm_up(
    asked_s: float | None, longest_step_ns: int, timeout_ns: int
) -> None:
    assert stall_timeout_ns(asked_s, longest_step_ns) == timeout_ns


def reacting(longest_gap_s: float = 0) -> Watch:
    """The watch of a load whose requests wait for the ends of others."""
    run = watch(longest_gap_s=longest_gap_s)
    run.reacts = True
    return run


def test_a_submitter_that_waits_for_a_slow_engine_has_not_stalled() -> None:
    """One request in flight for an hour, its steps advance: nothing can be sent meanwhile."""
    run = reacting()
    for minute in range(60):
        assert run.decide(counters(sent=1, handled=1, steps=minute), START + minute * 59 * S) is None


def test_an_open_loop_s_submitter_would_have_stalled_there() -> None:
    run = watch()
    ends = [run.decide(counters(sent=1, handled=1, steps=k), START + k * 59 * S) for k in range(3)]
    assert ends[-1] is EndReason.STALLED


def test_a_submitter_that_sends_nothing_although_all_has_ended_is_stalled() -> None:
    run = reacting()
    assert run.decide(settled(1), START) is None
    assert run.decide(settled(1), START + STALL - 1) is None
    assert run.decide(settled(1), START + STALL) is EndReason.STALLED


def test_an_engine_that_stops_under_a_waiting_submitter_is_stalled() -> None:
    run = reacting()
    assert run.decide(counters(sent=1, handled=1, steps=3), START) is None
    assert run.decide(counters(sent=1, handled=1, steps=3), START + STALL) is EndReason.STALLED


def test_the_drain_of_a_capped_plan_begins_when_its_last_request_is_due() -> None:
    """Its overload waits at the submitter, which would not be through for hours."""
    run = watch(drain_s=5)
    run.reacts, run.all_due_at = True, START + 10 * S
    assert run.decide(counters(sent=3, handled=3, steps=1), START + 15 * S - 1) is None
    assert run.decide(counters(sent=4, handled=4, steps=2), START + 15 * S) is EndReason.DRAIN_TIMEOUT


def test_what_waits_for_a_lost_row_does_not_wait_for_the_stall_timeout() -> None:
    """Two sent, one of them turned away: all is settled, nothing can bring its end, and the submitter waits for it."""
    lost = settled(2, terminal=1, ingress=1, turned_away=1, egress_messages=1, receiver_messages=1, received_terminal=1)
    run = reacting(longest_gap_s=3)  # another user may think so long
    assert run.decide(lost, START) is None
    assert run.decide(lost, START + SETTLE_NS + 3 * S - 1) is None
    assert run.decide(lost, START + SETTLE_NS + 3 * S) is EndReason.STALLED
    busy = reacting()
    waiting = settled(2, terminal=1, egress_messages=1, receiver_messages=1, received_terminal=1)
    assert [busy.decide(waiting, START + k * SETTLE_NS) for k in range(3)] == [None, None, None]  # the engine has it
