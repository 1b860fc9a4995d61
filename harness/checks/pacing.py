"""Did the load leave when the plan said? Submit lag against what is measured, against the gap, and the offered rate."""

from __future__ import annotations

import numpy as np

from harness.checks.check import Bound, Check, CheckContext, Reading
from harness.common.clock import NS_PER_S
from harness.metrics import offered_rate

_FLOOR_US = 100.0
_SHARE_OF_TTFT = 0.10
_RATE_LIMIT_PERCENT = 2.0


def _lag_p99_us(context: CheckContext) -> float | None:
    lag = context.measured.percentile("submit_lag", 99)
    return None if lag is None else lag / 1e3


def _submit_lag(context: CheckContext) -> Reading:
    lag, ttft = _lag_p99_us(context), context.measured.percentile("ttft", 50)
    if lag is None:
        return Reading(None, "no request was sent")
    limit = max(_FLOOR_US, _SHARE_OF_TTFT * (ttft or 0.0) / 1e3)
    words = f"the submit lag is {lag:,.1f} us at p99 where {limit:,.0f} us are allowed"
    return Reading(lag, words, invalid_above=limit)


def _lag_of_gap(context: CheckContext) -> Reading:
    if context.measured.record.gated:
        return Reading(None, "a closed loop plans no gaps")
    lag, offsets = _lag_p99_us(context), context.measured.record.offsets_ns
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
    allows = "and its cap allow" if capped else "says"
    words = f"{offered:,.2f} requests/s were offered where the plan {allows} {planned:,.2f}, {error:.3f} % off"
    return Reading(error, words, invalid_above=_RATE_LIMIT_PERCENT)


SUBMIT_LAG = Check(
    id="submit_lag",
    name="Submit lag p99",
    unit="us",
    advice="The clock of the load was late by more than the result can bear: give the submitter a core of its own "
    "(--submitter-cores), lower the rate, or use --pacer compiled.",
    measure=_submit_lag,
    bound=Bound.SUBMITTER,
)
LAG_OF_GAP = Check(
    id="submit_lag_gap",
    name="Submit lag p99 vs mean gap",
    unit="us",
    advice="Requests left later than the next one was due, so the arrival pattern is not the planned one: lower the "
    "rate, or free the submitter's core.",
    measure=_lag_of_gap,
    bound=Bound.SUBMITTER,
)
OFFERED_RATE = Check(
    id="offered_rate",
    name="Offered rate error",
    unit="%",
    advice="The engine did not get the planned load: lower the rate, or give the submitter a core of its own.",
    measure=_rate_error,
    bound=Bound.SUBMITTER,
)
