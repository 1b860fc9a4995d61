"""How long does a thread of the engine wait for the GIL?"""

from __future__ import annotations

from harness.checks.check import Bound, Check, CheckContext, Reading
from harness.common.clock import NS_PER_MS
from harness.measures.statistics import percentile

_WARN_MS, _LIMIT_MS = 1.0, 5.0
_SHARE_OF_TTFT = 0.10
_WARN_SHARE = 5.0


def _wait(context: CheckContext) -> Reading:
    probes = context.measured.record.probes
    p99 = None if probes is None else percentile(probes.gil.duration_ns, 99)
    if probes is None or p99 is None:
        return Reading(None, "the probes are off" if probes is None else "the probe never looked")
    ttft = (context.measured.percentile("ttft", 50) or 0.0) / NS_PER_MS
    warn = min(max(_WARN_MS, 0.01 * ttft), _LIMIT_MS)
    limit = max(_LIMIT_MS, _SHARE_OF_TTFT * ttft)
    longest = float(probes.gil.duration_ns.max()) / NS_PER_MS
    words = f"the engine's GIL takes {p99 / NS_PER_MS:.3f} ms to get at p99, {longest:.2f} ms at most"
    if p99 / NS_PER_MS > limit:
        words += ": the engine is bound by its own Python"
    return Reading(p99 / NS_PER_MS, words, warn_above=warn, invalid_above=limit)


def _share(context: CheckContext) -> Reading:
    probes = context.measured.record.probes
    if probes is None or not probes.wall_ns:
        return Reading(None, "the probes are off")
    share = 100.0 * float(probes.gil.duration_ns.sum()) / probes.wall_ns
    return Reading(share, f"the probe waited for the engine's GIL for {share:.2f} % of the run")


GIL_WAIT = Check(
    id="gil_wait",
    name="GIL wait p99",
    unit="ms",
    advice="Python code in the engine keeps the GIL from the thread that takes requests in: see which one with py-spy, "
    "try --switch-interval-ms 1 and --tokenize-call encode_batch.",
    measure=_wait,
    rule="V15",
    source="CPython's switch interval (5 ms); gilknocker; MLPerf Endpoints (6.2 ms)",
    warn_above=_WARN_MS,
    invalid_above=_LIMIT_MS,
    bound=Bound.ENGINE,
)
GIL_SHARE = Check(
    id="gil_share",
    name="Time waiting for the GIL",
    unit="%",
    advice="Threads of the engine stand in line for the GIL: move tokenization out (--pretok, --tokenize-call "
    "encode_batch), and look for Python loops in the engine.",
    measure=_share,
    rule="V15",
    source="gilknocker; ours: 5 %",
    warn_above=_WARN_SHARE,
    bound=Bound.ENGINE,
)
