"""CUDA graphs belong into warm-up: capturing one takes far longer than the step that it is for."""

from __future__ import annotations

from harness.checks.check import Bound, Check, CheckContext, Reading


def _late_captures(context: CheckContext) -> Reading:
    count = context.counters["late_captures"]
    if not count and not context.session.engine.get("cuda_graph"):
        return Reading(None, "the engine uses no CUDA graphs")
    return Reading(count, f"{count} CUDA graphs were captured after warm-up", warn_above=0)


LATE_CAPTURES = Check(
    id="late_captures",
    name="CUDA graphs captured late",
    unit="graphs",
    advice="The steps that captured them are in the figures and took much longer than others, a fault of the engine "
    "backend: report the batch sizes, or measure with --cuda-graph off.",
    measure=_late_captures,
    rule="own",
    source="ours: captures belong into warm-up",
    bound=Bound.ENGINE,
    per_run=False,
)
