"""The checks of the plan's shape and of the gaps that were sent: each flips at its limit and on its own fault."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from made_session import MadeSession, make_session

from harness.checks.arrival_shape import GAP_SHIFT, PLAN_SHAPE
from harness.checks.check import Grade, Reading
from harness.common.stamps import SEPARATE_LEDGER, SendResult
from harness.config.run_config import RunConfig
from harness.measures.arrival_check import ArrivalReport, check_arrivals
from harness.measures.metrics import measure_run
from harness.measures.records import read_session
from harness.plan.arrival_spec import ArrivalSpec
from harness.plan.build import build_offsets
from harness.plan.processes import schedule_of
from harness.report.arrival_words import arrival_lines
from harness.report.finish import conditions

NS = 10**9
BURST = np.zeros(64, dtype=np.int64)
POISSON: dict[str, Any] = {"arrival": "poisson", "rate": 100}


def offsets_of(n: int = 1000, **values: Any) -> np.ndarray:
    return build_offsets(RunConfig(num_requests=n, **values), n)


def context(plan: np.ndarray, sent: np.ndarray | None = None, spec: dict[str, Any] | None = None, **run: Any) -> Any:
    """What the two checks look at: a run whose plan is said to be of `spec` (None: a plan file)."""
    sent = plan if sent is None else sent
    schedule = None if spec is None else schedule_of(ArrivalSpec(**spec))
    rows = np.ones(len(plan), dtype=bool)
    report = check_arrivals(plan, rows, sent, None if spec is None else spec["arrival"], schedule)
    record = SimpleNamespace(columns={"t_send": sent + NS}, sent=rows, gated=run.pop("gated", False))
    values = {"busy": 0.5, "values": {"ttft": np.full(10, 100_000_000)}, **run}
    reacts = values.pop("reacts", record.gated)
    return SimpleNamespace(measured=SimpleNamespace(arrivals=report, record=record, **values), reacts=reacts)


def shape(*args: Any, **values: Any) -> Reading:
    return PLAN_SHAPE.measure(context(*args, **values))


def gaps(*args: Any, **values: Any) -> Reading:
    return GAP_SHIFT.measure(context(*args, **values))


def windowed(n: int = 1000) -> np.ndarray:
    """A Poisson number of arrivals a second, evenly spread over it."""
    counts = np.random.default_rng(3).poisson(2, n)
    return np.array([s * NS + k * NS // c for s, c in enumerate(counts) for k in range(c)], dtype=np.int64)


def test_good_random_plans_are_invalid_for_no_seed_and_warn_for_one_in_ten() -> None:
    grades = [shape(offsets_of(200, seed=seed, **POISSON), spec=POISSON).grade for seed in range(300)]
    assert Grade.INVALID not in grades and Grade.NOT_APPLICABLE not in grades
    assert 0.04 < np.mean([grade is Grade.WARN for grade in grades]) < 0.16


@pytest.mark.parametrize("n", [64, 256, 1000])
def test_the_default_seed_gives_plans_that_pass(n: int) -> None:
    assert shape(offsets_of(n, **POISSON), spec=POISSON).grade is Grade.PASS


def test_windowed_poisson_is_invalid() -> None:
    assert shape(windowed(), spec={"arrival": "poisson", "rate": 2.0}).grade is Grade.INVALID


def test_a_constant_plan_that_claims_to_be_poisson_is_invalid() -> None:
    assert shape(offsets_of(rate=100), spec=POISSON).grade is Grade.INVALID


def test_a_plan_locked_to_the_second_is_told_by_its_phases() -> None:
    """Exponential gaps in whole seconds would pass for exponential if they are many, but not for uniform phases."""
    plan = offsets_of(2000, arrival="poisson", rate=0.002) // NS * NS
    reading = shape(plan, spec={"arrival": "poisson", "rate": 0.002})
    assert reading.grade is Grade.INVALID and "phase" in reading.words


@pytest.mark.parametrize(
    ("plan", "spec", "word"),
    [(offsets_of(rate=100), {"arrival": "constant", "rate": 100.0}, "nothing is drawn"),
     (offsets_of(**POISSON), None, "does not say"),
     (offsets_of(20, **POISSON), POISSON, "19 gaps")],
)  # fmt: skip
def test_what_cannot_be_judged_is_not(plan: np.ndarray, spec: dict[str, Any] | None, word: str) -> None:
    reading = shape(plan, spec=spec)
    assert reading.grade is Grade.NOT_APPLICABLE and word in reading.words


def test_gaps_sent_as_planned_pass() -> None:
    plan = offsets_of(**POISSON)
    noise = np.random.default_rng(1).integers(0, 50_000, len(plan))
    assert gaps(plan, np.sort(plan + noise)).grade is Grade.PASS
    assert gaps(offsets_of(rate=100), offsets_of(rate=100) + noise).grade is Grade.PASS


def test_lag_noise_on_a_constant_rate_warns_by_its_variation() -> None:
    """Ca^2 becomes 2 sigma^2 / T^2 (T 10 ms, sigma 0.5 ms: 0.005), too little to move TTFT at half load."""
    plan = offsets_of(rate=100)
    reading = gaps(plan, plan + np.random.default_rng(1).normal(2e6, 5e5, len(plan)).astype(np.int64))
    assert reading.grade is Grade.WARN and reading.value == pytest.approx(5.0, rel=0.15)


def test_a_shift_that_moves_the_mean_wait_is_invalid() -> None:
    """Kingman at rho 0.8 and 100/s: 0.64 / 0.2 * 10 ms / 2 = 16 ms of TTFT's 100 where a constant rate was Poisson."""
    reading = gaps(offsets_of(rate=100), offsets_of(**POISSON), busy=0.8)
    assert reading.grade is Grade.INVALID
    assert reading.value == pytest.approx(0.16 / 0.05, rel=0.15) and "% of TTFT" in reading.words


