"""kill -9 of each process at each stage: the stated exit in time, no orphan, nothing measured is lost."""

from __future__ import annotations

import csv
import signal
import time
from pathlib import Path

import pytest

from helpers import run_cli, wait_until
from integration.live import STEADY, Live, alive, leftovers, live, pids_of, send

pytestmark = pytest.mark.timeout(90)

#: From the kill to the end of the harness: seen within 2 s, and the report of a short run is quick to write.
EXIT_S = 8.0
SLOW_START = ["--null-start-delay-s", "30"]
IDLE = ["--engine", "null", "--rate", "0.05", "--num-requests", "100", "--warmup-runs", "0"]


def reach(stage: str, run: Live) -> None:
    """Wait until the run is at a stage: idle is one answered request and a long pause."""
    if stage == "mid-run":
        run.wait_for("finished", 20)
    elif stage == "idle":
        run.wait_for("finished", 1)


def arguments(stage: str) -> list[str]:
    return {"start-up": [*STEADY, *SLOW_START], "idle": IDLE, "mid-run": STEADY}[stage]


@pytest.mark.parametrize("module", ["engine_proc", "submitter_proc"])
@pytest.mark.parametrize("stage", ["start-up", "idle", "mid-run"])
def test_a_killed_child_ends_the_run_with_exit_1_and_no_orphan(tmp_path: Path, module: str, stage: str) -> None:
    with live(tmp_path, *arguments(stage)) as run:
        pids = pids_of(run)
        reach(stage, run)
        send(run.child(module), signal.SIGKILL)
        killed = time.monotonic()
        code, _, stderr = run.end(EXIT_S)
        took = time.monotonic() - killed
    name = module.removesuffix("_proc")
    assert code == 1
    assert f"the {name} process died: signal SIGKILL" in stderr
    assert took < EXIT_S
    wait_until(lambda: not any(alive(pid) for pid in pids), 2, "no orphan")
    assert leftovers(tmp_path) == []
    if stage == "start-up":
        assert not run.out.exists()
    else:
        assert run.summary()["ended"] == f"{name}_died"


def test_every_open_request_fails_with_the_reason_when_the_engine_dies(tmp_path: Path) -> None:
    with live(tmp_path, *STEADY, "--null-service-ms", "200") as run:
        run.wait_for("finished", 5)
        run.wait_for("sent", run.word("finished") + 5)
        killed_ns = time.monotonic_ns()
        send(run.child("engine_proc"), signal.SIGKILL)
        run.end(EXIT_S)
    with open(run.out / "requests.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    failed = [row for row in rows if row["status"] == "failed"]
    assert len(failed) >= 5
    assert {row["error"] for row in failed} == {"the engine process died"}
    assert all(int(row["t_send_ns"]) > 0 for row in failed)
    assert sum(row["status"] == "completed" for row in rows) >= 5
    # Between the engine's death and the stop word a request has no peer to go to: the send call refuses it.
    refused = [row for row in rows if row["status"] == "refused"]
    assert all(int(row["t_send_ns"]) > killed_ns for row in refused)
    assert {row["status"] for row in rows} - {"refused"} == {"completed", "failed", "unfinished"}


@pytest.mark.parametrize("stage", ["start-up", "idle", "mid-run"])
def test_a_killed_parent_leaves_no_orphan_and_the_next_start_saves_its_run(tmp_path: Path, stage: str) -> None:
    with live(tmp_path, *arguments(stage)) as run:
        pids = pids_of(run)
        reach(stage, run)
        finished = run.word("finished")
        send(run.process.pid, signal.SIGKILL)
        run.end(EXIT_S)
        wait_until(lambda: not any(alive(pid) for pid in pids), 2, "no orphan")
    after = run_cli(
        ["--engine", "null", "--rate", "100", "--num-requests", "1", "--warmup-runs", "0", "--allow-invalid",
         "--out", str(tmp_path / "next"), "--collector-dir", str(run.shm)],
        cwd=tmp_path,
    )  # fmt: skip
    assert after.returncode == 0, after.stderr
    assert leftovers(tmp_path) == []
    assert [path.name for path in tmp_path.glob(".*.partial")] == []
    if stage == "start-up":
        assert not run.out.exists()
        return
    assert "recovered the dead run" in after.stderr
    summary = run.summary()
    assert summary["ended"] == "parent_died"
    with open(run.out / "requests.csv", newline="") as file:
        statuses = [row["status"] for row in csv.DictReader(file)]
    assert statuses.count("completed") >= finished > 0
    assert set(statuses) <= {"completed", "unfinished"}


def test_recover_rebuilds_a_dead_run_again_from_its_folder(tmp_path: Path) -> None:
    with live(tmp_path, *STEADY) as run:
        run.wait_for("finished", 10)
        send(run.process.pid, signal.SIGKILL)
        run.end(EXIT_S)
    run_cli(["--engine", "null", "--num-requests", "1", "--rate", "100", "--warmup-runs", "0", "--out",
             str(tmp_path / "next"), "--collector-dir", str(run.shm)], cwd=tmp_path)  # fmt: skip
    before = (run.out / "requests.csv").read_text()
    (run.out / "requests.csv").unlink()
    done = run_cli(["recover", str(run.out)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (run.out / "requests.csv").read_text() == before


def test_a_hung_engine_is_a_stall_with_its_stacks_in_the_result(tmp_path: Path) -> None:
    with live(tmp_path, *STEADY, "--null-hang-at-step", "10", "--stall-timeout-s", "1") as run:
        code, _, stderr = run.end(40)
    assert code == 1
    assert run.summary()["ended"] == "stalled"
    assert "stacks" in stderr
    assert "_misbehave" in (run.out / "engine.log").read_text()


def test_an_engine_that_never_gets_ready_ends_at_the_start_timeout(tmp_path: Path) -> None:
    with live(tmp_path, *STEADY, *SLOW_START, "--start-timeout-s", "1") as run:
        code, _, stderr = run.end(30)
    assert code == 1
    assert "READY" in stderr and "--start-timeout" in stderr
    assert leftovers(tmp_path) == []


def test_a_crash_of_the_engine_names_its_exit_code(tmp_path: Path) -> None:
    with live(tmp_path, *STEADY, "--null-crash-at-step", "5") as run:
        code, _, stderr = run.end(40)
    assert code == 1
    assert "the engine process died: exit code 70" in stderr
