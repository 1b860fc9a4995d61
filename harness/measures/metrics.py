"""Every figure of a run, computed from its stamps in int64 ns (definitions: DESIGN section 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.common.clock import NS_PER_S
from harness.common.collector import Int64Array
from harness.common.stamps import CAP_WAIT, Ledger, Status
from harness.config.slo_text import Slo
from harness.measures.arrival_check import ArrivalReport, check_arrivals
from harness.measures.contention_json import contention_json
from harness.measures.engine_use import engine_json
from harness.measures.ledger import Audit, audit_run, ledger_json, ttft_values
from harness.measures.records import BoolArray, RunRecord
from harness.measures.sampling import Sampling, sample
from harness.measures.shards import shards_json
from harness.measures.slo import backlog_growth, slo_json
from harness.measures.statistics import NumberArray, percentile, summarize
from harness.measures.steady import Steadiness, steadiness
from harness.plan.schedules import Schedule
from harness.plan.seeds import FloatArray

NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the figures need to know beside the stamps.

    relative: relative schedule. nominal_rate: requests per s of the plan, None for a burst.
    wire_measured: a thread without the GIL stamped t_wire (else t_wire is t_ingress, and waits for the GIL hide in
    transit). killed: the session ended by a process being killed. arrival, process: the word of the arrival process
    that planned the offsets, and the process; None for a plan file. slos: what was asked to be kept. max_concurrency:
    most requests in flight, or None. submitters: how many processes sent the load.
    """

    relative: bool
    nominal_rate: float | None
    wire_measured: bool
    killed: bool = False
    arrival: str | None = None
    process: Schedule | None = None
    slos: tuple[Slo, ...] = ()
    max_concurrency: int | None = None
    submitters: int = 1


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The figures of one run.

    values: ns by metric name, None = not measured (an empty array = measured on no request). counts: requests planned,
    sent, and of each terminal status. rate: per s. tokens: of completed requests, `prompt_all` of all that the engine
    counted. throughput: per s. wall times in ns. busy: share of the run during which an engine step was under way.
    arrivals: the arrival self-check.
    slo: `harness.measures.slo.slo_json`; backlog_growth: `slo.backlog_growth`. sampling: what the values are worth, by
    metric name, of those that were measured. steady: of TTFT.
    """

    record: RunRecord
    values: Mapping[str, NumberArray | None]
    sampling: Mapping[str, Sampling]
    steady: Steadiness
    counts: Mapping[str, int]
    rate: Mapping[str, float | None]
    tokens: Mapping[str, int]
    throughput: Mapping[str, float | None]
    submit_wall_ns: int | None
    duration_ns: int | None
    busy: float | None
    audit: Audit
    ledger: Mapping[str, Any]
    arrivals: ArrivalReport
    slo: Mapping[str, Any] | None = None
    backlog_growth: float | None = None
    submitters: Sequence[Mapping[str, Any]] = ()

    @property
    def burst(self) -> bool:
        """Whether all requests were due at once."""
        return is_burst(self.record)

    def percentile(self, name: str, q: float) -> float | None:
        """The q-th percentile of a metric in ns, None where it was not measured or no request has it."""
        values = self.values[name]
        return None if values is None else percentile(values, q)

    def to_json(self) -> dict[str, Any]:
        """The run's entry of summary.json; times in ms."""
        return {
            "run": self.record.index,
            "warmup": self.record.warmup,
            "t0_ns": self.record.t0_ns,
            "counts": dict(self.counts),
            "rate": dict(self.rate),
            "tokens": dict(self.tokens),
            "throughput": dict(self.throughput),
            "submit_wall_ms": _ms(self.submit_wall_ns),
            "duration_ms": _ms(self.duration_ns),
            "slo": self.slo,
            "backlog_growth": self.backlog_growth,
            "engine": engine_json(self.record, self.busy),
            "contention": contention_json(self.record.probes),
            "metrics": {
                name: None
                if values is None
                else {**summarize(values, NS_PER_MS).to_json(), **self.sampling[name].to_json()}
                for name, values in self.values.items()
            },
            "steady_state": self.steady.to_json(),
            "ledger": dict(self.ledger),
            "arrivals": self.arrivals.to_json(),
            "submitters": [dict(shard) for shard in self.submitters],
        }


def measure_run(record: RunRecord, ledger: Ledger, conditions: Conditions) -> RunMetrics:
    """All figures of a run."""
    columns = record.columns
    shown = _shown(ledger, record, conditions)
    sent, completed = record.sent, record.completed
    submit_wall = _span(columns["t_send"][sent], columns["t_sent"][sent])
    finished = completed & (columns["t_finished"] != 0)
    duration = _span(columns["t_intended"][sent], columns["t_finished"][finished])
    tokens = {
        "prompt": int(columns["prompt_tokens"][completed].sum()),
        "completion": int(columns["output_tokens"][completed].sum()),
        "prompt_all": int(columns["prompt_tokens"].sum()),
    }
    values = metric_values(record, shown, conditions)
    ttft = values["ttft"]
    assert ttft is not None  # stamped in every topology
    return RunMetrics(
        record=record,
        values=values,
        sampling={
            name: sample(some, ordered=not is_burst(record)) for name, some in values.items() if some is not None
        },
        steady=steadiness(ttft),
        counts=_counts(record),
        rate={
            "nominal": conditions.nominal_rate,
            "offered": offered_rate(columns["t_send"][sent]),
            "completed": _per_second(int(completed.sum()), duration),
        },
        tokens=tokens,
        throughput={
            "output_tokens_per_s": _per_second(tokens["completion"], duration),
            "total_tokens_per_s": _per_second(tokens["prompt"] + tokens["completion"], duration),
        },
        submit_wall_ns=submit_wall,
        duration_ns=duration,
        busy=_busy(record),
        audit=audit_run(
            record, ledger, relative=conditions.relative, killed=conditions.killed, cap=conditions.max_concurrency
        ),
        ledger=ledger_json(record, shown, () if conditions.wire_measured else ("ingress_wait",)),
        arrivals=_arrivals(record, conditions),
        slo=slo_json(record, conditions.slos, duration),
        backlog_growth=_growth(columns["t_intended"][finished], columns["t_finished"][finished]),
        submitters=shards_json(record, conditions.submitters),
    )


