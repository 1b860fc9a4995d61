"""From the collector to one `RunRecord` a run: plain arrays in which every row has exactly one final status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.common.collector import CONTROL_WORDS, RUN_T0_CELL, Collector, Int64Array
from harness.common.errors import CollectorError
from harness.common.plan_file import LoadPlan
from harness.common.stamps import (
    ENGINE_COLUMNS,
    RECEIVER_COLUMNS,
    STAMPS,
    STEP_COLUMNS,
    SUBMITTER_COLUMNS,
    EndReason,
    FinishReason,
    Reason,
    SendResult,
    Status,
    reason_text,
)
from harness.measures.contention import RunProbes, SessionProbes, read_probes

BoolArray = npt.NDArray[np.bool_]

_ROW_BITS = 32
_TOKEN_MASK = (1 << _ROW_BITS) - 1


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run as it was measured, R rows; row i is request i of the plan. The collector, whose arrays none is, may go.

    columns: int64[R] by column name (stamps without `_ns`, all in CLOCK_MONOTONIC ns, 0 = not stamped).
    status, error_code, error_a, error_b: int64[R], final (see `harness.common.stamps`).
    itl_ns: int64[G], gaps between consecutive tokens of a request, over completed requests with a whole token log.
    steps: int64[S] by column name of the step table, the steps of this run. probes: None where they were off.
    after, think_ns: int64[R] of a gated plan (see `LoadPlan`), else None.
    """

    index: int
    warmup: bool
    t0_ns: int
    first_row: int
    offsets_ns: Int64Array
    columns: Mapping[str, Int64Array]
    status: Int64Array
    error_code: Int64Array
    error_a: Int64Array
    error_b: Int64Array
    itl_ns: Int64Array
    steps: Mapping[str, Int64Array]
    after: Int64Array | None = None
    think_ns: Int64Array | None = None
    probes: RunProbes | None = None

    @property
    def rows(self) -> int:
        return len(self.status)

    @property
    def gated(self) -> bool:
        """Whether some request waits for another one's end."""
        return self.after is not None and bool((self.after >= 0).any())

    @property
    def sent(self) -> BoolArray:
        """bool[R]: the transport took the message."""
        return np.equal(self.columns["send_result"], SendResult.SENT)

    @property
    def completed(self) -> BoolArray:
        """bool[R]: ended as completed."""
        return np.equal(self.status, Status.COMPLETED)

    def error_text(self, i: int) -> str:
        """Why request i did not complete, as a sentence; empty where it did."""
        return reason_text(int(self.error_code[i]), int(self.error_a[i]), int(self.error_b[i]))

    def finish_word(self, i: int) -> str:
        """Why request i ended, as a word; empty where it has none."""
        code = int(self.columns["finish_reason"][i])
        return FinishReason(code).word if code in set(FinishReason) else f"unknown {code}"


@dataclass(frozen=True, slots=True)
class SessionRecords:
    """All started runs of a session, the runs that never started, why it ended, and every control word by name."""

    runs: tuple[RunRecord, ...]
    not_started: tuple[int, ...]
    end_reason: EndReason
    counters: Mapping[str, int]
    probes: SessionProbes | None = None
    submitters: int = 1


@dataclass(frozen=True, slots=True)
class _TokenLog:
    """The token log sorted by row, log order kept within one: row, token id and time (ns, 0 = no step row says it)."""

    rows: Int64Array
    ids: Int64Array
    times: Int64Array


def read_session(collector: Collector, plan: LoadPlan) -> SessionRecords:
    """Copy what a collector holds into records. A run whose t0 was never set is listed, not measured.

    Raises CollectorError where the session's end is not one that there is.
    """
    end_reason = _end_reason(collector)
    steps = _read_steps(collector)
    log = _read_token_log(collector, steps)
    probes = read_probes(collector)
    runs, not_started = [], []
    for run in collector.meta["runs"]:
        index = int(run["index"])
        t0 = int(collector.control[RUN_T0_CELL + index])
        if t0 == 0:
            not_started.append(index)
            continue
        runs.append(_read_run(collector, plan, run, t0, end_reason, steps, log, probes))
    counters = {name: collector.word(name) for name in CONTROL_WORDS}
    return SessionRecords(tuple(runs), tuple(not_started), end_reason, counters, probes, collector.submitters)


def read_outputs(collector: Collector) -> dict[int, Int64Array]:
    """Token ids (int64) of every collector row that has any, in the order in which they were made."""
    log = _read_token_log(collector, _read_steps(collector))
    if len(log.rows) == 0:
        return {}
    starts = np.flatnonzero(np.diff(log.rows, prepend=-1))
    pieces = np.split(log.ids, starts[1:])
    return {int(log.rows[start]): piece for start, piece in zip(starts, pieces, strict=True)}


def _end_reason(collector: Collector) -> EndReason:
    word = collector.word("end_reason")
    if word not in set(EndReason):
        raise CollectorError(f"{collector.path} is damaged: its session ended for reason {word}, which does not exist")
    return EndReason(word)


