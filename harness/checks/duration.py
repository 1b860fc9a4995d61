"""Is the run long enough for a comparison?"""

from __future__ import annotations

from harness.checks.check import Check, CheckContext, Reading
from harness.common.clock import NS_PER_S

_SHORTEST_S, _PUBLISHED_S = 20.0, 600.0


def _duration(context: CheckContext) -> Reading:
    duration = context.measured.duration_ns
    if not duration:
        return Reading(None, "no request completed")
    seconds = duration / NS_PER_S
    words = f"the run lasted {seconds:,.1f} s"
    if seconds < _PUBLISHED_S:
        words += f": declared short, MLPerf asks for {_PUBLISHED_S:.0f} s"
    if len(context.runs) < 2:
        return Reading(None, f"{words}; one run is compared with nothing")
    return Reading(_SHORTEST_S / seconds, words)


DURATION = Check(
    id="duration",
    name="Duration for comparing",
    unit="x",
    advice="Runs below 20 s show the host's moods as much as the engine: compare longer ones (--duration, "
    "--num-requests).",
    measure=_duration,
    rule="V21",
    source="MLPerf (600 s), RFC 2544, wrk2",
    warn_above=1.0,
)
