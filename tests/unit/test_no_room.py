"""A results folder that takes nothing any more, before anything was measured: one line, and nothing stays."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from harness.common.collector import Collector, CollectorShape
from harness.common.errors import RunError
from harness.common.processes import start_ticks
from harness.config.run_config import RunConfig
from harness.host.cores import allowed_cpus, default_placement
from harness.session.supervisor import Supervisor
from harness.session.workspace import open_workspace


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_disk_before_the_run_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    (tmp_path / "shm").mkdir()
    (tmp_path / "results").mkdir()

    def full(*_: Any) -> None:
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(Supervisor, "_measure", full)
    workspace = open_workspace(tmp_path / "results" / "r", tmp_path / "shm")
    owner = (os.getpid(), start_ticks(os.getpid()))
    collector = Collector.create(workspace.collector, CollectorShape(4, 4, 4), {}, owner)
    config, draft = RunConfig(engine="null", quiet=True), Any
    supervisor = Supervisor(config, [], default_placement(allowed_cpus()), workspace, collector, draft, [])  # type: ignore[arg-type]
    with pytest.raises(RunError, match=f"cannot write to {tmp_path / 'results'}: {os.strerror(fault)}"):
        supervisor.run()
    assert [*(tmp_path / "shm").iterdir(), *(tmp_path / "results").iterdir()] == []
