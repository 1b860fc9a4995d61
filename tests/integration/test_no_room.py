"""No room: before the run nothing starts, after it nothing measured is lost."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from helpers import child_env, cli_command, run_cli
from integration.live import STEADY, leftovers, live

pytestmark = pytest.mark.timeout(90)


def test_no_room_for_the_collector_is_one_line_with_the_bytes_needed(tmp_path: Path) -> None:
    import subprocess

    shm = tmp_path / "shm"
    shm.mkdir()
    args = ["--engine", "null", "--num-requests", "10000", "--collector-dir", str(shm), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        ["prlimit", "--fsize=100000", *cli_command(args)],
        cwd=tmp_path, env=child_env(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "bytes are needed" in done.stderr
    assert not (tmp_path / "out").exists()
    assert leftovers(tmp_path) == []
    assert list(tmp_path.glob(".*")) == []


def test_a_disk_that_fills_during_the_run_keeps_the_collector_and_names_it(tmp_path: Path) -> None:
    with live(tmp_path, *STEADY, "--num-requests", "300") as run:
        run.wait_for("finished", 20)
        resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (2000, 2000))
        code, _, stderr = run.end(30)
    kept = list(run.shm.glob("isorate-*.collector"))
    assert code == 1
    assert len(kept) == 1
    assert str(kept[0]) in stderr
    after = run_cli(["--engine", "null", "--num-requests", "1", "--rate", "100", "--warmup-runs", "0", "--out",
                     str(tmp_path / "next"), "--collector-dir", str(run.shm)], cwd=tmp_path)  # fmt: skip
    assert "recovered the dead run" in after.stderr
    assert run.summary()["ended"] == "done"
    assert leftovers(tmp_path) == []
