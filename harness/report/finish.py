"""The end of a session: from the collector to a judged report in a result folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.checks.check import CheckContext
from harness.checks.limits import Limits
from harness.checks.registry import CHECKS
from harness.checks.verdict import judge
from harness.common.collector import Collector
from harness.common.errors import ConfigError, RunError
from harness.common.plan_file import LoadPlan
from harness.common.stamps import LEDGERS, SEPARATE_LEDGER, EndReason
from harness.config.slo_text import Slo
from harness.measures.contention import PROBES_FILE
from harness.measures.ledger import MAX_EXAMPLES, Audit, Violation
from harness.measures.metrics import Conditions, RunMetrics, measure_run
from harness.measures.records import SessionRecords, read_outputs, read_session
from harness.plan.arrival_spec import ArrivalSpec
from harness.plan.processes import schedule_of
from harness.plan.schedules import Schedule
from harness.report.folder import publish, write_file
from harness.report.memory import memory_json
from harness.report.outputs import write_outputs
from harness.report.requests_csv import MAX_CSV_ROWS, write_requests_csv
from harness.report.session_info import SESSION_FILE, SessionInfo
from harness.report.steps_file import STEPS_FILE, write_steps
from harness.report.strict_json import strict_dumps
from harness.report.summary import build_summary

REQUEST_FILES = ("requests.csv", "requests.parquet")
_KILLED = (EndReason.PARENT_DIED, EndReason.ENGINE_DIED, EndReason.SUBMITTER_DIED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a session.

    counts: requests by `planned`, `sent` and terminal status, over the measured runs. violations: of the stamp chains,
    at most MAX_EXAMPLES of `violation_count`. folder: where the report is.
    """

    summary: Mapping[str, Any]
    verdict: str
    ended: EndReason
    counts: Mapping[str, int]
    violations: tuple[Violation, ...]
    violation_count: int
    folder: Path


def finish_session(
    collector: Collector,
    plan: LoadPlan,
    info: SessionInfo,
    staging: Path,
    final: Path,
    texts: Mapping[int, str] | None = None,
) -> Outcome:
    """Build the whole report in `staging` (which exists) and name it `final`.

    texts: output text by collector row; outputs.jsonl is written where it is given or the config has `save_outputs`.
    Raises RunError where a file cannot be written; then the collector still holds everything, and its path is named.
    """
    records = read_session(collector, plan)
    ledger = LEDGERS.get(info.topology, SEPARATE_LEDGER)
    runs = [measure_run(record, ledger, conditions(info, records)) for record in records.runs]
    measured = tuple(run for run in runs if not run.record.warmup)
    audit = _merge([run.audit for run in runs])
    warmups = tuple(run for run in runs if run.record.warmup)
    context = CheckContext(info, records.counters, measured, audit, records.end_reason.word, warmups=warmups)
    verdict = judge(CHECKS, context, _limits(info))
    summary = build_summary(info, plan, records, runs, verdict, audit, final)
    summary["memory"] = memory_json(info, collector.shape)
    _write(collector, plan, info, records, summary, staging, texts)
    publish(staging, final, _kept(collector))
    return Outcome(
        summary=summary,
        verdict=verdict.status,
        ended=records.end_reason,
        counts=_total(measured),
        violations=audit.examples,
        violation_count=audit.count,
        folder=final,
    )


def conditions(info: SessionInfo, records: SessionRecords) -> Conditions:
    """What the figures need to know of a session."""
    arrival, process = _process(info)
    return Conditions(
        relative=info.schedule == "relative",
        nominal_rate=info.plan.get("nominal_rate"),
        wire_measured=info.wire_measured,
        killed=records.end_reason in _KILLED,
        arrival=arrival,
        process=process,
        slos=tuple(Slo(*slo) for slo in info.config.get("slo", ())),
        max_concurrency=info.plan.get("max_concurrency"),
        submitters=records.submitters,
    )


def _limits(info: SessionInfo) -> Limits:
    try:
        return Limits.from_json(info.limits) if info.limits else Limits()
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"cannot read the limits of the session's description: {error!r}") from error


def _process(info: SessionInfo) -> tuple[str | None, Schedule | None]:
    """The arrival process of a session's plan; none for a plan file, or a description of another version."""
    try:
        spec = ArrivalSpec.from_json(info.plan["arrival"])
        return spec.arrival, schedule_of(spec)
    except (LookupError, TypeError, ValueError, ConfigError):
        return None, None


def _write(
    collector: Collector,
    plan: LoadPlan,
    info: SessionInfo,
    records: SessionRecords,
    summary: Mapping[str, Any],
    staging: Path,
    texts: Mapping[int, str] | None,
) -> None:
    """summary.json comes last: where it is, the others are."""
    kept = _kept(collector)
    if not (staging / "plan.npz").exists():
        write_file(staging / "plan.npz", plan.save, kept)
    write_file(staging / SESSION_FILE, info.save, kept)
    if records.probes is not None:
        write_file(staging / PROBES_FILE, records.probes.save, kept)
    _write_requests(staging, records, kept)
    write_file(staging / STEPS_FILE, lambda path: write_steps(path, records.runs), kept)
    if texts is not None or info.config.get("save_outputs"):
        outputs = read_outputs(collector)
        write_file(staging / "outputs.jsonl", lambda path: write_outputs(path, records.runs, outputs, texts), kept)
    text = strict_dumps(summary)
    write_file(staging / "summary.json", lambda path: _write_text(path, text), kept)


def _write_requests(staging: Path, records: SessionRecords, kept: str) -> None:
    """requests.csv, or requests.parquet of more rows than MAX_CSV_ROWS; never both."""
    write, name = write_requests_csv, "requests.csv"
    if sum(run.rows for run in records.runs) > MAX_CSV_ROWS:
        from harness.report.requests_parquet import write_requests_parquet  # its library is large: only who needs it

        write, name = write_requests_parquet, "requests.parquet"
    write_file(staging / name, lambda path: write(path, records.runs), kept)
    for other in REQUEST_FILES:
        if other != name:
            (staging / other).unlink(missing_ok=True)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _kept(collector: Collector) -> str:
    return f"what was measured is kept in {collector.path}, and the next start saves it if it can"


def _merge(audits: list[Audit]) -> Audit:
    examples = tuple(violation for audit in audits for violation in audit.examples)
    return Audit(sum(audit.count for audit in audits), examples[:MAX_EXAMPLES])


def _total(runs: tuple[RunMetrics, ...]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for run in runs:
        for name, count in run.counts.items():
            totals[name] = totals.get(name, 0) + count
    return totals
