"""Ctrl-C keeps what was measured, once or twice, while the compiled pacer runs without the GIL."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from integration.live import STEADY, leftovers, live, send

pytestmark = pytest.mark.timeout(90)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("pacer", ["compiled", "python"])
def test_sigint_to_the_whole_group_saves_partial_results_and_exits_130(
    tmp_path: Path, times: int, pacer: str
) -> None:
    with live(tmp_path, *STEADY, "--pacer", pacer) as run:
        run.wait_for("finished", 20)
        for _ in range(times):
            os.killpg(run.process.pid, signal.SIGINT)
        code, _, _ = run.end(15)
    assert code == 130
    assert run.summary()["ended"] == "interrupted"
    assert leftovers(tmp_path) == []


def test_sigint_during_start_up_leaves_nothing_behind(tmp_path: Path) -> None:
    with live(tmp_path, *STEADY, "--null-start-delay-s", "30") as run:
        run.child("engine_proc")
        run.child("submitter_proc")
        os.killpg(run.process.pid, signal.SIGINT)
        code, _, _ = run.end(15)
    assert code == 130
    assert not run.out.exists()
    assert leftovers(tmp_path) == []


def test_sigterm_ends_a_run_as_sigint_does(tmp_path: Path) -> None:
    with live(tmp_path, *STEADY) as run:
        run.wait_for("finished", 5)
        send(run.process.pid, signal.SIGTERM)
        code, _, _ = run.end(15)
    assert code == 130
    assert run.summary()["ended"] == "interrupted"
