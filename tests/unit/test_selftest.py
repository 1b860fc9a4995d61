"""The self-test on made sessions: a server as it should be passes, and each fault fails the line that it belongs to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.probes_rest import ProbesRest
from harness.common.collector import Collector, CollectorShape
from harness.common.errors import ConfigError, RunError
from harness.plan.arrival_spec import ArrivalSpec
from harness.plan.processes import schedule_of
from harness.selftest import command
from harness.selftest.lines import Line, at_most
from harness.selftest.occupancy import Occupancy, OccupancyWatch
from harness.selftest.parts import FULL, clock_lines, gil_lines, measure_floor, observer_lines, poisson_lines
from harness.selftest.queue_parts import dd1_lines, little_line, md1_lines
from harness.selftest.queueing import Served, enough_inside, lindley_limit_ns, lindley_residuals, md1_result
from harness.selftest.sessions import Measured, read_stamps
from harness.theory.lindley import lindley_starts
from helpers import run_cli, wait_until

SIZES = FULL._replace(service_ms=10.0, md1=1500, plans=40)
T0 = 10**12
EXACT = {"actual": {"anderson_darling": 0.5}, "shift": {"delta_ca2": 0.001, "planned_ca2": 1.0}}


class MadeSessions:
    """Runs a perfect single server in place of a session. late_ns: what each service starts and ends late by.
    slow: factor of the service time. metrics: of the run, in ms."""

    def __init__(self, late_ns: int = 20_000, slow: float = 1.0, metrics: dict[str, list[float]] | None = None) -> None:
        self.late_ns = late_ns
        self.slow = slow
        self.metrics = {name: iter(values) for name, values in (metrics or {}).items()}
        self.asked: list[list[str]] = []

    def run(self, name: str, words: Sequence[str], watch: bool = False) -> Measured:
        self.asked.append(list(words))
        options = dict(pairwise(words))
        arrival = options.get("--arrival", "constant")
        spec = ArrivalSpec(arrival=arrival, rate=float(options["--rate"]), seed=int(options.get("--seed", 0)))
        due = T0 + schedule_of(spec).offsets(int(options["--num-requests"]), None)
        service_ns = round(float(options.get("--null-service-ms", 0)) * 1e6 * self.slow)
        arrivals = due + 100_000
        starts = lindley_starts(arrivals, np.full(len(due), service_ns))
        stamps = {
            "t_intended": due, "t_ingress": arrivals, "t_tokenized": arrivals, "t_scheduled": starts + self.late_ns,
            "t_first_token": starts + service_ns + self.late_ns, "t_delivered": starts + service_ns + 300_000,
        }  # fmt: skip
        steps = {"t_batch": stamps["t_scheduled"], "t_end": stamps["t_first_token"]}
        metrics = {name: {"count": 1, "p50": next(values)} for name, values in self.metrics.items()}
        run = {"arrivals": EXACT, "metrics": metrics}
        return Measured({}, run, stamps, steps, occupied(stamps) if watch else None)


def occupied(stamps: dict[str, Any]) -> Occupancy:
    """What counters sampled every 0.5 ms would have shown."""
    begin, end = stamps["t_ingress"].min(), stamps["t_first_token"].max()
    times = np.arange(begin - 10**6, end + 10**6, 500_000)
    inside = np.searchsorted(stamps["t_ingress"], times) - np.searchsorted(stamps["t_first_token"], times)
    return Occupancy(times, inside)


def failed(lines: Sequence[Line]) -> list[str]:
    return [line.name for line in lines if line.passed is False]


# Lindley


def made(late_start_ns: Any = 0, late_end_ns: Any = 0, n: int = 1000) -> Served:
    arrivals = np.sort(np.random.default_rng(1).integers(0, n * 8_000_000, n))
    starts = lindley_starts(arrivals, np.full(n, 5_000_000))
    ends = starts + 5_000_000
    return Served(arrivals, starts + late_start_ns, ends + late_end_ns, ends, 5_000_000)


def test_a_server_on_the_recursion_has_no_residual() -> None:
    assert lindley_residuals(made()) == (0, 0, 0, 0, 0, 0)


def test_residuals_of_starts_and_ends_are_apart() -> None:
    found = lindley_residuals(made(late_start_ns=7_000, late_end_ns=-9_000))
    assert found == (7_000, 7_000, 7_000, 9_000, 9_000, 9_000)


def test_one_late_service_in_a_thousand_is_in_the_maximum_only() -> None:
    late = np.zeros(1000, dtype=np.int64)
    late[500] = 10**9
    found = lindley_residuals(made(late_end_ns=late))
    assert (found.end_p99, found.end_max) == (0, 10**9)


def test_rows_are_taken_in_the_order_of_arrival() -> None:
    queue = made()
    order = np.random.default_rng(2).permutation(len(queue.arrivals))
    shuffled = Served.of(
        queue.arrivals[order], queue.starts[order], queue.ends[order], queue.freed[order], queue.service_ns
    )
    assert lindley_residuals(shuffled).start_max == 0


def busy(*starts_us: int) -> Served:
    """Three requests that come at once to a server whose services take 5 ms, and 0.4 ms more to send the result."""
    starts = np.array(starts_us, dtype=np.int64) * 1000
    return Served(np.array([0, 1, 2], dtype=np.int64), starts, starts + 5_000_000, starts + 5_400_000, 5_000_000)


def test_a_server_is_not_free_before_its_result_is_sent() -> None:
    assert lindley_residuals(busy(0, 5400, 10_800)).start_max == 0


def test_a_free_server_that_leaves_a_request_waiting_is_a_late_start() -> None:
    assert lindley_residuals(busy(0, 5400, 13_800)).start_max == 3_000_000


@pytest.mark.parametrize(("service_ns", "limit"), [(1_000_000, 100_000), (5_000_000, 100_000), (10_000_000, 200_000)])
def test_the_limit_is_100_us_or_2_percent(service_ns: int, limit: int) -> None:
    assert lindley_limit_ns(service_ns) == limit


def test_the_service_time_is_one_s_own_to_choose() -> None:
    assert command._asked("isorate", []).sizes.service_ms == 25
    assert command._asked("isorate", ["--service-ms", "50"]).sizes.service_ms == 50


# D/D/1 and M/D/1


def test_a_perfect_server_passes_d_d_1() -> None:
    lines = dd1_lines(MadeSessions(), SIZES)
    assert failed(lines) == [] and sum(line.passed is True for line in lines) == 5


def test_a_server_that_starts_late_fails_lindley_and_keeps_its_slope() -> None:
    names = failed(dd1_lines(MadeSessions(late_ns=250_000), SIZES))
    assert len(names) == 3 and all("off Lindley" in name for name in names)  # beyond capacity it is free that late, too


def test_a_server_that_is_slower_than_it_says_fails_the_slope() -> None:
    assert any("slope" in name for name in failed(dd1_lines(MadeSessions(slow=1.02), SIZES)))


@pytest.mark.parametrize("load", [0.3, 0.5])
def test_a_perfect_server_passes_m_d_1_on_ten_seeds(load: float) -> None:
    sessions = MadeSessions()
    lines = md1_lines(sessions, SIZES, load, range(1, 11))
    assert failed(lines) == [] and sum(line.passed is True for line in lines) == 9
    assert len({tuple(words) for words in sessions.asked}) == 10
    assert any("of 10 inside 95 %" in line.measured for line in lines)


def test_a_server_that_takes_a_fifth_longer_fails_the_mean_and_lindley() -> None:
    names = failed(md1_lines(MadeSessions(slow=1.2), SIZES, 0.5, range(1, 5)))
    assert any("mean wait" in name for name in names) and any("off Lindley" in name for name in names)


def test_an_interval_that_holds_anything_fails() -> None:
    """A host that stands still for seconds makes the waits so unlike that their mean's interval holds every truth."""

    class Stalling(MadeSessions):
        def run(self, name: str, words: Sequence[str], watch: bool = False) -> Measured:
            found = super().run(name, words, watch)
            stalled = dict(found.stamps)
            stalled["t_scheduled"] = stalled["t_scheduled"] + np.where(np.arange(1500) % 1500 < 30, 2 * 10**9, 0)
            return Measured({}, found.run, stalled, {**found.steps, "t_batch": stalled["t_scheduled"]}, found.occupancy)

    lines = md1_lines(Stalling(), SIZES, 0.5, [1])
    (mean,) = (line for line in lines if "mean wait" in line.name)
    assert mean.passed is False and "too wide to tell" in mean.measured


