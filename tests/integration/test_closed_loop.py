"""Cap and closed loop with all processes: a queue of one server that can be worked out by hand, and Little's law."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.common.plan_file import load_plan
from integration.test_run import Result, run

pytestmark = pytest.mark.timeout(90)

SERVICE = ["--null-service-ms", "50", "--max-batch-size", "1", "--max-new-tokens", "1"]
#: A test machine wakes late, never early: what a request may be late by. The bars below are far from other answers.
LATE_NS = 60_000_000


def test_a_cap_of_one_queues_at_the_client_and_its_wait_is_a_part_of_ttft(tmp_path: Path) -> None:
    """100 requests/s of 50 ms each, one at a time: request k ends 50 + 40 k ms after its intended time."""
    result = run(tmp_path, "--rate", "100", "--num-requests", "8", "--max-concurrency", "1", *SERVICE,
                 "--warmup-requests", "2")  # fmt: skip
    intended, slot, finished = (result.column(f"t_{name}_ns") for name in ("intended", "slot", "finished"))
    assert np.array_equal(np.diff(intended), np.full(7, 10_000_000))
    late = finished - intended - (50_000_000 + 40_000_000 * np.arange(8))
    assert (late >= 0).all() and late[0] < LATE_NS and (np.diff(late) < LATE_NS).all()
    assert (slot[1:] >= finished[:-1]).all()
    ledger = result.last_run()["ledger"]
    assert ledger["parts"][:2] == ["cap_wait", "submit_lag"]
    assert ledger["mean"]["parts"]["cap_wait"] == pytest.approx(np.mean(slot - intended) / 1e6)
    assert result.summary["violations"]["count"] == 0
    assert "at most 1 in flight" in result.stdout


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Three users, 50 ms of service for all at once, 30 ms of thinking; twice, after a warm-up run."""
    return run(tmp_path_factory.mktemp("closed"), "--max-concurrency", "3", "--think-time", "30", "--num-requests",
               "24", "--null-service-ms", "50", "--max-new-tokens", "1", "--repeat-runs", "2")  # fmt: skip


def test_a_user_s_next_request_is_due_a_think_time_after_its_last_one_ended(closed: Result) -> None:
    intended, finished = (closed.column(f"t_{name}_ns")[-24:] for name in ("intended", "finished"))
    assert np.array_equal(intended[3:], finished[:-3] + 30_000_000)
    assert (closed.folder / "plan.npz").exists() and load_plan(closed.folder / "plan.npz").gated


def test_throughput_is_users_over_the_measured_cycle(closed: Result) -> None:
    """Little's law: K = X * (response + think), whatever the machine adds to the response."""
    intended, finished = (closed.column(f"t_{name}_ns")[-24:] for name in ("intended", "finished"))
    cycle_s = float(np.mean(finished - intended) + 30_000_000) / 1e9
    span_s = float(finished.max() - intended.min() + 30_000_000) / 1e9
    assert 24 / span_s == pytest.approx(3 / cycle_s, rel=0.15)
    assert cycle_s >= 0.080


def test_the_report_calls_it_a_closed_loop_and_promises_no_rate(closed: Result) -> None:
    assert "closed loop, 3 users" in closed.stdout
    checks = {check["id"]: check["status"] for check in closed.summary["verdict"]["checks"]}
    assert (checks["offered_rate"], checks["stamp_chain"]) == ("N/A", "PASS")
    assert closed.last_run()["counts"]["completed"] == 24
