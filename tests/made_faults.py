"""Faults of a made session, each with the checks that it must flip: those, and no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from made_session import MANIFEST, PARTS, STAMPS_AFTER_SEND, T0, TTFT, MadeSession, make_session, span_of

from harness.common.clock import NS_PER_MS, NS_PER_S
from harness.common.collector import Int64Array
from harness.common.probes.ring import RingWriter
from harness.common.stamps import SendResult, Status

N = 1000
GAP = 5 * NS_PER_MS  # 200 requests a second
POISSON = {"arrival": "poisson", "rate": 2.0, "seed": 0}


class Fault(NamedTuple):
    """What is done to a clean session, the checks that flip, and what the session is like before (its own baseline)."""

    inject: Callable[[MadeSession], None]
    flips: frozenset[str]
    base: str = "constant"


def clean(folder: Path, base: str) -> MadeSession:
    """A session that passes every check: constant gaps, Poisson ones, or two runs."""
    if base == "poisson":
        from harness.config.run_config import RunConfig
        from harness.plan.build import build_offsets

        offsets = build_offsets(RunConfig(arrival="poisson", rate=2.0, num_requests=N), N)
        return make_session(folder, offsets=offsets, probes=True, plan=_plan(arrival=POISSON))
    if base == "two runs":  # long enough to be compared
        return make_session(folder, n=N, gap=25 * NS_PER_MS, warmups=(False, False), apart=40 * NS_PER_S, probes=True)
    return make_session(folder, n=N, gap=GAP, probes=True)


def _plan(**more: Any) -> dict[str, Any]:
    return {"nominal_rate": 200.0, "schedule": "absolute", **more}


def _shift(made: MadeSession, rows: Any, late: Any, stamps: tuple[str, ...]) -> None:
    """Let the given stamps of rows come later, by one time for all or by one for each."""
    for stamp in stamps:
        column = made.collector.column(stamp)
        column[rows] += np.asarray(late, dtype=np.int64)
    made.collector.column("t_ended")[rows] = made.collector.column("t_finished")[rows]


def _from(stamp: str) -> tuple[str, ...]:
    """That stamp and those after it."""
    return STAMPS_AFTER_SEND[STAMPS_AFTER_SEND.index(stamp) :]


def _manifest(made: MadeSession, **changed: Any) -> None:
    made.info = replace(made.info, manifest={**MANIFEST, **changed})


def _stopped(values: Int64Array, begin: int, end: int) -> Int64Array:
    """By how much a process that was stopped from begin to end moves what was due then; it catches up 10 us apart."""
    inside = (values >= begin) & (values < end)
    return np.where(inside, end - values + np.cumsum(inside) * 10_000, 0)


def late_sends(made: MadeSession) -> None:
    """+2 ms on 1.1 % of the sends (of 1 % exactly, p99 is the smallest late one or the largest in time)."""
    _shift(made, np.arange(45, N, 90), 2 * NS_PER_MS, STAMPS_AFTER_SEND)


def relative_clock(made: MadeSession) -> None:
    """The clock of each send starts at the one before: 9 us a request add up."""
    column = made.collector.column
    late = np.arange(N) * (PARTS["submit_lag"] + 9_000)
    _shift(made, slice(None), late, ("t_intended", "t_slot", *STAMPS_AFTER_SEND))
    assert column("t_intended")[-1] > T0 + made.plan.offsets_ns[-1]


def windowed_poisson(made: MadeSession) -> None:
    """A Poisson number of requests a second, spread evenly over it."""
    counts = np.random.default_rng(3).poisson(2, N)
    offsets = np.array([s * NS_PER_S + k * NS_PER_S // c for s, c in enumerate(counts) for k in range(c)][:N])
    late = offsets - made.plan.offsets_ns
    _shift(made, slice(None), late, ("t_intended", "t_slot", *STAMPS_AFTER_SEND))
    made.plan = replace(made.plan, offsets_ns=offsets)


def stopped_submitter(made: MadeSession) -> None:
    """SIGSTOP for 1.4 s."""
    sends = made.collector.column("t_send").copy()
    _shift(made, slice(None), _stopped(sends, T0 + NS_PER_S, T0 + 2400 * NS_PER_MS), STAMPS_AFTER_SEND)


def stopped_engine(made: MadeSession) -> None:
    """SIGSTOP for 1 s: what was sent meanwhile lies unread."""
    wire = made.collector.column("t_wire").copy()
    _shift(made, slice(None), _stopped(wire, T0 + NS_PER_S, T0 + 2 * NS_PER_S), _from("t_wire"))


def spinner(made: MadeSession) -> None:
    """Pure Python that never sleeps: every look waits a switch interval."""
    made.collector.rings["gil"][1:, 1] = 5_100_000


def gc_pause(made: MadeSession) -> None:
    """A collection of generation 2 that takes 50 ms."""
    RingWriter(made.collector.rings["gc_engine"]).write(T0 + NS_PER_S, 50 * NS_PER_MS, 2, 1000)


def one_core(made: MadeSession) -> None:
    """Engine and submitter on one CPU: the pacer has to wait for it."""
    made.info = replace(made.info, placement={"engine": [0], "submitter": [0], "harness": [0], "asked": False})
    _pacer_waits(made, 0.05)


def _pacer_waits(made: MadeSession, share: float) -> None:
    begin, end = span_of(made.collector)
    made.collector.rings["threads"][8, 3] = int((end - begin) * share)


def hog(made: MadeSession) -> None:
    """Another process spins on the submitter's core."""
    begin, end = span_of(made.collector)
    made.collector.rings["cpus"][5, 2] += end - begin
    _pacer_waits(made, 0.02)


