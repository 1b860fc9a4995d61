"""Did the load leave when the plan said? Submit lag against what is measured, against the gap, and the offered rate."""

from __future__ import annotations

import numpy as np

from harness.checks.check import Bound, Check, CheckContext, Reading
from harness.common.clock import NS_PER_S
from harness.measures.metrics import offered_rate

_FLOOR_US = 100.0  # what isorate holds itself to: below it lag is judged against nothing
_SHARE_OF_TTFT = 0.10
_WARN_US, _WARN_SHARE_OF_TTFT = 1000.0, 0.01
_RATE_WARN_PERCENT, _RATE_LIMIT_PERCENT = 0.1, 2.0


def _lag_us(context: CheckContext, q: float) -> float | None:
    lag = context.measured.percentile("submit_lag", q)
    return None if lag is None else lag / 1e3


def _ttft_us(context: CheckContext) -> float:
    return (context.measured.percentile("ttft", 50) or 0.0) / 1e3


def _submit_lag(context: CheckContext) -> Reading:
    p50, p99, p99_9, longest = (_lag_us(context, q) for q in (50, 99, 99.9, 100))
    if p99 is None:
        return Reading(None, "no request was sent")
    limit = max(_FLOOR_US, _SHARE_OF_TTFT * _ttft_us(context))
    warn = min(limit, max(_WARN_US, _WARN_SHARE_OF_TTFT * _ttft_us(context)))
    words = (
        f"the submit lag is {p99:,.1f} us at p99 where {limit:,.0f} us are allowed "
        f"(p50 {p50:,.1f}, p99.9 {p99_9:,.1f}, max {longest:,.1f} us)"
    )
    return Reading(p99, words, warn_above=warn, invalid_above=limit)


def _submit_lag_p50(context: CheckContext) -> Reading:
    lag = _lag_us(context, 50)
    return Reading(lag, "no request was sent" if lag is None else f"half the requests leave {lag:,.1f} us late or more")


def _lag_share(context: CheckContext) -> Reading:
    lag, ttft = _lag_us(context, 99), _ttft_us(context)
    if lag is None or not ttft:
        return Reading(None, "no request was sent" if lag is None else "no request has a TTFT")
    share = 100.0 * lag / ttft
    if lag <= _FLOOR_US:
        return Reading(0.0, f"the submit lag of {lag:,.1f} us at p99 is below {_FLOOR_US:,.0f} us")
    return Reading(share, f"the submit lag at p99 is {share:.2f} % of the median TTFT")


def _lag_of_gap(context: CheckContext) -> Reading:
    if context.measured.record.gated:
        return Reading(None, "a closed loop plans no gaps")
    lag, offsets = _lag_us(context, 99), context.measured.record.offsets_ns
    gap = float(offsets[-1] - offsets[0]) / max(len(offsets) - 1, 1) / 1e3 if len(offsets) else 0.0
    if lag is None or gap == 0.0:
        return Reading(None, "the plan has no gaps between requests" if gap == 0.0 else "no request was sent")
    return Reading(lag, f"the submit lag is {lag:,.1f} us at p99, the mean gap is {gap:,.1f} us", warn_above=gap)


def _rate_error(context: CheckContext) -> Reading:
    """The plan's own rate over the requests that were sent, so that a run cut short is judged on what it sent.

    Under a cap: the rate at which the cap let requests go (`t_slot`); the plan's own is not the submitter's to keep.
    """
    record = context.measured.record
    if record.gated:
        return Reading(None, "a closed loop promises no rate: requests wait for the ends of others")
    capped = context.session.plan.get("max_concurrency") is not None
    offered = offered_rate(record.columns["t_send"][record.sent])
    planned_ns = np.sort(record.columns["t_slot"][record.sent]) if capped else record.offsets_ns[record.sent]
    span = int(planned_ns[-1] - planned_ns[0]) if len(planned_ns) else 0
    if context.session.schedule == "relative":
        return Reading(None, "a relative schedule promises no rate")
    if offered is None or span == 0:
        return Reading(None, "the plan has no rate" if span == 0 else "fewer than two requests were sent")
    planned = (len(planned_ns) - 1) * NS_PER_S / span
    error = float(np.abs(offered / planned - 1.0)) * 100.0
    by_lag = 100.0 * _WARN_US * 1e3 / span  # what an allowed lag of the last request makes of a short run
    warn = min(max(_RATE_WARN_PERCENT, by_lag), _RATE_LIMIT_PERCENT)
    allows = "and its cap allow" if capped else "says"
    words = f"{offered:,.2f} requests/s were offered where the plan {allows} {planned:,.2f}, {error:.3f} % off"
    return Reading(error, words, warn_above=warn, invalid_above=_RATE_LIMIT_PERCENT)


SUBMIT_LAG = Check(
    id="submit_lag",
    name="Submit lag p99",
    unit="us",
    advice="The clock of the load was late by more than the result can bear: give the submitter a core of its own "
    "(--submitter-cores), lower the rate, or use --pacer compiled; --wait spin where the host wakes sleepers late, as "
    "virtual machines do.",
    measure=_submit_lag,
    rule="V1",
    source="MLPerf LoadGen's trace (p50 62 us), Endpoints (65 to 1772 us), wrk2 (1 ms)",
    bound=Bound.SUBMITTER,
)
SUBMIT_LAG_P50 = Check(
    id="submit_lag_p50",
    name="Submit lag p50",
    unit="us",
    advice="The pacer is late as a rule, not by chance: use --wait hybrid or --pacer compiled, and give the submitter "
    "a core of its own.",
    measure=_submit_lag_p50,
    rule="V1",
    source="inference-perf's guidance (median below 10 ms); 150 us on an untuned host is ours",
    warn_above=150.0,
    invalid_above=10_000.0,
    bound=Bound.SUBMITTER,
)
LAG_SHARE = Check(
    id="lag_share",
    name="Submit lag of TTFT",
    unit="%",
    advice="The generator's own delay is a part of the figure that matters: give the submitter a core of its own "
    "(--submitter-cores), lower the rate, or use --pacer compiled.",
    measure=_lag_share,
    rule="V2",
    source="ours: p99 lag within 1 % of what is measured",
    warn_above=1.0,
    invalid_above=10.0,
    bound=Bound.SUBMITTER,
)
LAG_OF_GAP = Check(
    id="submit_lag_gap",
    name="Submit lag p99 vs mean gap",
    unit="us",
    advice="Requests left later than the next one was due, so the arrival pattern is not the planned one: lower the "
    "rate, or free the submitter's core.",
    measure=_lag_of_gap,
    rule="own",
    source="ours: a lag above the gap changes the order of arrivals",
    bound=Bound.SUBMITTER,
)
OFFERED_RATE = Check(
    id="offered_rate",
    name="Offered rate error",
    unit="%",
    advice="The engine did not get the planned load: lower the rate, or give the submitter a core of its own.",
    measure=_rate_error,
    rule="V3",
    source="MLPerf audit (2 %), evalscope (1 to 2 %), Lancet (10 %)",
    bound=Bound.SUBMITTER,
)
