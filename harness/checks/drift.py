"""Does the load run away from its plan? Late once is lag; later and later is drift."""

from __future__ import annotations

import numpy as np

from harness.checks.check import Bound, Check, CheckContext, Reading
from harness.common.collector import Int64Array

_MIN_SENDS = 20
_SHARE_OF_RUN = 0.01
_LIMIT_US = 2000.0


def _drift(context: CheckContext) -> Reading:
    record = context.measured.record
    if context.reacts:
        return Reading(None, "requests wait for the ends of others: the plan sets no times")
    if context.session.schedule == "relative":
        return Reading(None, "a relative schedule drifts by definition: see its line in the figures")
    late = (record.columns["t_send"] - record.t0_ns - record.offsets_ns)[record.sent]
    if len(late) < _MIN_SENDS:
        return Reading(None, f"{len(late)} sends say nothing about a drift, {_MIN_SENDS} would")
    slope_us, deciles_us = drift_ns(late)[0] / 1e3, drift_ns(late)[1] / 1e3
    span_us = float(record.offsets_ns[-1] - record.offsets_ns[0]) / 1e3
    limit = min(_LIMIT_US, max(_SHARE_OF_RUN * span_us, DRIFT.warn_above or 0.0))
    words = f"the load drifts by {slope_us:+,.1f} us over the run (slope), {deciles_us:+,.1f} us (last tenth - first)"
    return Reading(min(abs(slope_us), abs(deciles_us)), words, warn_above=DRIFT.warn_above, invalid_above=limit)


def drift_ns(late_ns: Int64Array) -> tuple[float, float]:
    """Of lateness in order of the plan: its least-squares slope times their number, and the median of the last tenth

    less that of the first. A drift shows in both; a hiccup in the middle of a run in at most the first.
    """
    n = len(late_ns)
    place = np.arange(n) - (n - 1) / 2.0
    slope = float(place @ (late_ns - np.mean(late_ns))) / float(place @ place)
    tenth = max(n // 10, 1)
    return slope * n, float(np.median(late_ns[-tenth:]) - np.median(late_ns[:tenth]))


DRIFT = Check(
    id="drift",
    name="Drift of the load",
    unit="us",
    advice="Delays add up, so the engine gets less load the longer the run lasts: free the submitter's core, lower the "
    "rate, and report it if it stays.",
    measure=_drift,
    rule="V4",
    source="vLLM issue 21104 (-8.2 % of the rate), evalscope issue 1367",
    warn_above=250.0,
    invalid_above=_LIMIT_US,
    bound=Bound.SUBMITTER,
)
