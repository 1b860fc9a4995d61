"""Did messages wait where nobody may keep them waiting: before the engine's wire thread, before the receiver's?"""

from __future__ import annotations

from harness.checks.check import Bound, Check, CheckContext, Reading

_UNREAD_FLOOR_MS, _UNREAD_SHARE = 10.0, 0.10
_DELIVERY_WARN_MS, _DELIVERY_WARN_SHARE = 1.0, 0.10
_DELIVERY_MS, _DELIVERY_SHARE = 10.0, 0.50


def _ttft_ms(context: CheckContext) -> float:
    return (context.measured.percentile("ttft", 50) or 0.0) / 1e6


def _unread(context: CheckContext) -> Reading:
    if not context.session.wire_measured:
        return Reading(None, "the wire is not measured apart from the ingress thread")
    if context.counters["wire_ring_waits"]:
        return Reading(None, "the engine was so far behind that its ring of unread messages was full: that is backlog")
    longest = context.measured.percentile("transit", 100)
    if longest is None:
        return Reading(None, "no request has a TTFT")
    limit = max(_UNREAD_FLOOR_MS, _UNREAD_SHARE * _ttft_ms(context))
    return Reading(longest / 1e6, f"a request lay unread for {longest / 1e6:,.2f} ms at most", warn_above=limit)


def _delivery(context: CheckContext) -> Reading:
    p99 = context.measured.percentile("delivery", 99)
    if p99 is None:
        return Reading(None, "no request has a TTFT")
    ttft = _ttft_ms(context)
    warn = max(_DELIVERY_WARN_MS, _DELIVERY_WARN_SHARE * ttft)
    invalid = max(_DELIVERY_MS, _DELIVERY_SHARE * ttft)
    words = f"a first token takes {p99 / 1e6:,.3f} ms at p99 from the engine's step to the receiver"
    return Reading(p99 / 1e6, words, warn_above=warn, invalid_above=invalid)


UNREAD = Check(
    id="unread",
    name="Longest unread request",
    unit="ms",
    advice="The engine's wire thread needs no GIL, so the whole process was stopped or had no core: look for what else "
    "runs there, and give the engine more cores (--engine-cores).",
    measure=_unread,
    rule="own",
    source="ours: 10 % of the median TTFT, at least 10 ms",
    bound=Bound.HOST,
)
DELIVERY = Check(
    id="delivery",
    name="Delivery p99",
    unit="ms",
    advice="Results waited for isorate's own receiver, and that wait is in TTFT: give the harness a core of its own "
    "(--harness-cores), or lower the rate.",
    measure=_delivery,
    rule="own",
    source="ours: 10 % of the median TTFT, at least 1 ms",
    bound=Bound.HOST,
)