def dropped_completion(made: MadeSession) -> None:
    """One result never comes."""
    made.clear(N - 1, "receiver_status", "close_status", "t_finished", "t_delivered", "finish_reason", "t_ended")


def duplicate_completion(made: MadeSession) -> None:
    """One result comes twice."""
    made.collector.set_word("repeated_results", 1)


def stamp_out_of_order(made: MadeSession) -> None:
    """A first token before its request was scheduled; the sum stays right."""
    made.add("t_first_token", 7, -(PARTS["prefill"] + 1))


def slow_receiver(made: MadeSession) -> None:
    """Every result waits 6 ms for the receiver."""
    _shift(made, slice(None), 6 * NS_PER_MS, ("t_delivered", "t_finished"))


def lagging_pacer(made: MadeSession) -> None:
    """A pacer that sleeps without knowing its overshoot: 0.2 ms late, always."""
    _shift(made, slice(None), 200_000, STAMPS_AFTER_SEND)


def lag_beyond_the_gap(made: MadeSession) -> None:
    """Everything leaves 6 ms late, a gap is 5 ms."""
    _shift(made, slice(None), 6 * NS_PER_MS, STAMPS_AFTER_SEND)


def blocking_send(made: MadeSession) -> None:
    """The send call takes 1.5 ms."""
    made.collector.column("t_sent")[:] += 1_500_000


def refused_send(made: MadeSession) -> None:
    """One send would have blocked."""
    made.set("send_result", N - 1, SendResult.REFUSED)
    stamps = ("t_wire", "t_ingress", "t_tokenize_start", "t_tokenized", "t_queued", "t_scheduled", "t_first_token",
              "t_last_token", "t_delivered", "t_finished")  # fmt: skip
    made.clear(N - 1, *stamps)


def saturated(made: MadeSession) -> None:
    """The engine does 90 % of what is asked: E2E grows by a ninth of the time."""
    late = (made.plan.offsets_ns / 9).astype(np.int64)
    _shift(made, slice(None), late, _from("t_scheduled"))


