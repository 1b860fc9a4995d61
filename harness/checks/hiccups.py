"""Was the host late for a thread that does nothing? Longest hiccup, and how many windows held a long one."""

from __future__ import annotations

import numpy as np

from harness.checks.check import Bound, Check, CheckContext, Reading
from harness.common.clock import NS_PER_MS
from harness.measures.contention import Pauses

_SHORT_MS, _LONG_MS = 1.0, 10.0
_SHARE_OF_TTFT = 0.10
_WINDOW_NS = NS_PER_MS  # the monitor sleeps 1 ms at a time


def _pauses(context: CheckContext) -> Pauses | None:
    probes = context.measured.record.probes
    return None if probes is None else probes.hiccups


def _longest(context: CheckContext) -> Reading:
    """A hiccup matters against what is measured: 10 % of the median TTFT, but 1 ms at least and 10 ms at most."""
    pauses = _pauses(context)
    if pauses is None:
        return Reading(None, "the probes are off")
    longest = float(pauses.duration_ns.max(initial=0)) / NS_PER_MS
    ttft = (context.measured.percentile("ttft", 50) or 0.0) / NS_PER_MS
    limit = min(max(_SHORT_MS, _SHARE_OF_TTFT * ttft), _LONG_MS)
    count = int((pauses.duration_ns > limit * NS_PER_MS).sum())
    words = f"a thread that only sleeps was up to {longest:.2f} ms late"
    if count:
        words += f", {count:,} times over {limit:.1f} ms, and {_hit(context, pauses, limit):,} requests were under way"
    return Reading(longest, words, warn_above=limit)


def _hit(context: CheckContext, pauses: Pauses, limit_ms: float) -> int:
    """Requests whose TTFT overlaps a hiccup above the limit."""
    columns = context.measured.record.columns
    known = columns["t_delivered"] != 0
    long = pauses.duration_ns > limit_ms * NS_PER_MS
    starts, ends = pauses.start_ns[long], (pauses.start_ns + pauses.duration_ns + pauses.run_delay_ns)[long]
    order = np.argsort(ends)
    first = np.searchsorted(ends[order], columns["t_intended"][known], side="right")
    begun = np.append(np.minimum.accumulate(starts[order][::-1])[::-1], np.iinfo(np.int64).max)
    return int((begun[first] < columns["t_delivered"][known]).sum())


def _share(context: CheckContext) -> Reading:
    pauses, probes = _pauses(context), context.measured.record.probes
    if pauses is None or probes is None or not probes.wall_ns:
        return Reading(None, "the probes are off")
    long = int((pauses.duration_ns > _LONG_MS * NS_PER_MS).sum())
    share = 100.0 * long / (probes.wall_ns / _WINDOW_NS)
    return Reading(share, f"{long:,} windows of 1 ms held a hiccup above {_LONG_MS:.0f} ms")


HICCUPS = Check(
    id="hiccups",
    name="Longest host hiccup",
    unit="ms",
    advice="The host stopped everything for a moment: those requests' figures are the host's (`contention` in "
    "summary.json says when); run where less else runs, or on a tuned kernel.",
    measure=_longest,
    rule="V12",
    source="jHiccup, JLBH",
    warn_above=_LONG_MS,
    bound=Bound.HOST,
)
HICCUP_SHARE = Check(
    id="hiccup_share",
    name="Windows with a long hiccup",
    unit="%",
    advice="This host stops too often to measure on: use another one, or another hour.",
    measure=_share,
    rule="V12",
    source="jHiccup; ours: 0.1 % of windows",
    invalid_above=0.1,
    bound=Bound.HOST,
)
