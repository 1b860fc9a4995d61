"""What a load that reacts must keep to: due after the predecessor's end, and no more in flight than the cap."""

from __future__ import annotations

import numpy as np

from harness.common.collector import Int64Array
from harness.common.plan_file import LoadPlan
from harness.common.stamps import SendResult
from harness.measures.records import RunRecord


def gated_due(record: RunRecord) -> Int64Array:
    """int64[R] ns: when each request was due by its gate or its offset; 0 where its predecessor's end is not known.

    A refused predecessor had ended when its send call returned.
    """
    due = record.t0_ns + record.offsets_ns
    if record.after is None or record.think_ns is None:
        return due
    unsent = record.columns["send_result"] == SendResult.REFUSED
    ended = np.where(unsent, record.columns["t_sent"], record.columns["t_ended"])[record.after]
    gated = np.where(ended == 0, 0, ended + record.think_ns)
    return np.where(record.after < 0, due, gated)


def in_flight_at_send(record: RunRecord) -> Int64Array:
    """int64[R]: sent requests without a word of their end right after each one's `t_send`; 0 where it was not sent."""
    sends, sent = record.columns["t_send"], record.sent
    ends = np.sort(record.columns["t_ended"][sent & (record.columns["t_ended"] != 0)])
    begun = np.searchsorted(np.sort(sends[sent]), sends, side="right")
    return np.where(sent, begun - np.searchsorted(ends, sends, side="right"), 0)


def longest_gap_ns(plan: LoadPlan, rows: int) -> int:
    """Longest pause that the first `rows` requests plan between two sends while nothing is in flight."""
    offsets = plan.offsets_ns[:rows]
    if plan.after is None or plan.think_ns is None:
        return int(np.diff(offsets, prepend=0).max(initial=0))
    own = offsets[plan.after[:rows] < 0]
    return int(max(np.diff(own, prepend=0).max(initial=0), plan.think_ns[:rows].max(initial=0)))
