"""Does the result say all that one needs to repeat it?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.checks.check import Check, CheckContext, Reading

#: What must be recorded, by its path in summary.json's words. "unknown" counts: the host was asked and does not say.
_REQUIRED = (
    "manifest.kernel", "manifest.cpu", "manifest.governors", "manifest.idle_states", "manifest.clocksource",
    "manifest.python", "manifest.gil", "manifest.versions", "manifest.processes.engine.timer_slack_ns",
    "manifest.processes.engine.sched_policy", "manifest.processes.engine.switch_interval_ms",
    "manifest.clocks.engine.offset_bound_ns", "placement.engine", "placement.submitter", "placement.harness",
    "pacer.name", "pacer.wait", "engine.model", "engine.dtype", "engine.device", "plan.schedule",
    "config.seed", "config.engine",
)  # fmt: skip


def missing_fields(context: CheckContext) -> list[str]:
    """The required fields that a session does not have."""
    session = context.session
    whole = {
        "manifest": session.manifest,
        "placement": session.placement,
        "pacer": session.pacer,
        "engine": session.engine,
        "plan": session.plan,
        "config": session.config,
    }
    on_gpu = str(session.engine.get("device", "")).startswith("cuda")
    return [path for path in (*_REQUIRED, *(("manifest.gpus",) if on_gpu else ())) if _at(whole, path) is None]


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _manifest(context: CheckContext) -> Reading:
    missing = missing_fields(context)
    if not missing:
        return Reading(0, "everything that a repetition needs is recorded")
    return Reading(len(missing), f"not recorded: {', '.join(missing)}")


MANIFEST = Check(
    id="manifest",
    name="Manifest, fields missing",
    unit="fields",
    advice="The run cannot be repeated from its result alone: a backend of your own says its part in `describe()`; "
    "report others.",
    measure=_manifest,
    rule="V26",
    source="IETF benchmarking methodology's MUST list; pyperf's metadata",
    warn_above=0.0,
    per_run=False,
)
