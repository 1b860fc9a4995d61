"""What the probes cost: their own CPU time in this run, which bounds what they can take from the engine."""

from __future__ import annotations

from harness.checks.check import Check, CheckContext, Reading
from harness.common.probes import gil, hiccup

_PROBES = (gil.NAME, hiccup.NAME)


def _cost(context: CheckContext) -> Reading:
    probes = context.measured.record.probes
    if probes is None:
        return Reading(None, "the probes are off")
    sampled = [use for use in probes.threads if use.name in _PROBES and use.wall_ns]
    if not sampled:
        return Reading(None, "the probes' threads were not sampled")
    share = 100.0 * sum(use.cpu_ns / use.wall_ns for use in sampled)
    words = f"the probes' threads used {share:.2f} % of one core; what that does to TTFT was not measured in this run"
    return Reading(share, words)


OBSERVER = Check(
    id="observer",
    name="CPU time of the probes",
    unit="%",
    advice="The probes run more often than they should on this host: compare with --probes off "
    "(benchmarks/observer_effect.py does).",
    measure=_cost,
    rule="V25",
    source="MLPerf TEST01 (10 %); gilknocker (1.5 %)",
    warn_above=3.0,
    invalid_above=10.0,
)
