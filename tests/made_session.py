"""A session made by hand: collector, plan and description with exact integers, for tests of everything after a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.checks.check import CheckContext
from harness.checks.limits import Limits
from harness.checks.registry import CHECKS
from harness.checks.verdict import Verdict, judge
from harness.common.collector import RUN_T0_CELL, Collector, CollectorShape, Int64Array
from harness.common.plan_file import LoadPlan
from harness.common.probes.ring import EXACT, RingWriter
from harness.common.stamps import SEPARATE_LEDGER, STAMPS, STEP_COLUMNS, EndReason, FinishReason, SendResult, Status
from harness.host.sampler import CGROUP, name_cells
from harness.measures.contention import ENGINE, FIRST_SUBMITTER, HARNESS
from harness.measures.ledger import Audit
from harness.measures.metrics import measure_run
from harness.measures.records import read_session
from harness.report.finish import conditions
from harness.report.session_info import SessionInfo

T0 = 1_000_000_000_000
GAP = 1_000_000
#: ns of each part of TTFT on every row, in ledger order; TTFT is their sum, 10_450_360 ns.
PARTS = {
    "cap_wait": 0,
    "submit_lag": 40,
    "transit": 90_000,
    "ingress_wait": 3_000,
    "tokenize_wait": 1_000,
    "tokenize": 56_320,
    "loop_wait": 200_000,
    "queue_wait": 100_000,
    "prefill": 9_900_000,
    "delivery": 100_000,
}
TTFT = sum(PARTS.values())
STAMPS_AFTER_SEND = STAMPS[2:]
SEND_CALL = 9_000
TOKEN_GAP = 2_000_000
FINISH = 150_000  # last token to its delivery


@dataclass(slots=True)
class MadeSession:
    """A collector with `runs` runs of `n` requests of `tokens` new tokens each, all completed."""

    collector: Collector
    plan: LoadPlan
    info: SessionInfo

    def set(self, column: str, row: int, value: int) -> None:
        self.collector.column(column)[row] = value
        if column == "send_result":
            count_sends(self.collector)

    def add(self, column: str, row: int, value: int) -> None:
        self.collector.column(column)[row] += value

    def clear(self, row: int, *columns: str) -> None:
        for column in columns:
            self.set(column, row, 0)


def count_sends(collector: Collector) -> None:
    """What a submitter would have counted."""
    results = collector.column("send_result")
    collector.set_word("sent", int((results == SendResult.SENT).sum()))
    collector.set_word("refused", int((results == SendResult.REFUSED).sum()))


RINGS = {"gil": 1000, "pauses": 16, "hiccups": 64, "threads": 32, "cpus": 16}
GIL_LOOKS, GIL_WAIT = 200, 2_000
#: ns that each thread runs in a session: (process, thread, name).
THREADS = ((ENGINE, 70, b"step-loop"), (ENGINE, 71, b"gil-probe"), (HARNESS, 80, b"hiccups"),
           (FIRST_SUBMITTER, 90, b"pacer"))  # fmt: skip
THREAD_CPU = 1_000_000


def span_of(collector: Collector) -> tuple[int, int]:
    """First t0 and last stamp of all runs."""
    return T0, int(collector.column("t_finished").max())


def mark_thread(collector: Collector, at: int, thread: tuple[int, int, bytes], cpu: int, delay: int = 0) -> None:
    """A row of the sampler."""
    process, tid, name = thread
    RingWriter(collector.rings["threads"]).write(at, process << 32 | tid, cpu, delay, 5, 0, *name_cells(name))


def mark_cpus(collector: Collector, at: int, busy: int, steal: int = 0, throttled: int = 0) -> None:
    """The rows of both CPUs and of the control group."""
    writer = RingWriter(collector.rings["cpus"])
    for cpu in (0, 1):
        writer.write(at, cpu, busy // 2, 0, 0, steal // 2)
    writer.write(at, CGROUP, bool(throttled), throttled)


def quiet_rings(collector: Collector) -> None:
    """What the probes see on a host that does nothing else, around all runs."""
    begin, end = span_of(collector)
    for at, used in ((begin - 1000, 0), (end + 1000, THREAD_CPU)):
        for thread in THREADS:
            mark_thread(collector, at, thread, used)
        mark_cpus(collector, at, used * len(THREADS))
    collector.rings["gil"][0, EXACT] = 1
    for at in np.linspace(begin, end, GIL_LOOKS, dtype=np.int64):
        RingWriter(collector.rings["gil"]).write(int(at), GIL_WAIT, 0, 0)


#: What the manifest check asks for.
MANIFEST: dict[str, Any] = {
    "kernel": "6.1", "cpu": "made", "governors": {}, "idle_states": {}, "clocksource": "tsc", "python": "3.12",
    "gil": True, "versions": {},
    "processes": {"engine": {"timer_slack_ns": 1, "sched_policy": "other", "switch_interval_ms": 5.0}},
    "clocks": {"engine": {"offset_bound_ns": 20_000, "read_ns": 60}},
}  # fmt: skip


def make_session(
    folder: Path,
    n: int = 8,
    tokens: int = 3,
    warmups: Sequence[bool] = (False,),
    schedule: str = "absolute",
    gap: int = GAP,
    offsets: Int64Array | None = None,
    probes: bool = False,
    apart: int = 10**10,
    **info: Any,
) -> MadeSession:
    """Build the session; `info` overrides fields of SessionInfo. probes: rings as a quiet host fills them."""
    if offsets is None:
        offsets = np.arange(n, dtype=np.int64) * gap
    n = len(offsets)
    plan = LoadPlan(
        offsets_ns=offsets,
        max_new_tokens=np.full(n, tokens, dtype=np.int32),
        prompt_ids=np.zeros(n * 5, dtype=np.int32),
        prompt_starts=np.arange(n + 1, dtype=np.int64) * 5,
    )
    runs = [{"index": k, "warmup": warm, "first_row": k * n, "rows": n} for k, warm in enumerate(warmups)]
    rows = n * len(runs)
    shape = CollectorShape(rows, rows * tokens + 1, rows * tokens + 1, **(RINGS if probes else {}))
    collector = Collector.create(folder / "collector.bin", shape, {"runs": runs}, (os.getpid(), 1))
    for k in range(len(runs)):
        collector.control[RUN_T0_CELL + k] = T0 + k * apart
        _fill_run(collector, k, T0 + k * apart, offsets, tokens, relative=schedule == "relative")
    if probes:
        quiet_rings(collector)
    count_sends(collector)
    collector.set_word("end_reason", EndReason.DONE)
    values: dict[str, Any] = {
        "run_id": "made-by-hand",
        "command": ("./run.sh", "--schedule", schedule, "--prompt", "two words"),
        "config": {"tokenize_workers": 0, "seed": 0, "engine": "native"},
        "manifest": MANIFEST,
        "placement": {"engine": [0], "submitter": [1], "harness": [1], "asked": False},
        "pacer": {"name": "compiled", "wait": "hybrid", "margin_ns": 55_000},
        "engine": {"model": "builtin:gpt2", "device": "cpu", "dtype": "bfloat16", "threads": 1},
        "plan": {"nominal_rate": 1000.0, "schedule": schedule},
    }
    return MadeSession(collector, plan, SessionInfo(**{**values, **info}))


def _fill_run(collector: Collector, k: int, t0: int, offsets: Int64Array, tokens: int, *, relative: bool) -> None:
    """One step makes one token of one request, in the order of the tokens' times."""
    log = []
    intended = t0
    n = len(offsets)
    for i in range(n):
        row = k * n + i
        late = i and PARTS["submit_lag"] + SEND_CALL
        gap = int(offsets[i] - offsets[max(i - 1, 0)])
        intended = intended + late + gap if relative else t0 + int(offsets[i])
        first = _fill_row(collector, row, intended, tokens)
        log += [(first + j * TOKEN_GAP, row, 100 + j) for j in range(tokens)]
    step, token = collector.word("steps"), collector.word("tokens")
    for at, row, token_id in sorted(log):
        collector.tokens[token] = row << 32 | token_id
        values = {"t_start": at - 1000, "t_tokens": at, "t_end": at + 10, "tokens_end": token + 1, "run": k}
        for name, value in values.items():
            collector.steps[step, STEP_COLUMNS.index(name)] = value
        step, token = step + 1, token + 1
    collector.set_word("steps", step)
    collector.set_word("tokens", token)