def _read_run(
    collector: Collector,
    plan: LoadPlan,
    run: Mapping[str, Any],
    t0: int,
    end_reason: EndReason,
    steps: Mapping[str, Int64Array],
    log: _TokenLog,
    probes: SessionProbes | None,
) -> RunRecord:
    first, rows = int(run["first_row"]), int(run["rows"])
    columns = {
        name: _compact(collector.column(name)[first : first + rows])
        for name in (*SUBMITTER_COLUMNS, *ENGINE_COLUMNS, *RECEIVER_COLUMNS)
    }
    status, code, a, b = (_compact(values) for values in final_status(columns, end_reason))
    of_run = steps["run"] == int(run["index"])
    end = max(t0, *(int(columns[name].max(initial=0)) for name in STAMPS))
    return RunRecord(
        index=int(run["index"]),
        warmup=bool(run["warmup"]),
        t0_ns=t0,
        first_row=first,
        offsets_ns=plan.offsets_ns[:rows].astype(np.int64, copy=False),
        columns=columns,
        status=status,
        error_code=code,
        error_a=a,
        error_b=b,
        itl_ns=_token_gaps(log, first, columns["output_tokens"], status == Status.COMPLETED),
        steps={name: column[of_run] for name, column in steps.items()},
        after=None if plan.after is None else plan.after[:rows].astype(np.int64, copy=False),
        think_ns=None if plan.think_ns is None else plan.think_ns[:rows].astype(np.int64, copy=False),
        probes=None if probes is None else probes.of_run(t0, end),
    )


def _compact(cells: Int64Array) -> Int64Array:
    """A contiguous copy. Zeros alone, as a third of a plain run's columns, take no memory while nobody writes them."""
    return np.array(cells) if np.any(cells) else np.zeros(len(cells), dtype=np.int64)


def final_status(
    columns: Mapping[str, Int64Array], end_reason: EndReason
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """The one final status of every row with its reason code and the reason's two arguments, int64[R] each.

    The first word that exists decides: the send call's failure, then what the receiver heard, then what the harness
    wrote when it closed the session. Where nothing was written, a dead harness explains it; else the row is lost.
    """
    sent, none = columns["send_result"], np.zeros_like(columns["send_result"])
    touched = (sent != SendResult.NOT_SENT) | (columns["t_send"] != 0) | (columns["t_wire"] != 0)
    silent = Status.UNFINISHED if end_reason == EndReason.PARENT_DIED else Status.LOST
    silent_reason = Reason.PARENT_DIED if end_reason == EndReason.PARENT_DIED else Reason.NO_WORD
    conditions = [
        sent == SendResult.REFUSED,
        sent == SendResult.ERROR,
        columns["receiver_status"] != Status.NONE,
        columns["close_status"] != Status.NONE,
        touched,
    ]
    errno, heard_completed = columns["send_errno"], columns["receiver_status"] == Status.COMPLETED

    def heard(name: str) -> Int64Array:
        return np.where(heard_completed, none, columns[name])

    def choose(choices: list[Any], default: int) -> Int64Array:
        return np.asarray(np.select(conditions, choices, default), dtype=np.int64)

    return (
        choose(
            [Status.REFUSED, Status.FAILED, columns["receiver_status"], columns["close_status"], silent],
            Status.UNFINISHED,
        ),
        choose(
            [Reason.SEND_WOULD_BLOCK, Reason.SEND_ERROR, heard("error_code"), columns["close_reason"], silent_reason],
            Reason.NOT_SENT,
        ),
        choose([errno, errno, heard("error_a"), none, none], 0),
        choose([none, none, heard("error_b"), none, none], 0),
    )


def _read_steps(collector: Collector) -> dict[str, Int64Array]:
    count = min(collector.word("steps"), collector.shape.steps)
    return {name: np.ascontiguousarray(collector.steps[:count, i]) for i, name in enumerate(STEP_COLUMNS)}


def _read_token_log(collector: Collector, steps: Mapping[str, Int64Array]) -> _TokenLog:
    """Token k of the log came out of the first step whose `tokens_end` is greater than k."""
    entries = np.array(collector.tokens[: min(collector.word("tokens"), collector.shape.tokens)])
    step_of = np.searchsorted(steps["tokens_end"], np.arange(len(entries)), side="right")
    times = np.append(steps["t_tokens"], 0)[step_of]  # past the last step row: no time is known
    rows = entries >> _ROW_BITS
    order = np.argsort(rows, kind="stable")
    return _TokenLog(rows[order], (entries & _TOKEN_MASK)[order], times[order])


def _token_gaps(log: _TokenLog, first_row: int, output_tokens: Int64Array, completed: BoolArray) -> Int64Array:
    """Gaps of the completed rows whose log holds every token with a time; a row cut short would fake a gap."""
    begin, end = np.searchsorted(log.rows, (first_row, first_row + len(output_tokens)))
    rows, times = log.rows[begin:end] - first_row, log.times[begin:end]
    timed = np.bincount(rows[times != 0], minlength=len(output_tokens))
    whole = completed & (timed == output_tokens)
    same_row = (rows[1:] == rows[:-1]) & whole[rows[1:]]
    gaps: Int64Array = np.diff(times)[same_row]
    return gaps
