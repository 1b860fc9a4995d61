"""Do engine and submitter compete for a core?"""

from __future__ import annotations

from harness.checks.check import Bound, Check, CheckContext, Reading


def _shared_cores(context: CheckContext) -> Reading:
    placement = context.session.placement
    engine, submitter = placement.get("engine") or (), placement.get("submitter") or ()
    if context.session.topology == "inproc":
        return Reading(None, "submitter and engine are threads of one process, as asked")
    if not engine or not submitter:
        return Reading(None, "the cores of engine and submitter are not known")
    shared = sorted(set(engine) & set(submitter))
    if not shared:
        return Reading(0, "engine and submitter share no core", invalid_above=0)
    cores = ", ".join(map(str, shared))
    if placement.get("asked"):
        return Reading(len(shared), f"engine and submitter share core {cores}, as asked", warn_above=0)
    return Reading(len(shared), f"engine and submitter share core {cores} and nobody asked for it", invalid_above=0)


SHARED_CORE = Check(
    id="shared_core",
    name="Cores shared with engine",
    unit="cores",
    advice="The submitter's clock and the engine compete: place them apart with --engine-cores and --submitter-cores.",
    measure=_shared_cores,
    rule="V11",
    source="MLPerf Endpoints' CPU plan",
    bound=Bound.HOST,
    per_run=False,
)
