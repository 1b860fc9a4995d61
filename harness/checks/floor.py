"""How much of TTFT is the path itself? The floor is that of the null engine on this host."""

from __future__ import annotations

from harness.checks.check import Bound, Check, CheckContext, Reading


def _floor(context: CheckContext) -> Reading:
    floor_ns = context.session.floor.get("ttft_p99_ns")
    if floor_ns is None:
        return Reading(None, "no floor of this host is recorded: `isorate selftest` measures it")
    if context.session.engine.get("model") == "null":
        return Reading(None, "the null engine is the floor")
    ttft = context.measured.percentile("ttft", 50)
    if not ttft:
        return Reading(None, "no request has a TTFT")
    share = 100.0 * float(floor_ns) / ttft
    return Reading(
        share, f"the path without an engine takes {float(floor_ns) / 1e3:,.0f} us at p99, {share:.2f} % of TTFT"
    )


FLOOR = Check(
    id="floor",
    name="Path's floor of TTFT",
    unit="%",
    advice="A part of TTFT is isorate's own path on this host: subtract nothing, and compare only runs on this host, "
    "or measure an engine that takes longer.",
    measure=_floor,
    rule="V8",
    source="MLPerf LoadGen's null system, Endpoints' MaxThroughputServer",
    warn_above=1.0,
    invalid_above=10.0,
    bound=Bound.HOST,
)