def test_relative_sleeps_are_no_poisson_process_any_more() -> None:
    plan = offsets_of(**POISSON)
    late = np.cumsum(np.diff(plan, prepend=0) + 1_000_000)
    assert gaps(plan, late).grade >= Grade.WARN


@pytest.mark.parametrize(("bursts", "grade"), [(0, Grade.PASS), (1, Grade.PASS), (2, Grade.WARN)])
def test_one_catch_up_in_a_thousand_gaps_is_allowed_and_two_are_not(bursts: int, grade: Grade) -> None:
    plan = offsets_of(1001, **POISSON)
    sent, between = plan.copy(), np.diff(plan)
    for row in np.flatnonzero((between > 1_000_000) & (between < 5_000_000))[10::40][:bursts]:
        sent[row] += between[row] * 95 // 100
    found = context(plan, sent, busy=0.1)
    assert found.measured.arrivals.shift.bursts == bursts
    assert GAP_SHIFT.measure(found).grade is grade


@pytest.mark.parametrize(("plan", "word"), [(BURST, "no gaps"), (offsets_of(9, rate=9), "8 gaps")])
def test_bursts_and_short_runs_have_no_gaps_to_judge(plan: np.ndarray, word: str) -> None:
    reading = gaps(plan)
    assert reading.grade is Grade.NOT_APPLICABLE and word in reading.words


def test_a_session_measures_its_arrivals_by_the_process_that_it_describes(tmp_path: Path) -> None:
    spec = {"arrival": "gamma", "rate": 1000.0, "burstiness": 0.5, "seed": 0}
    made = make_session(tmp_path, n=30, plan={"nominal_rate": 1000.0, "schedule": "absolute", "arrival": spec})
    found = arrivals_of(made)
    assert (found.process, found.plan.law, found.plan.gaps, found.shift.bursts) == ("gamma", "gamma", 29, 0)
    assert found.plan.rate == found.actual.rate == 1000.0
    assert found.plan.anderson_darling is not None and found.plan.anderson_darling > 3


