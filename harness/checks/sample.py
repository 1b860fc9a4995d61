"""Is the sample large enough, and are its values independent enough, for what is said of it?"""

from __future__ import annotations

from harness.checks.check import Check, CheckContext, Reading
from harness.measures.sampling import FLOORS, rank_lag1

_ENOUGH_RUNS = 3


def _sample_size(context: CheckContext) -> Reading:
    sampling = context.measured.sampling.get("ttft")
    if sampling is None or not sampling.count:
        return Reading(None, "no request has a TTFT")
    supported = [name.replace("_", ".") for name in FLOORS if sampling.supports(name)]
    words = f"{sampling.count:,} values of TTFT are worth {sampling.ess:,.0f} independent ones, enough for "
    words += ", ".join(supported) if supported else "no percentile"
    return Reading(FLOORS["p50"] / sampling.ess, words)


def _independence(context: CheckContext) -> Reading:
    sampling, values = context.measured.sampling.get("ttft"), context.measured.values["ttft"]
    if sampling is None or values is None or context.measured.burst:
        return Reading(None, "a burst has no order of arrival")
    lag1 = rank_lag1(values)
    if lag1 is None:
        return Reading(None, "too few different values of TTFT")
    r, p = lag1
    words = f"one in {sampling.vif:,.1f} values of TTFT is independent (rank correlation at lag 1 {r:+.3f}, p {p:.2g})"
    if len(context.runs) >= _ENOUGH_RUNS:
        return Reading(1.0, f"{words}; {len(context.runs)} runs can be compared run by run")
    return Reading(sampling.vif, words)


SAMPLE_SIZE = Check(
    id="sample_size",
    name="Sample for a median",
    unit="x",
    advice="Not even the median is known: send more requests (--num-requests), or lower the rate if the queue makes "
    "them depend on each other.",
    measure=_sample_size,
    rule="V17",
    source="MLPerf's early stopping at 99 % confidence: 11, 64, 130, 662, 6636 for p50 to p99.9",
    warn_above=1.0,
)
INDEPENDENCE = Check(
    id="independence",
    name="Dependence of TTFTs",
    unit="x",
    advice="Successive requests share one queue, so this run is little more than one observation: use --repeat-runs 3 "
    "or more and compare run by run, or lower the rate.",
    measure=_independence,
    rule="V18",
    source="Lancet (Spearman); variance inflation of M/M/1 waits: 33 at a load of 0.7, 82 at 0.8",
    warn_above=50.0,
)