def test_a_mean_far_outside_fails_with_a_single_seed() -> None:
    arrivals = MadeSessions(slow=1.4).run("x", ["--arrival", "poisson", "--rate", "100", "--num-requests", "2000",
                                               "--null-service-ms", "5"])  # fmt: skip
    stamps = (arrivals.stamps[name] for name in ("t_tokenized", "t_scheduled", "t_first_token", "t_first_token"))
    queue = Served.of(*stamps, 5_000_000)
    result = md1_result(queue, 0.5, seed=0)
    assert result.far_outside and not result.inside


@pytest.mark.parametrize(("count", "enough"), [(1, 0), (2, 1), (10, 8), (20, 17)])
def test_of_ten_seeds_eight_must_be_inside(count: int, enough: int) -> None:
    assert enough_inside(count) == enough


def test_arrivals_that_were_changed_on_their_way_fail() -> None:
    class Bursty(MadeSessions):
        def run(self, name: str, words: Sequence[str], watch: bool = False) -> Measured:
            found = super().run(name, words, watch)
            shift = {"delta_ca2": 0.2, "planned_ca2": 1.0}
            arrivals = {"actual": {"anderson_darling": 9.0}, "shift": shift}
            return Measured({}, {**found.run, "arrivals": arrivals}, found.stamps, found.steps, found.occupancy)

    names = failed(md1_lines(Bursty(), SIZES, 0.5, [1]))
    assert sum("Sent gaps" in name for name in names) == 2


