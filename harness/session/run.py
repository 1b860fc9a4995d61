"""One run of a session: arm the submitters, agree on t0, take results until the run is over."""

from __future__ import annotations

from harness.common import control as words
from harness.common.clock import NS_PER_MS, NS_PER_S, Clock
from harness.common.collector import RUN_T0_CELL
from harness.common.errors import ProtocolError, RunError
from harness.common.stamps import SUBMITTER_COLUMNS, EndReason, SendResult
from harness.measures.gates import longest_gap_ns
from harness.plan.closed_loop import cap_of
from harness.session.layout import RunSpan
from harness.session.live import Session
from harness.session.progress import REFRESH_S, Progress, Snapshot
from harness.session.watch import Counters, Watch

#: From START to t0: the message must have arrived and the pacer be asleep by then.
T0_AHEAD_NS = 200 * NS_PER_MS
ARM_TIMEOUT_S = 600.0
POLL_S = 0.05
_SEND, _RESULT, _SLOT = (SUBMITTER_COLUMNS.index(name) for name in ("t_send", "send_result", "t_slot"))


def read_counters(session: Session) -> Counters:
    """The counters of all processes, now."""
    word = session.collector.word
    sent, refused, errors = word("sent"), word("refused"), word("send_errors")
    return Counters(
        sent=sent,
        handled=sent + refused + errors,
        wire_messages=word("wire_messages") + word("wire_bad_frames") - word("aborts"),  # requests only
        ingress=word("ingress"),
        turned_away=word("bad_frames") + word("duplicates") + word("wire_bad_frames"),
        terminal=word("terminal"),
        egress_messages=word("egress_messages"),
        steps=word("steps") + word("steps_lost"),
        receiver_messages=session.receiver.messages + word("receiver_bad_frames"),
        received_terminal=session.receiver.terminal,
    )


def run_once(session: Session, span: RunSpan, stall_ns: int, progress: Progress, clock: Clock) -> EndReason:
    """Run one span to its end. Raises DeadChildError and InterruptedRunError; rows are closed by the caller."""
    for submitter in session.submitters:
        session.events.send(submitter, words.ARM, first_row=span.first_row, rows=span.rows)
    session.events.expect_each(session.submitters, words.ARMED, ARM_TIMEOUT_S)
    drain_s = session.config.drain_timeout_s
    plan, cap = session.plan, cap_of(session.config)
    watch = Watch(
        base=read_counters(session),
        stall_ns=stall_ns,
        longest_gap_ns=longest_gap_ns(plan, span.rows),
        drain_ns=None if drain_s is None else int(drain_s * NS_PER_S),
        now=clock() + T0_AHEAD_NS,
        reacts=plan.gated or cap is not None,
    )
    if session.sampler is not None:
        session.sampler.mark()
    session.collector.set_word("current_run", span.index)
    t0 = clock() + T0_AHEAD_NS
    if cap is not None and not plan.gated:
        watch.all_due_at = t0 + int(plan.offsets_ns[span.rows - 1])
    session.collector.control[RUN_T0_CELL + span.index] = t0
    if session.aborter is not None:
        session.aborter.begin(span.first_row, plan.offsets_ns[: span.rows], t0, in_order=not plan.gated)
    for submitter in session.submitters:
        session.events.send(submitter, words.START, t0_ns=t0)
    try:
        return _take_results(session, span, watch, progress, clock)
    finally:  # also of a run that fails: what is left of the processes is what explains it
        if session.sampler is not None:
            session.sampler.mark()


def _take_results(session: Session, span: RunSpan, watch: Watch, progress: Progress, clock: Clock) -> EndReason:
    title = f"warm-up {span.index + 1}" if span.warmup else f"run {span.index + 1} of {len(session.spans)}"
    started = shown = clock()
    tokens = session.collector.word("tokens")
    pacing = {child.name for child in session.submitters}
    while True:
        wait_s = POLL_S if session.aborter is None else min(POLL_S, session.aborter.act(clock()) / NS_PER_S)
        messages, ready = session.events.wait(wait_s)
        if session.wire.fd in ready:
            session.wire.park()  # cannot block: the descriptor is ready; reading it resets it
        session.receiver.consume()
        if session.wire.ended():
            errno = session.collector.word("receiver_errno")
            raise RunError(f"the receiver's wire thread ended in the middle of a run (errno {errno})")
        for child, message in messages:
            if child.name not in pacing or message.kind != words.RUN_SENT:
                raise ProtocolError(f"unexpected {message.kind} of the {child.name} during a run")
            pacing.remove(child.name)
            watch.sent_at = 0 if pacing else clock()
        now = clock()
        if session.sampler is not None:
            session.sampler.tick(now)
        end = watch.decide(read_counters(session), now)
        if end is not None:
            return end
        if progress.active and now - shown > REFRESH_S * NS_PER_S:
            shown = now
            rate = (session.collector.word("tokens") - tokens) / max((now - started) / NS_PER_S, 1e-9)
            progress.show(_snapshot(session, span, watch, title, rate))


def _snapshot(session: Session, span: RunSpan, watch: Watch, title: str, tokens_per_s: float) -> Snapshot:
    counters = read_counters(session)
    handled = counters.handled - watch.base.handled
    lag_us = None
    if handled:
        row = session.collector.submitter[span.first_row + handled - 1]
        if row[_RESULT] == SendResult.SENT:
            lag_us = float(row[_SEND] - row[_SLOT]) / 1000
    completed = counters.received_terminal - watch.base.received_terminal
    return Snapshot(title, span.rows, handled, completed, tokens_per_s, lag_us)