def slower_half(made: MadeSession) -> None:
    """TTFT is 20 % longer from the middle on."""
    _shift(made, slice(N // 2, None), TTFT // 5, _from("t_first_token"))


def endless_warm_up(made: MadeSession) -> None:
    """TTFT falls over the whole run, by 4 %, with noise."""
    noise = np.random.default_rng(5).normal(0, 20_000, N)
    _shift(made, slice(None), np.linspace(400_000, 0, N) + noise, _from("t_first_token"))


def one_long_queue(made: MadeSession) -> None:
    """TTFT remembers: an AR(1) series of 0.975, whose autocorrelation time is 79 requests."""
    noise = np.random.default_rng(2).normal(0, 20_000, N)
    level = np.zeros(N)
    for i in range(1, N):
        level[i] = 0.975 * level[i - 1] + noise[i]
    _shift(made, slice(None), level, _from("t_first_token"))


def few_requests(made: MadeSession) -> None:
    """The engine rejects all but ten."""
    rows = np.arange(10, N)
    made.collector.column("receiver_status")[rows] = Status.REJECTED


def set_word(name: str) -> Callable[[MadeSession], None]:
    """A counter that should be 0 is 2."""
    return lambda made: made.collector.set_word(name, 2)


def hiccup(made: MadeSession) -> None:
    """The host stops for 4 ms."""
    RingWriter(made.collector.rings["hiccups"]).write(T0 + NS_PER_S, 4 * NS_PER_MS, 0)


def many_hiccups(made: MadeSession) -> None:
    """Twenty stops of 11 ms in five seconds."""
    for k in range(20):
        RingWriter(made.collector.rings["hiccups"]).write(T0 + k * 200 * NS_PER_MS, 11 * NS_PER_MS, 0)


def _cell(ring: str, row: int, cell: int, share: float) -> Callable[[MadeSession], None]:
    def inject(made: MadeSession) -> None:
        begin, end = span_of(made.collector)
        made.collector.rings[ring][row, cell] = int((end - begin) * share)

    return inject


def ring_overflow(made: MadeSession) -> None:
    """The ring of garbage collections was too short."""
    made.collector.rings["gc_engine"][0, 0] = 20
    made.collector.rings["gc_engine"][1:, 0] = T0


def busy_submitter_gc(made: MadeSession) -> None:
    """The submitter collected garbage while it sent."""
    RingWriter(made.collector.rings["gc_submitter"]).write(T0 + NS_PER_S, 50_000, 0, 1)


def other_output(made: MadeSession) -> None:
    """The second run's outputs are a third shorter."""
    for column in ("output_tokens", "received_tokens"):
        made.collector.column(column)[N:] = 2


def short_runs(made: MadeSession) -> None:
    """Two runs of half the requests: 12.5 s each."""
    for k in range(2):
        for row in range(k * N + N // 2, k * N + N):
            made.collector.column("receiver_status")[row] = Status.REJECTED


FAULTS: dict[str, Fault] = {
    "+2 ms on 1 % of the sends": Fault(
        late_sends, frozenset({"submit_lag", "lag_share", "gap_shift", "omission_gap"})
    ),
    "relative clock against the absolute plan": Fault(
        relative_clock, frozenset({"offered_rate", "drift", "stamp_chain"})
    ),
    "windowed Poisson": Fault(windowed_poisson, frozenset({"plan_shape"}), "poisson"),
    "submitter stopped for 1.4 s": Fault(
        stopped_submitter,
        frozenset(
            {"submit_lag", "lag_share", "submit_lag_gap", "gap_shift", "omission_gap", "independence", "warm_up"}
        ),
    ),
    "engine stopped for 1 s": Fault(stopped_engine, frozenset({"unread", "independence"})),
    "Python spinner in the engine": Fault(spinner, frozenset({"gil_wait", "gil_share"})),
    "GC pause of 50 ms": Fault(gc_pause, frozenset({"gc_engine"})),
    "both on one core": Fault(one_core, frozenset({"shared_core", "run_delay"})),
    "one completion dropped": Fault(dropped_completion, frozenset({"lost"})),
    "a duplicate completion": Fault(duplicate_completion, frozenset({"stray_messages"})),
    "a stamp out of order": Fault(stamp_out_of_order, frozenset({"stamp_chain"})),
    "hog on the submitter's core": Fault(hog, frozenset({"other_load", "run_delay"})),
    "slow receiver": Fault(slow_receiver, frozenset({"delivery"})),
    "pacer 0.2 ms late": Fault(lagging_pacer, frozenset({"submit_lag_p50", "lag_share", "omission_gap"})),
    "lag beyond the gap": Fault(
        lag_beyond_the_gap,
        frozenset({"submit_lag", "submit_lag_p50", "lag_share", "submit_lag_gap", "omission_gap"}),
    ),
    "send call of 1.5 ms": Fault(blocking_send, frozenset({"send_call"})),
    "send refused": Fault(refused_send, frozenset({"refused"})),
    "engine too slow": Fault(saturated, frozenset({"backlog", "halves", "warm_up", "independence", "sample_size"})),
    "slower second half": Fault(slower_half, frozenset({"halves", "warm_up", "independence", "sample_size"})),
    "warm-up that never ends": Fault(endless_warm_up, frozenset({"warm_up", "independence", "sample_size"})),
    "one long queue": Fault(one_long_queue, frozenset({"independence"})),
    "given up by the client": Fault(
        lambda made: made.set("receiver_status", N - 1, Status.ABORTED), frozenset({"missing"})
    ),
    "ten results": Fault(few_requests, frozenset({"sample_size"})),
    "host hiccup": Fault(hiccup, frozenset({"hiccups"})),
    "many host hiccups": Fault(many_hiccups, frozenset({"hiccups", "hiccup_share"})),
    "stolen time": Fault(_cell("cpus", 4, 5, 0.01), frozenset({"steal"})),
    "CPU limit": Fault(_cell("cpus", 6, 3, 0.005), frozenset({"throttled"})),
    "probe that costs a lot": Fault(_cell("threads", 6, 2, 0.05), frozenset({"observer"})),
    "ring too short": Fault(ring_overflow, frozenset({"probe_rows_lost"})),
    "GC in the submitter": Fault(busy_submitter_gc, frozenset({"gc_submitter"})),
    "other outputs in the second run": Fault(other_output, frozenset({"repeat_load"}), "two runs"),
    "two runs too short": Fault(short_runs, frozenset({"duration"}), "two runs"),
    "steps lost": Fault(set_word("steps_lost"), frozenset({"records_lost"})),
    "unreadable message": Fault(set_word("bad_frames"), frozenset({"bad_frames"})),
    "counters that differ": Fault(set_word("sent"), frozenset({"counters"})),
    "graph captured late": Fault(set_word("late_captures"), frozenset({"late_captures"})),
    "token lost": Fault(lambda made: made.add("received_tokens", 3, -1), frozenset({"token_count"})),
    "hpet": Fault(lambda made: _manifest(made, clocksource="hpet"), frozenset({"clocksource"})),
    "slow clock": Fault(
        lambda made: _manifest(made, clocks={"engine": {"offset_bound_ns": 0, "read_ns": 900}}),
        frozenset({"clock_read"}),
    ),
    "slow handshake": Fault(
        lambda made: _manifest(made, clocks={"engine": {"offset_bound_ns": 400_000, "read_ns": 60}}),
        frozenset({"clock_offset"}),
    ),
    "kernel not recorded": Fault(lambda made: _manifest(made, kernel=None), frozenset({"manifest"})),
    "hyperthreads of one core": Fault(
        lambda made: _manifest(made, smt_siblings={"0": [0, 1], "1": [0, 1], "2": [2, 3], "3": [2, 3]}),
        frozenset({"smt_siblings"}),
    ),
    "long path": Fault(
        lambda made: setattr(made, "info", replace(made.info, floor={"ttft_p99_ns": 300_000})), frozenset({"floor"})
    ),
}  # fmt: skip
