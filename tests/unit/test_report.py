"""The result folder: strict JSON, requests.csv, outputs.jsonl, atomic naming, recovery."""

from __future__ import annotations

import csv
import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_session import MadeSession, make_session

from harness.common.errors import ConfigError, RunError
from harness.common.stamps import SEPARATE_LEDGER, STAMPS, EndReason, Reason, Status
from harness.report.finish import Outcome, finish_session
from harness.report.recover import recover
from harness.report.session_info import SessionInfo
from harness.report.strict_json import strict_dumps


@dataclass
class Bench:
    """A made session and where its report goes."""

    made: MadeSession
    staging: Path
    final: Path

    def finish(self, texts: dict[int, str] | None = None) -> Outcome:
        return finish_session(self.made.collector, self.made.plan, self.made.info, self.staging, self.final, texts)


def make_bench(folder: Path, **session: Any) -> Bench:
    staging = folder / ".staging"
    staging.mkdir()
    return Bench(make_session(folder, **session), staging, folder / "results" / "run")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path, n=30, warmups=(True, False))


def strict_load(path: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    return loaded


def csv_rows(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def scatter(made: MadeSession) -> None:
    """Give every row a TTFT of its own."""
    for row in range(made.collector.shape.rows):
        for stamp in ("t_first_token", "t_last_token", "t_delivered", "t_finished"):
            made.add(stamp, row, row * row * 997)


def test_the_folder_holds_every_file_under_its_final_name(bench: Bench) -> None:
    outcome = bench.finish()
    assert outcome.folder == bench.final
    names = sorted(path.name for path in bench.final.iterdir())
    assert names == ["plan.npz", "requests.csv", "session.json", "steps.npz", "summary.json"]
    assert not bench.staging.exists()


def test_summary_json_is_strict_and_is_what_the_outcome_holds(bench: Bench) -> None:
    outcome = bench.finish()
    assert strict_load(bench.final / "summary.json") == outcome.summary


def test_summary_json_is_strict_where_nothing_was_measured(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, n=1)
    bench.made.collector.column("receiver_status")[:] = Status.FAILED
    bench.finish()
    run = strict_load(bench.final / "summary.json")["runs"][0]
    assert run["metrics"]["ttft"]["p50"] is None
    assert run["rate"]["offered"] is None


def test_summary_holds_the_fields_of_the_schema(bench: Bench) -> None:
    summary = bench.finish().summary
    wanted = {"schema", "run_id", "command", "config", "manifest", "plan", "verdict", "runs", "ended", "host"}
    assert wanted <= set(summary)
    plan = {"sha256", "num_requests", "nominal_rate", "schedule", "prompt_tokens"}
    assert plan <= set(summary["plan"])
    assert {"warmup", "counts", "rate", "metrics", "ledger"} <= set(summary["runs"][0])
    checks = [list(check) for check in summary["verdict"]["checks"]]
    assert {"id", "name", "value", "unit", "threshold", "status", "explanation"} <= set(checks[0])


def test_plan_says_the_sha256_of_the_canonical_arrays(bench: Bench) -> None:
    assert bench.finish().summary["plan"]["sha256"] == bench.made.plan.sha256()


def test_requests_csv_has_exactly_the_columns_of_the_design(bench: Bench) -> None:
    bench.finish()
    header = (bench.final / "requests.csv").read_text().splitlines()[0]
    assert header == (
        "run,request,status,finish_reason,error,prompt_tokens,cached_tokens,output_tokens,preemptions,preempted_ns,"
        + ",".join(f"{stamp}_ns" for stamp in STAMPS)
    )


def test_requests_csv_has_one_row_a_request_numbered_as_in_runs(bench: Bench) -> None:
    runs = bench.finish().summary["runs"]
    found = [(row["run"], row["request"]) for row in csv_rows(bench.final / "requests.csv")]
    assert found == [(str(run["run"]), str(i)) for run in runs for i in range(30)]


def test_percentiles_of_requests_csv_equal_the_summarys(bench: Bench) -> None:
    scatter(bench.made)
    summary = bench.finish().summary
    rows = [row for row in csv_rows(bench.final / "requests.csv") if row["run"] == "1"]
    ttft = np.array([int(row["t_delivered_ns"]) - int(row["t_intended_ns"]) for row in rows])
    for name, q in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("p99_9", 99.9)):
        assert summary["runs"][1]["metrics"]["ttft"][name] == np.percentile(ttft, q) / 1e6


def test_parts_of_every_row_of_requests_csv_sum_to_ttft(bench: Bench) -> None:
    scatter(bench.made)
    bench.finish()
    for row in csv_rows(bench.final / "requests.csv"):
        parts = [int(row[f"{part.end}_ns"]) - int(row[f"{part.start}_ns"]) for part in SEPARATE_LEDGER.parts]
        assert min(parts) >= 0
        assert sum(parts) == int(row["t_delivered_ns"]) - int(row["t_intended_ns"])


def test_an_error_with_a_comma_stays_one_csv_field(bench: Bench) -> None:
    made = bench.made
    made.set("receiver_status", 3, Status.FAILED)
    for name, value in (("error_code", Reason.TOO_LARGE_FOR_CACHE), ("error_a", 9), ("error_b", 8)):
        made.set(name, 3, value)
    bench.finish()
    row = csv_rows(bench.final / "requests.csv")[3]
    assert (row["status"], row["error"]) == ("failed", "needs 9 KV blocks, the pool has 8")
    assert row["t_finished_ns"].isdigit()


def test_outputs_are_written_where_they_were_asked_for(bench: Bench) -> None:
    bench.finish(texts={30: "a\nb"})
    lines = [json.loads(line) for line in (bench.final / "outputs.jsonl").read_text().splitlines()]
    assert len(lines) == 30
    assert lines[0] == {"run": 1, "request": 0, "token_ids": [100, 101, 102], "text": "a\nb"}
    assert lines[1]["text"] is None


def test_outputs_need_no_text(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, config={"save_outputs": True})
    bench.finish()
    assert json.loads((bench.final / "outputs.jsonl").read_text().splitlines()[0])["text"] is None


def test_counts_of_the_outcome_leave_the_warmup_out(bench: Bench) -> None:
    assert bench.finish().counts["completed"] == 30


def test_a_violation_is_in_outcome_and_summary(bench: Bench) -> None:
    bench.made.add("t_wire", 31, -(10**9))
    outcome = bench.finish()
    assert outcome.verdict == "INVALID"
    assert (outcome.violations[0].run, outcome.violations[0].request, outcome.violations[0].part) == (1, 1, "transit")
    assert outcome.summary["violations"]["count"] == outcome.violation_count >= 1
    assert "run 1 request 1: transit" in outcome.summary["violations"]["examples"][0]


def test_a_full_disk_is_a_run_error_that_names_what_is_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("harness.report.folder.os.fsync", full)
    with pytest.raises(RunError, match="No space left") as caught:
        bench.finish()
    assert str(bench.made.collector.path) in str(caught.value)
    assert bench.made.collector.path.exists()
    assert not bench.final.exists()
    assert not list(bench.staging.glob("*.part"))


def test_a_taken_name_is_a_run_error_and_the_report_stays_in_staging(bench: Bench) -> None:
    bench.final.mkdir(parents=True)
    (bench.final / "precious").touch()
    with pytest.raises(RunError, match=str(bench.staging)):
        bench.finish()
    assert (bench.final / "precious").exists()
    assert (bench.staging / "summary.json").exists()


def orphan(tmp_path: Path) -> tuple[MadeSession, Path]:
    """A folder as a dead harness leaves it: row 7 under way."""
    folder = tmp_path / "dead"
    folder.mkdir()
    made = make_session(folder)
    made.collector.set_word("end_reason", EndReason.PARENT_DIED)
    made.collector.column("close_status")[:] = Status.NONE
    made.clear(7, "receiver_status", "t_delivered", "t_finished")
    made.plan.save(folder / "plan.npz")
    made.info.save(folder / "session.json")
    return made, folder


def test_recover_rebuilds_the_report_of_a_dead_harness(tmp_path: Path) -> None:
    _, folder = orphan(tmp_path)
    outcome = recover(folder)
    assert outcome.ended is EndReason.PARENT_DIED
    assert (outcome.counts["completed"], outcome.counts["unfinished"]) == (7, 1)
    assert outcome.violations == ()
    assert strict_load(folder / "summary.json")["ended"] == "parent_died"
    assert csv_rows(folder / "requests.csv")[7]["error"] == "the harness process died"


def test_recover_can_be_done_again(tmp_path: Path) -> None:
    _, folder = orphan(tmp_path)
    first, second = dict(recover(folder).summary), dict(recover(folder).summary)
    assert first.pop("memory").keys() == second.pop("memory").keys()  # how much this process had in use by then, each
    assert first == second


@pytest.mark.parametrize("name", ["collector.bin", "plan.npz", "session.json"])
def test_recover_names_what_is_missing(tmp_path: Path, name: str) -> None:
    _, folder = orphan(tmp_path)
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=f"has no {name}"):
        recover(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"run_id": 1, "command": 3}'])
def test_a_damaged_session_description_is_a_run_error(tmp_path: Path, text: str) -> None:
    _, folder = orphan(tmp_path)
    (folder / "session.json").write_text(text)
    with pytest.raises(RunError, match=r"session\.json"):
        recover(folder)


def test_session_info_survives_its_file(tmp_path: Path) -> None:
    info = SessionInfo(run_id="r", command=("a", "b c"), plan={"schedule": "relative"}, end_detail="exit code -9")
    info.save(tmp_path / "session.json")
    loaded = SessionInfo.load(tmp_path / "session.json")
    assert loaded == info
    assert loaded.command_line == "a 'b c'"


def test_strict_json_has_null_for_what_json_cannot_say() -> None:
    text = strict_dumps({"a": float("nan"), "b": [np.float64("inf"), np.int64(3)], "c": "\udc80", "d": Path("x")})
    assert json.loads(text) == {"a": None, "b": [None, 3], "c": "\\udc80", "d": "x"}
