"""Does the send call return at once? One that blocks makes an open loop a closed one."""

from __future__ import annotations

from harness.checks.check import Bound, Check, CheckContext, Reading


def _send_call(context: CheckContext) -> Reading:
    p99, longest = (context.measured.percentile("add_request", q) for q in (99, 100))
    if p99 is None or longest is None:
        return Reading(None, "no request was sent")
    words = f"the send call takes {p99 / 1e3:,.1f} us at p99, {longest / 1e3:,.1f} us at most"
    return Reading(p99 / 1e3, words)


SEND_CALL = Check(
    id="send_call",
    name="Send call p99",
    unit="us",
    advice="The submitter waits inside its send call, where it keeps no clock: give it a core of its own, send shorter "
    "prompts or use --pretok.",
    measure=_send_call,
    rule="V7",
    source="k6's dropped_iterations; vLLM issue 54101",
    warn_above=1000.0,
    bound=Bound.SUBMITTER,
)
