"""One process for submitter and engine: the same report, and the same ends, as with two."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path

import pytest

from harness.common.stamps import INPROC_LEDGER
from helpers import run_cli
from integration.live import STEADY, leftovers, live, send

pytestmark = pytest.mark.timeout(90)
INPROC = ["--topology", "inproc"]


def test_warm_up_and_repeated_runs_give_the_same_report_as_two_processes(tmp_path: Path) -> None:
    done = run_cli(
        [*INPROC, "--engine", "null", "--rate", "200", "--num-requests", "20", "--repeat-runs", "2", "--save-outputs",
         "--allow-invalid", "--tokenize-workers", "1", "--out", str(tmp_path / "out")],
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [(run["warmup"], run["counts"]["completed"]) for run in summary["runs"]] == [
        (True, 8), (False, 20), (False, 20),
    ]  # fmt: skip
    assert summary["violations"]["count"] == 0
    assert summary["runs"][1]["ledger"]["topology"] == "inproc"
    assert {summary["runs"][1]["metrics"][name] for name in ("transit", "ingress_wait", "gil_wait")} == {None}
    with open(tmp_path / "out" / "requests.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 + 20 + 20
    for row in rows:
        assert row["t_wire_ns"] == row["t_ingress_ns"] == row["t_send_ns"]
        parts = sum(int(row[f"{part.end}_ns"]) - int(row[f"{part.start}_ns"]) for part in INPROC_LEDGER.parts)
        assert parts == int(row["t_delivered_ns"]) - int(row["t_intended_ns"])
    outputs = (tmp_path / "out" / "outputs.jsonl").read_text().splitlines()
    assert all(json.loads(line)["text"] for line in outputs) and len(outputs) == 40
    assert "threads of one process" in done.stdout


def test_a_killed_engine_takes_its_submitter_with_it_and_keeps_what_was_measured(tmp_path: Path) -> None:
    with live(tmp_path, *STEADY, *INPROC) as run:
        run.wait_for("finished", 20)
        send(run.child("engine_proc"), signal.SIGKILL)
        code, _, stderr = run.end(10)
    assert code == 1
    assert "the engine process died: signal SIGKILL" in stderr
    assert run.summary()["ended"] == "engine_died"
    with open(run.out / "requests.csv", newline="") as file:
        assert sum(row["status"] == "completed" for row in csv.DictReader(file)) >= 20
    assert leftovers(tmp_path) == []


def test_sigint_saves_partial_results_and_exits_130(tmp_path: Path) -> None:
    with live(tmp_path, *STEADY, *INPROC, "--schedule", "relative") as run:
        run.wait_for("finished", 20)
        os.killpg(run.process.pid, signal.SIGINT)
        code, _, _ = run.end(15)
    assert code == 130
    assert run.summary()["ended"] == "interrupted"
    assert leftovers(tmp_path) == []