def _arrivals(record: RunRecord, conditions: Conditions) -> ArrivalReport:
    """The self-check of what the schedule decides: later turns of a session have no time of their own."""
    due = np.ones(record.rows, dtype=bool) if record.after is None else record.after < 0
    sent_ns = record.columns["t_send"][record.sent & due] - record.t0_ns
    return check_arrivals(record.offsets_ns[due], record.sent[due], sent_ns, conditions.arrival, conditions.process)


def _shown(ledger: Ledger, record: RunRecord, conditions: Conditions) -> Ledger:
    """The ledger without `cap_wait` where nothing can be waited for: the part is 0 then, which the audit checks."""
    if record.gated or conditions.max_concurrency is not None:
        return ledger
    return ledger._replace(parts=tuple(part for part in ledger.parts if part.name != CAP_WAIT))


class MetricValues(Mapping[str, NumberArray | None]):
    """Values by metric name, made anew whenever they are asked for: all of them together are as large as the record."""

    def __init__(self, makers: Mapping[str, Callable[[], NumberArray | None]]) -> None:
        self._makers = makers

    def __getitem__(self, name: str) -> NumberArray | None:
        return self._makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def metric_values(record: RunRecord, ledger: Ledger, conditions: Conditions) -> MetricValues:
    """ns by metric name. What the submitter alone decides is taken over all sent requests, the rest over completed."""
    c = record.columns
    sent = record.sent
    done = record.completed & (c["t_delivered"] != 0)
    parked = done & (c["ingress_parked"] == 1)
    several = done & (c["output_tokens"] >= 2)
    finished = record.completed & (c["t_finished"] != 0)

    def between(start: str, end: str, rows: BoolArray) -> Callable[[], Int64Array]:
        return lambda: (c[end] - c[start])[rows]

    def tpot() -> FloatArray:
        return between("t_first_token", "t_last_token", several)() / (c["output_tokens"][several] - 1)

    values: dict[str, Callable[[], NumberArray | None]] = {"ttft": lambda: ttft_values(record)[done]}
    values["ttft_from_submit"] = between("t_send", "t_delivered", done)
    values.update({part.name: between(part.start, part.end, done) for part in ledger.parts})
    for name in ("transit", "ingress_wait"):
        values.setdefault(name, lambda: None)  # a topology without a wire has no such part
    values["submit_lag"] = between("t_slot", "t_send", sent)
    values["add_request"] = between("t_send", "t_sent", sent)
    values["drift"] = lambda: (c["t_send"] - record.t0_ns - record.offsets_ns)[sent] if conditions.relative else None
    values["wire_offset"] = between("t_intended", "t_wire", done)
    values["gil_wait"] = between("t_wire", "t_ingress", parked)
    if not conditions.wire_measured:
        values["gil_wait"] = values["ingress_wait"] = values["wire_offset"] = lambda: None
    values["queue_wait_post_tok"] = between("t_tokenized", "t_scheduled", done)
    values["prefill_to_first"] = between("t_scheduled", "t_delivered", done)
    values["tpot"] = tpot
    values["itl"] = lambda: record.itl_ns
    values["e2e"] = between("t_intended", "t_finished", finished)
    return MetricValues(values)


def is_burst(record: RunRecord) -> bool:
    """Whether all requests of a run were due at once, so that their order means nothing."""
    return not record.gated and record.rows > 0 and bool(record.offsets_ns[0] == record.offsets_ns[-1])


def offered_rate(send_ns: Int64Array) -> float | None:
    """Requests per s that left: (N - 1) / (last send - first send); None for fewer than two or no time between."""
    if len(send_ns) < 2:
        return None
    span = int(send_ns.max() - send_ns.min())
    return (len(send_ns) - 1) * NS_PER_S / span if span else None


def _counts(record: RunRecord) -> dict[str, int]:
    counts = {"planned": record.rows, "sent": int(record.sent.sum())}
    for status in Status:
        if status is not Status.NONE:
            counts[status.word] = int((record.status == status).sum())
    return counts


def _growth(intended: Int64Array, ends: Int64Array) -> float | None:
    order = np.argsort(intended, kind="stable")
    return backlog_growth(intended[order], ends[order])


def _span(starts: Int64Array, ends: Int64Array) -> int | None:
    return int(ends.max() - starts.min()) if len(starts) and len(ends) else None


def _per_second(count: int, duration_ns: int | None) -> float | None:
    return count * NS_PER_S / duration_ns if duration_ns else None


def _busy(record: RunRecord) -> float | None:
    """Share of the time from first send to last word heard in which a step was under way (steps do not overlap)."""
    sends, finishes = record.columns["t_send"][record.sent], record.columns["t_finished"]
    begin, end = record.steps["t_start"], record.steps["t_end"]
    if len(sends) == 0 or finishes.max() <= sends.min() or len(begin) == 0:
        return None
    first, last = int(sends.min()), int(finishes.max())
    inside = np.clip(end, first, last) - np.clip(begin, first, last)
    return float(inside[end != 0].sum() / (last - first))


def _ms(value_ns: int | None) -> float | None:
    return None if value_ns is None else value_ns / NS_PER_MS
