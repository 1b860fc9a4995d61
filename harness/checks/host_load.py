"""Did others use our CPUs: the hypervisor, other processes, the control group's limit?"""

from __future__ import annotations

from harness.checks.check import Bound, Check, CheckContext, Reading
from harness.common.clock import NS_PER_MS

_TICK_NS = 10 * NS_PER_MS  # of /proc/stat
_WARN, _INVALID = 2.0, 10.0


def _steal(context: CheckContext) -> Reading:
    probes = context.measured.record.probes
    share = None if probes is None else probes.steal_share
    if share is None:
        return Reading(None, "the CPUs' times were not read")
    return Reading(100.0 * share, f"the hypervisor gave {100.0 * share:.3f} % of our CPUs' time to others")


def _others(context: CheckContext) -> Reading:
    """Ticks bound what can be told: two of them a CPU are allowed."""
    probes = context.measured.record.probes
    if probes is None or probes.others_ns is None:
        return Reading(None, "the CPUs' times were not read")
    whole = sum(cpu.wall_ns for cpu in probes.cpus)
    share = 100.0 * max(probes.others_ns, 0) / whole
    coarse = 100.0 * 2 * _TICK_NS * len(probes.cpus) / whole
    words = f"other processes used {share:.2f} % of our CPUs' time"
    return Reading(share, words, warn_above=_WARN + coarse, invalid_above=_INVALID + coarse)


def _throttled(context: CheckContext) -> Reading:
    probes = context.measured.record.probes
    if probes is None or probes.throttled_ns is None or probes.throttled_periods is None:
        return Reading(None, "the control group's counters were not read")
    share = 100.0 * probes.throttled_ns / probes.wall_ns if probes.wall_ns else 0.0
    return Reading(share, f"the control group's CPU limit stopped us in {probes.throttled_periods:,} periods")


STEAL = Check(
    id="steal",
    name="Stolen CPU time",
    unit="%",
    advice="The hypervisor runs others on our CPUs: use a machine with dedicated cores, or another hour.",
    measure=_steal,
    rule="V11",
    source="ours: 0.1 and 1 %; MLPerf Endpoints' CPU plan",
    warn_above=0.1,
    invalid_above=1.0,
    bound=Bound.HOST,
)
OTHER_LOAD = Check(
    id="other_load",
    name="Other load on our CPUs",
    unit="%",
    advice="End what else runs here (top shows it), or keep it off our cores (taskset, --engine-cores, "
    "--submitter-cores).",
    measure=_others,
    rule="V11",
    source="ours: 2 and 10 %, and two clock ticks a CPU",
    warn_above=_WARN,
    invalid_above=_INVALID,
    bound=Bound.HOST,
)
THROTTLED = Check(
    id="throttled",
    name="Stopped by a CPU limit",
    unit="%",
    advice="A container's CPU limit stopped our processes for a part of each period: raise it, or pin whole CPUs.",
    measure=_throttled,
    rule="V11",
    source="ours: a limit that acts is a load that was not planned",
    warn_above=0.0,
    invalid_above=1.0,
    bound=Bound.HOST,
)