# Little's law


def test_counters_that_miss_requests_fail_little_s_law() -> None:
    session = MadeSessions().run("x", ["--rate", "150", "--num-requests", "500", "--null-service-ms", "5"], watch=True)
    assert little_line("x", session).passed
    assert session.occupancy is not None
    few = Occupancy(session.occupancy.times, session.occupancy.counts * 98 // 100)
    assert not little_line("x", Measured({}, session.run, session.stamps, session.steps, few)).passed


def test_counters_that_were_never_seen_fail_little_s_law() -> None:
    session = MadeSessions().run("x", ["--rate", "150", "--num-requests", "500", "--null-service-ms", "5"])
    nothing = Occupancy(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    for occupancy in (None, nothing):
        line = little_line("x", Measured({}, session.run, session.stamps, session.steps, occupancy))
        assert line.passed is False and "not seen" in line.measured


@pytest.mark.timeout(20)
def test_the_watch_finds_the_session_s_collector_and_samples_its_run_only(tmp_path: Path) -> None:
    for name in ("a", "b"):
        meta = {"final": str(tmp_path / name), "runs": []}
        Collector.create(tmp_path / f"isorate-{name}.collector", CollectorShape(1, 1, 1), meta, (1, 1)).close()
    (tmp_path / "isorate-junk.collector").write_text("junk")
    collector = Collector.attach(tmp_path / "isorate-b.collector")
    times = iter(range(10**9))
    watch = OccupancyWatch(tmp_path / "b", 1, lambda: next(times), tmp_path)
    watch.start()
    collector.set_word("ingress", 5)
    collector.set_word("tokens", 2)
    collector.set_word("current_run", 1)
    wait_until(lambda: len(watch._samples) > 3, what="samples")
    collector.set_word("receiver_stop", 1)
    seen = watch.stop()
    assert set(seen.counts.tolist()) == {3} and (np.diff(seen.times) > 0).all()
    collector.close()


@pytest.mark.timeout(20)
def test_a_watch_without_a_collector_saw_nothing(tmp_path: Path) -> None:
    watch = OccupancyWatch(tmp_path / "b", 1, lambda: 0, tmp_path)
    watch.start()
    assert len(watch.stop().times) == 0


@pytest.mark.timeout(20)
def test_probes_rest_in_the_runs_of_the_order_on_off_off_on(tmp_path: Path) -> None:
    meta = {"final": str(tmp_path / "b")}
    path = tmp_path / "isorate-b.collector"
    collector = Collector.create(path, CollectorShape(1, 1, 1), meta, (1, 1))
    switch = ProbesRest(tmp_path / "b", 1, tmp_path)
    switch.start()
    rested = []
    for run in range(1, 5):  # run 0 warms up
        collector.set_word("current_run", run)
        wait_until(lambda run=run: run - 1 in switch.seen, what="the run to be seen")
        rested.append(collector.word("probes_rest"))
    switch.stop()
    collector.close()
    assert rested == [0, 1, 1, 0]


# The other parts


def test_plans_of_the_poisson_process_pass() -> None:
    lines = poisson_lines(SIZES)
    assert failed(lines) == [] and len(lines) == 2
    assert all(line.value is not None for line in lines)


def test_the_floor_is_the_whole_path() -> None:
    lines, p50, p99 = measure_floor(MadeSessions(), SIZES)
    assert (p50, p99, failed(lines)) == (400_000, 400_000, [])


@pytest.mark.parametrize(("wait_ms", "passes"), [(4.4, False), (5.0, True), (5.6, False)])
def test_a_gil_hog_is_seen_as_the_switch_interval(wait_ms: float, passes: bool) -> None:
    sessions = MadeSessions(metrics={"gil_wait": [wait_ms]})
    (line,) = gil_lines(sessions, SIZES)
    assert line.passed is passes and "--null-hold-gil" in sessions.asked[0]


def test_a_gil_wait_that_was_not_measured_fails() -> None:
    (line,) = gil_lines(MadeSessions(), SIZES)
    assert line.passed is False and line.measured == "not measured"


@pytest.mark.parametrize(("on_ms", "passes"), [(5.04, True), (5.06, False), (float("nan"), False)])
def test_probes_that_cost_more_than_a_percent_fail(on_ms: float, passes: bool) -> None:
    sessions = MadeSessions(metrics={"ttft": [5.0, on_ms, on_ms, 5.0]})
    assert observer_lines(sessions, SIZES)[0].passed is passes
    assert [words[-1] for words in sessions.asked] == ["off", "on", "on", "off"]


def test_the_clocks_bound_is_the_least_of_all_handshakes() -> None:
    clocks = [{"engine": {"offset_bound_ns": 80_000}}, {"engine": {"offset_bound_ns": 20_000}}]
    engine, submitter = clock_lines(clocks)
    assert (engine.value, engine.passed) == (20.0, True)
    assert (submitter.value, submitter.passed) == (None, False)


@pytest.mark.parametrize("value", [None, float("nan"), 2.0])
def test_a_figure_that_is_missing_or_too_great_fails(value: float | None) -> None:
    assert at_most("x", "x", value, 1.0, "us").passed is False


# Sessions and the command


def write_csv(path: Path, status: str = "completed") -> None:
    path.write_text(f"run,request,status,t_wire_ns\n0,0,completed,5\n1,0,completed,7\n1,1,{status},8\n")


def test_the_stamps_are_those_of_the_measured_run(tmp_path: Path) -> None:
    write_csv(tmp_path / "requests.csv")
    assert read_stamps(tmp_path / "requests.csv")["t_wire"].tolist() == [7, 8]


def test_a_request_that_did_not_complete_ends_the_self_test(tmp_path: Path) -> None:
    write_csv(tmp_path / "requests.csv", status="failed")
    with pytest.raises(RunError, match="request 1 ended as failed"):
        read_stamps(tmp_path / "requests.csv")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--service-ms", "0"], "--service-ms must be"), (["--service-ms", "2.5"], "must be an integer"),
        (["--only", "md2"], "md2.*did you mean md1"), (["--only", ""], "there is no part"),
        (["--seeds", "0"], "--seeds"), (["--seeds", "x"], "--seeds"),
        (["--seed", "-1"], "--seed"), (["--quik"], "--quik"), (["now"], "now"), (["--rate", "3"], "--rate"),
        (["--probes", "off"], "--probes"), (["--model", "x"], "--model"), (["--arrival", "burst"], "--arrival"),
    ],
)  # fmt: skip
def test_bad_flags_are_refused_before_anything_starts(words: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        command.run_selftest("isorate", "0", words)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


class Made(MadeSessions):
    """What the command makes of it: `Sessions` with its memory."""

    def __init__(self, folder: Path, words: Sequence[str] = (), late_ns: int = 20_000) -> None:
        super().__init__(late_ns, metrics={"gil_wait": [5.0], "ttft": [5.0] * 8})
        self.clocks = [{name: {"offset_bound_ns": 9_000} for name in ("engine", "submitter")}]
        self.verdicts = ["VALID"]

    def run(self, name: str, words: Sequence[str], watch: bool = False) -> Measured:
        if name == "gil":
            self.metrics = {"gil_wait": iter([5.0])}
        elif name.startswith("observer"):
            self.metrics = {"ttft": iter([5.0])}
        else:
            self.metrics = {}
        return super().run(name, words, watch)


def test_all_parts_pass_on_a_perfect_host(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "Sessions", Made)
    assert command.run_selftest("isorate", "9.9", ["--quick", "--json", "--out", str(home / "out")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["passed"] and result["schema"] == "isorate.selftest/1" and result["version"] == "9.9"
    assert {line["part"] for line in result["lines"]} == set(command.PARTS)
    assert json.loads((home / "out" / "selftest.json").read_text()) == result
    assert json.loads((home / "cache/isorate/floor.json").read_text())["floor_p50_ns"] == 400_000


def test_one_figure_that_is_off_is_exit_code_1(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "Sessions", lambda folder, words: Made(folder, words, late_ns=10**6))
    assert command.run_selftest("isorate", "9.9", ["--quick", "--only", "dd1,clock"]) == 1
    out = capsys.readouterr().out
    assert "FAIL D/D/1 at load 0.5" in out and "PASS Clock offset" in out and "figures are off" in out


def test_a_home_that_cannot_be_written_is_told_and_no_failure(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "cache").touch()
    monkeypatch.setattr(command, "Sessions", Made)
    assert command.run_selftest("isorate", "9.9", ["--only", "floor"]) == 0
    assert "cannot keep the floor" in capsys.readouterr().out


def test_flags_of_the_processes_go_to_every_session(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Sequence[str]] = []
    monkeypatch.setattr(command, "Sessions", lambda folder, words: given.append(words) or Made(folder, words))
    assert command.run_selftest("isorate", "9.9", ["--rt", "--only", "dd1", "--engine-cores", "0", "--json"]) == 0
    assert given == [("--rt", "--engine-cores", "0")]
    assert json.loads(capsys.readouterr().out)["flags"] == list(given[0])


@pytest.mark.timeout(90)
def test_real_sessions_tell_what_the_parts_need(tmp_path: Path) -> None:
    """Whether the figures are good is for a quiet machine; that they are all there is not."""
    done = run_cli(
        ["selftest", "--quick", "--only", "clock", "--json", "--out", tmp_path / "out"], cwd=tmp_path, timeout=80
    )
    assert done.returncode in (0, 1), done.stderr
    result = json.loads(done.stdout)
    assert [line["value"] > 0 for line in result["lines"]] == [True, True]
    assert len(read_stamps(tmp_path / "out/clock/requests.csv")["t_delivered"]) == 20
