"""Coordinated omission: what the figures would hide if they counted from the send call."""

from __future__ import annotations

import numpy as np

from harness.checks.check import Bound, Check, CheckContext, Reading
from harness.measures.statistics import percentile

_FLOOR_NS = 100_000  # the lag that isorate holds itself to


def _omission_gap(context: CheckContext) -> Reading:
    """Under a cap the wait for a slot is the load's own: it counts from the slot on."""
    record = context.measured.record
    columns = record.columns
    done = record.completed & (columns["t_delivered"] != 0)
    from_slot = percentile((columns["t_delivered"] - columns["t_slot"])[done], 99)
    from_send = percentile((columns["t_delivered"] - columns["t_send"])[done], 99)
    if from_slot is None or from_send is None or from_send <= 0:
        return Reading(None, "no request has a TTFT")
    ratio = from_slot / from_send if from_slot - from_send > _FLOOR_NS else 1.0
    words = f"TTFT p99 is {from_slot / 1e6:,.2f} ms from the due time and {from_send / 1e6:,.2f} ms from the send call"
    return Reading(float(np.round(ratio, 4)), words)


OMISSION_GAP = Check(
    id="omission_gap",
    name="TTFT p99, due vs sent",
    unit="x",
    advice="The submitter was late when it mattered; isorate's TTFT shows it, a tool that counts from the send call "
    "does not: free the submitter's core before comparing.",
    measure=_omission_gap,
    rule="V9",
    source="wrk2 (200 times, its example); MLPerf LoadGen counts from the scheduled time",
    warn_above=1.01,
    bound=Bound.SUBMITTER,
)
