"""Is every request accounted for? Lost, refused and missing ones, and tokens that both sides count alike."""

from __future__ import annotations

import numpy as np

from harness.checks.check import Bound, Check, CheckContext, Reading
from harness.common.stamps import SendResult


def _requests(count: int, what: str) -> str:
    return f"{count:,} request{' was' if count == 1 else 's were'} {what}"


def _lost(context: CheckContext) -> Reading:
    count = context.measured.counts["lost"]
    return Reading(count, _requests(count, "lost"), invalid_above=0)


def _refused(context: CheckContext) -> Reading:
    count = context.measured.counts["refused"]
    return Reading(count, _requests(count, "refused by the send call"), invalid_above=0)


def _missing(context: CheckContext) -> Reading:
    """Requests without a result. The figures are of the others, and those are seldom the slow ones."""
    if not context.runs:
        return Reading(1, f"no measured run was started (the session ended: {context.ended})", invalid_above=0)
    missing = sum(run.counts[word] for run in context.runs for word in ("failed", "aborted", "unfinished"))
    if not any(run.counts["completed"] for run in context.runs):
        return Reading(max(missing, 1), "no request completed, nothing was measured", warn_above=0)
    return Reading(missing, _requests(missing, "left without a result"), warn_above=0)


def _token_count(context: CheckContext) -> Reading:
    record = context.measured.record
    if not record.completed.any():
        return Reading(None, "no request completed")
    columns = record.columns
    differs = record.completed & (columns["received_tokens"] != columns["output_tokens"])
    count, first = int(differs.sum()), int(np.argmax(differs))
    words = _requests(count, "completed with another number of tokens received than made")
    return Reading(count, f"{words} (the first is request {first})" if count else words, invalid_above=0)


def _counters(context: CheckContext) -> Reading:
    """What the submitters counted against what the rows say; a killed process may have died between the two."""
    if context.ended not in ("done", "drain_timeout", "interrupted"):
        return Reading(None, f"the session ended by {context.ended.replace('_', ' ')}")
    rows = [run.record for run in (*context.warmups, *context.runs)]
    sent = sum(int(record.sent.sum()) for record in rows)
    refused = sum(int(np.equal(record.columns["send_result"], SendResult.REFUSED).sum()) for record in rows)
    counted_sent, counted_refused = context.counters["sent"], context.counters["refused"]
    words = f"the submitter counted {counted_sent:,} sent and {counted_refused:,} refused, its rows say {sent:,} and "
    words += f"{refused:,}"
    return Reading(abs(counted_sent - sent) + abs(counted_refused - refused), words)


LOST = Check(
    id="lost",
    name="Requests lost",
    unit="requests",
    advice="No word came of them, which is a fault of isorate: keep the result folder and report it.",
    measure=_lost,
    rule="V14",
    source="MLPerf LoadGen's errors: one end a request",
)
REFUSED = Check(
    id="refused",
    name="Requests refused",
    unit="requests",
    advice="The send call would have blocked, so the load was not the planned one: see whether the engine died or "
    "stopped reading, and look at the machine's free memory.",
    measure=_refused,
    rule="V7",
    source="k6's dropped_iterations; vLLM issue 54101",
    bound=Bound.ENGINE,
)
MISSING = Check(
    id="missing",
    name="Requests without result",
    unit="requests",
    advice="The figures are of the requests that completed, which flatters: read the status counts and the error "
    "column of requests.csv, or allow more time with --drain-timeout.",
    measure=_missing,
    rule="V14",
    source="MLPerf LoadGen's errors: one end a request",
    per_run=False,
)
COUNTERS = Check(
    id="counters",
    name="Counters that differ",
    unit="requests",
    advice="Two accounts of one load disagree, a fault of isorate: keep the result folder and report it.",
    measure=_counters,
    rule="V14",
    source="ours: two accounts of one load",
    invalid_above=0.0,
    per_run=False,
)
TOKEN_COUNT = Check(
    id="token_count",
    name="Token counts that differ",
    unit="requests",
    advice="Engine and receiver disagree about what was delivered, a fault of the engine backend or of isorate: "
    "keep the result folder and report it.",
    measure=_token_count,
    rule="V14",
    source="MLPerf TEST06",
)