def _fill_row(collector: Collector, row: int, intended: int, tokens: int) -> int:
    """Stamp a completed row; returns the time of its first token."""
    at, stamps = intended, {"t_intended": intended}
    ends = ("t_slot", "t_send", "t_wire", "t_ingress", "t_tokenize_start", "t_tokenized", "t_queued", "t_scheduled",
            "t_first_token", "t_delivered")  # fmt: skip
    for name, part in zip(ends, PARTS.values(), strict=True):
        at += part
        stamps[name] = at
    stamps["t_sent"] = stamps["t_send"] + SEND_CALL
    stamps["t_last_token"] = stamps["t_first_token"] + (tokens - 1) * TOKEN_GAP
    stamps["t_finished"] = stamps["t_ended"] = stamps["t_last_token"] + FINISH
    values = {
        **stamps,
        "send_result": SendResult.SENT,
        "ingress_parked": 1,
        "prompt_tokens": 5,
        "output_tokens": tokens,
        "received_tokens": tokens,
        "engine_status": Status.COMPLETED,
        "receiver_status": Status.COMPLETED,
        "close_status": Status.COMPLETED,
        "finish_reason": FinishReason.LENGTH,
    }
    for name, value in values.items():
        collector.column(name)[row] = value
    return stamps["t_first_token"]


def verdict_of(made: MadeSession, limits: Limits | None = None) -> Verdict:
    """The verdict as `finish_session` comes to it, without writing anything."""
    records = read_session(made.collector, made.plan)
    runs = [measure_run(run, SEPARATE_LEDGER, conditions(made.info, records)) for run in records.runs]
    examples = tuple(violation for run in runs for violation in run.audit.examples)
    audit = Audit(sum(run.audit.count for run in runs), examples)
    measured = tuple(run for run in runs if not run.record.warmup)
    warmups = tuple(run for run in runs if run.record.warmup)
    ended = records.end_reason.word
    return judge(CHECKS, CheckContext(made.info, records.counters, measured, audit, ended, warmups=warmups), limits)
