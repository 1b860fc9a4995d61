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


def _siblings(context: CheckContext) -> Reading:
    """Hyperthreads of one core compete for it; only where another placement was possible is that held against a run."""
    placement, siblings = context.session.placement, context.session.manifest.get("smt_siblings") or {}
    engine, submitter = placement.get("engine") or (), placement.get("submitter") or ()
    if not engine or not submitter or not siblings:
        return Reading(None, "the cores of engine and submitter, or their siblings, are not known")
    cores = {int(cpu): frozenset(map(int, same)) for cpu, same in siblings.items()}  # JSON has text for keys
    ours = {cpu: cores.get(int(cpu), frozenset({int(cpu)})) for cpu in (*engine, *submitter)}
    pairs = [(e, s) for e in engine for s in submitter if e != s and ours[e] == ours[s]]
    if not pairs:
        return Reading(0, "engine and submitter share no physical core")
    words = f"CPUs {pairs[0][0]} of the engine and {pairs[0][1]} of the submitter are one physical core"
    if len(set(cores.values())) < 2:
        return Reading(None, f"{words}, and this host has no other")
    return Reading(len(pairs), words)


SMT_SIBLINGS = Check(
    id="smt_siblings",
    name="Hyperthreads of one core",
    unit="pairs",
    advice="Engine and submitter slow each other down: place them on different physical cores (--engine-cores, "
    "--submitter-cores; lscpu -e shows them).",
    measure=_siblings,
    rule="V11",
    source="MLPerf Endpoints' CPU plan; siblings count as shared",
    warn_above=0.0,
    bound=Bound.HOST,
    per_run=False,
)
