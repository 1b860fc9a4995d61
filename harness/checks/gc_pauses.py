"""Did Python collect garbage while it was measured?"""

from __future__ import annotations

from harness.checks.check import Bound, Check, CheckContext, Reading
from harness.common.clock import NS_PER_MS

_WARN_MS, _LIMIT_MS = 1.0, 5.0
_SHARE_OF_TTFT = 0.10


def _engine(context: CheckContext) -> Reading:
    probes = context.measured.record.probes
    if probes is None:
        return Reading(None, "the probes are off")
    pauses = probes.gc_engine.duration_ns
    longest = float(pauses.max(initial=0)) / NS_PER_MS
    ttft = (context.measured.percentile("ttft", 50) or 0.0) / NS_PER_MS
    limit = max(_LIMIT_MS, _SHARE_OF_TTFT * ttft)
    words = f"the engine collected garbage {len(pauses):,} times, for {longest:.2f} ms at most"
    return Reading(longest, words, warn_above=min(max(_WARN_MS, 0.01 * ttft), _LIMIT_MS), invalid_above=limit)


def _submitter(context: CheckContext) -> Reading:
    probes = context.measured.record.probes
    if probes is None:
        return Reading(None, "the probes are off")
    count = len(probes.gc_submitter.duration_ns)
    return Reading(count, f"the submitter collected garbage {count:,} times while it sent")


GC_ENGINE = Check(
    id="gc_engine",
    name="Longest GC pause, engine",
    unit="ms",
    advice="Everything in the engine stood still meanwhile: make less garbage in a backend of your own, or try "
    "--gc off.",
    measure=_engine,
    rule="V16",
    source="pyperf's and MLPerf Endpoints' GC settings",
    warn_above=_WARN_MS,
    invalid_above=_LIMIT_MS,
    bound=Bound.ENGINE,
)
GC_SUBMITTER = Check(
    id="gc_submitter",
    name="GC pauses, submitter",
    unit="pauses",
    advice="The submitter's collector is off while it sends, so this is a fault of isorate: report it.",
    measure=_submitter,
    rule="V16",
    source="ours: none",
    warn_above=0.0,
    bound=Bound.SUBMITTER,
)
