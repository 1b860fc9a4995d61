"""summary.json: everything that a script or the terminal summary says of a session (DESIGN section 7)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.checks.verdict import Verdict
from harness.common.plan_file import LoadPlan
from harness.measures.ledger import Audit
from harness.measures.metrics import RunMetrics
from harness.measures.records import SessionRecords
from harness.report.session_info import SessionInfo
from harness.report.strict_json import strict

SCHEMA = "isorate.summary/1"


def build_summary(
    info: SessionInfo,
    plan: LoadPlan,
    records: SessionRecords,
    runs: Sequence[RunMetrics],
    verdict: Verdict,
    audit: Audit,
    folder: Path,
) -> dict[str, Any]:
    """The strict-JSON-able summary. Times are in ms unless a name says otherwise; None means not measured."""
    summary = {
        "schema": SCHEMA,
        "run_id": info.run_id,
        "command": info.command_line,
        "folder": str(folder),
        "ended": records.end_reason.word,
        "end_detail": info.end_detail,
        "config": info.config,
        "manifest": info.manifest,
        "plan": _plan(info, plan, runs),
        "engine": info.engine,
        "host": {
            "placement": info.placement,
            "pacer": info.pacer,
            "wire": info.wire,
            "isolation": info.isolation,
        },
        "verdict": verdict.to_json(),
        "runs": [run.to_json() for run in runs],
        "not_started": records.not_started,
        "violations": {"count": audit.count, "examples": [str(violation) for violation in audit.examples]},
        "counters": records.counters,
        "stderr_tails": info.stderr_tails,
    }
    strict_summary: dict[str, Any] = strict(summary)
    return strict_summary


def _plan(info: SessionInfo, plan: LoadPlan, runs: Sequence[RunMetrics]) -> dict[str, Any]:
    """The plan's description; the prompt tokens of a raw plan are known once the engine has counted all of them."""
    tokens = info.plan.get("prompt_tokens")
    if tokens is None and plan.prompt_ids is not None:
        tokens = len(plan.prompt_ids)
    counted = [run.tokens["prompt_all"] for run in runs if _all_counted(run, plan)]
    if tokens is None and counted:
        tokens = counted[0]
    return {
        **info.plan,
        "sha256": info.plan.get("sha256") or plan.sha256(),
        "num_requests": plan.num_requests,
        "nominal_rate": info.plan.get("nominal_rate"),
        "schedule": info.schedule,
        "prompt_tokens": tokens,
        "pretokenized": plan.pretokenized,
    }


def _all_counted(run: RunMetrics, plan: LoadPlan) -> bool:
    columns = run.record.columns
    return run.record.rows == plan.num_requests and bool((columns["prompt_tokens"] > 0).all())
