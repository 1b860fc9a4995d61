"""Rebuild the report of a session whose harness died, from the collector, plan and description that it left behind."""

from __future__ import annotations

from pathlib import Path

from harness.common.collector import Collector
from harness.common.errors import ConfigError
from harness.common.plan_file import load_plan
from harness.report.finish import Outcome, finish_session
from harness.report.session_info import SESSION_FILE, SessionInfo

COLLECTOR_FILE = "collector.bin"


def recover(folder: Path) -> Outcome:
    """Write the report into `folder`, which keeps its collector, so that this can be done again.

    Raises ConfigError where the folder does not hold what a report needs; CollectorError, RunError where a file is
    damaged or the disk is full.
    """
    missing = [name for name in (COLLECTOR_FILE, "plan.npz", SESSION_FILE) if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"{folder} cannot be recovered: it has no {', no '.join(missing)}")
    plan = load_plan(folder / "plan.npz")
    info = SessionInfo.load(folder / SESSION_FILE)
    collector = Collector.attach(folder / COLLECTOR_FILE, writable=False)
    try:
        return finish_session(collector, plan, info, folder, folder)
    finally:
        collector.close()