UNKNOWN: list[Any] = [None, {"arrival": "of a later version"}, {"arrival": "gamma"}, {"rate": "x"}, "gamma", 3]


@pytest.mark.parametrize("spec", UNKNOWN)
def test_a_session_whose_process_is_not_known_has_figures_without_a_law(tmp_path: Path, spec: Any) -> None:
    found = arrivals_of(make_session(tmp_path, n=30, plan={"schedule": "absolute", "arrival": spec}))
    assert found.plan.cv == 0.0 and found.plan.anderson_darling is None


def test_requests_that_were_not_sent_are_in_the_plan_only(tmp_path: Path) -> None:
    made = make_session(tmp_path, n=30)
    made.set("send_result", 29, SendResult.REFUSED)
    found = arrivals_of(made)
    assert (found.plan.gaps, found.actual.gaps, found.shift.gaps) == (29, 28, 28)


def arrivals_of(made: MadeSession) -> ArrivalReport:
    records = read_session(made.collector, made.plan)
    return measure_run(records.runs[0], SEPARATE_LEDGER, conditions(made.info, records)).arrivals


def test_the_report_says_it_in_a_line_for_the_plan_and_one_for_what_was_sent() -> None:
    report = context(offsets_of(**POISSON), spec=POISSON).measured.arrivals
    lines = dict(arrival_lines({"arrivals": report.to_json()}, {}))
    assert list(lines) == ["Arrivals planned", "Arrivals sent"]
    for word in ("poisson 96.84/s", "CV 0.979", "dispersion", "at 1 s", "fits exponential (A*^2 0."):
        assert word in lines["Arrivals planned"], lines
    assert lines["Arrivals sent"].endswith("0 catch-up bursts")
    burst = context(BURST, spec={"arrival": "burst"}).measured.arrivals
    assert dict(arrival_lines({"arrivals": burst.to_json()}, {}))["Arrivals planned"] == "burst all at once"
    wrong = context(windowed(), spec={"arrival": "poisson", "rate": 2.0}).measured.arrivals
    assert "does not fit" in dict(arrival_lines({"arrivals": wrong.to_json()}, {}))["Arrivals sent"]


def test_a_report_older_than_the_self_check_has_no_line() -> None:
    assert list(arrival_lines({}, {})) == []


@pytest.mark.parametrize("why", [{"gated": True}, {"reacts": True}])
def test_a_load_that_waits_by_design_is_not_judged_by_its_gaps(why: dict[str, Any]) -> None:
    planned = offsets_of(rate=100)
    assert gaps(planned, offsets_of(**POISSON), busy=0.8).grade is Grade.INVALID
    assert gaps(planned, offsets_of(**POISSON), busy=0.8, **why).grade is Grade.NOT_APPLICABLE


def test_a_load_whose_requests_wait_for_others_has_no_planned_shape() -> None:
    assert shape(windowed(), spec={"arrival": "poisson", "rate": 2.0}, gated=True).grade is Grade.NOT_APPLICABLE


def test_where_requests_wait_for_others_no_planned_arrivals_are_told() -> None:
    report = context(BURST, offsets_of(64, rate=10)).measured.arrivals
    assert list(dict(arrival_lines({"arrivals": report.to_json()}, {"gated_requests": 60}))) == ["Arrivals sent"]


def test_all_at_once_needs_no_process() -> None:
    """As in a closed loop that has a user for every request."""
    report = {**context(BURST, offsets_of(64, rate=10)).measured.arrivals.to_json(), "process": None}
    report["plan"] = {**report["plan"], "rate": None, "gaps": 63}
    assert dict(arrival_lines({"arrivals": report}, {}))["Arrivals planned"] == "all at once"


def test_an_engine_without_steps_cannot_make_a_shift_invalid() -> None:
    assert gaps(offsets_of(rate=100), offsets_of(**POISSON), busy=None).grade is Grade.WARN
