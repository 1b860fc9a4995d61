"""Objectives: how they are written, who keeps them, and what a growing backlog looks like."""

from __future__ import annotations

import numpy as np
import pytest

from harness.common.stamps import Status
from harness.config.slo_text import Slo, parse_slos
from harness.measures.records import RunRecord
from harness.measures.slo import backlog_growth, kept, slo_json


@pytest.mark.parametrize(
    ("text", "slos"),
    [
        ("ttft=500ms,tpot=50ms@p99", (Slo("ttft", 500_000_000, 99.0), Slo("tpot", 50_000_000, 99.0))),
        ("ttft=1.5s@p90,e2e=2s", (Slo("ttft", 1_500_000_000, 90.0), Slo("e2e", 2_000_000_000, 99.0))),
        ("tpot=0.1us@p99.9", (Slo("tpot", 100, 99.9),)),
    ],
)
def test_a_percentile_counts_for_the_objectives_before_it(text: str, slos: tuple[Slo, ...]) -> None:
    assert parse_slos(text) == slos


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=5", "ttft=-5ms", "ttft=nanms", "ttft=5ms@p0", "ttft=5ms@p100", "itl=5ms", "ttft=0ms",
             "ttft=5ms,ttft=6ms", "ttft=5ms;tpot=1ms", "ttft=1ms@99", "ttft=99999999s"]
)  # fmt: skip
def test_what_is_no_objective_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|knows|names"):
        parse_slos(text)


def record(**columns: list[int]) -> RunRecord:
    rows = len(columns["t_finished"])
    names = ("t_intended", "t_delivered", "t_first_token", "t_last_token", "t_finished", "output_tokens")
    arrays = {name: np.array(columns.get(name, [0] * rows), dtype=np.int64) for name in names}
    status = np.array(columns.get("status", [Status.COMPLETED] * rows), dtype=np.int64)
    none = np.zeros(rows, dtype=np.int64)
    return RunRecord(0, False, 1, 0, none, arrays, status, none, none, none, none[:0], {})


def test_a_request_that_did_not_complete_keeps_no_objective() -> None:
    run = record(t_intended=[0, 0], t_delivered=[5, 5], t_finished=[9, 9], status=[Status.COMPLETED, Status.UNFINISHED])
    assert kept(run, Slo("ttft", 5, 99.0)).tolist() == [True, False]
    assert kept(run, Slo("e2e", 9, 99.0)).tolist() == [True, False]
    assert kept(run, Slo("e2e", 8, 99.0)).tolist() == [False, False]


def test_tpot_is_judged_without_division() -> None:
    run = record(t_first_token=[10, 10, 10], t_last_token=[10, 19, 20], output_tokens=[1, 4, 4], t_finished=[1, 1, 1])
    assert kept(run, Slo("tpot", 3, 99.0)).tolist() == [True, True, False]


def test_goodput_counts_requests_within_all_objectives() -> None:
    run = record(t_intended=[0] * 4, t_delivered=[1, 1, 9, 9], t_finished=[2, 20, 2, 20])
    found = slo_json(run, [Slo("ttft", 5, 50.0), Slo("e2e", 10, 60.0)], 10**9)
    assert found is not None
    assert found["goodput"] == 1.0
    assert [one["within_percent"] for one in found["objectives"]] == [50.0, 50.0]
    assert [one["met"] for one in found["objectives"]] == [True, False]
    assert not found["met"]


@pytest.mark.parametrize("load", [0.9, 1.0, 1.02, 1.5])
def test_backlog_growth_is_the_closed_form_of_an_overloaded_server(load: float) -> None:
    """D/D/1: request i ends at max(arrival, end before) + S, so above capacity E2E grows by load - 1 a unit of time."""
    service, n = 1_000_000, 4000
    arrivals = (np.arange(n) * service / load).astype(np.int64)
    ends, free = np.empty(n, dtype=np.int64), 0
    for i, at in enumerate(arrivals.tolist()):
        free = max(free, at) + service
        ends[i] = free
    growth = backlog_growth(arrivals, ends)
    assert growth == pytest.approx(max(load - 1.0, 0.0), abs=1e-3)


def test_a_burst_has_no_growth() -> None:
    assert backlog_growth(np.zeros(100, dtype=np.int64), np.arange(100)) is None
