"""Two submitter processes on one plan: one load as by one, and the death of either ends the run."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path

import pytest

from harness.config.run_config import RunConfig
from harness.plan.build import text_plan
from helpers import run_cli, wait_until
from integration.live import STEADY, alive, leftovers, live

pytestmark = pytest.mark.timeout(90)
LOAD = ["--engine", "null", "--rate", "500", "--num-requests", "101", "--max-new-tokens", "1", "--warmup-requests", "1",
        "--prompt-repeats", "1,2,3", "--allow-invalid"]  # fmt: skip


def test_two_submitters_send_the_plan_of_one_and_every_request_at_its_own_time(tmp_path: Path) -> None:
    done = run_cli([*LOAD, "--submitters", "2", "--out", str(tmp_path / "two")], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    two = json.loads((tmp_path / "two" / "summary.json").read_text())
    by_one = RunConfig(rate=500, num_requests=101, max_new_tokens=1, prompt_repeats="1,2,3")
    assert two["plan"]["sha256"] == text_plan(by_one).sha256()
    run = two["runs"][-1]
    assert run["counts"]["completed"] == 101 and two["violations"]["count"] == 0
    assert [shard["sent"] for shard in run["submitters"]] == [51, 50]
    assert two["counters"]["submitter_done_runs"] == 4 and len(two["host"]["pacer"]["shards"]) == 2
    with open(tmp_path / "two" / "requests.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["run"] == "1"]
    due = [int(row["t_intended_ns"]) - run["t0_ns"] for row in rows]
    assert due == [i * 2_000_000 for i in range(101)]


@pytest.mark.parametrize("shard", [1])
def test_a_killed_submitter_ends_the_run_and_is_named(tmp_path: Path, shard: int) -> None:
    with live(tmp_path, *STEADY, "--submitters", "2") as run:
        run.wait_for("finished", 20)
        parent = run.process.pid
        pids = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
        submitters = [pid for pid in pids if b"submitter_proc" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(submitters) == 2
        os.kill(sorted(submitters)[shard], signal.SIGKILL)
        code, _, stderr = run.end(10)
    assert code == 1
    assert f"the submitter-{shard} process died: signal SIGKILL" in stderr
    assert run.summary()["ended"] == "submitter_died"
    wait_until(lambda: not any(alive(pid) for pid in pids), 2, "no orphan")
    assert leftovers(tmp_path) == []


def test_row_numbers_alone_bring_the_same_requests_to_the_engine(tmp_path: Path) -> None:
    done = run_cli([*LOAD, "--payload", "index", "--unique-prompts", "--submitters", "2", "--out", str(tmp_path / "o")],
                   cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "o" / "summary.json").read_text())
    with open(tmp_path / "o" / "requests.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["run"] == "1"]
    assert summary["runs"][-1]["counts"]["completed"] == 101
    assert [int(row["prompt_tokens"]) - int(rows[0]["prompt_tokens"]) for row in rows[:3]] == [0, 1, 2]
    assert len(rows) == 101 and summary["violations"]["count"] == 0
