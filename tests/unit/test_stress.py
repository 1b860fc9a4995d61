"""The search for the highest rate, on made engines whose limit is known; and how one rate is judged."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.campaign import stress_command, sweep_command
from harness.campaign.folder import save_last
from harness.campaign.interrupts import interrupted_once
from harness.campaign.search import Limits, Outcome, Tried, search
from harness.campaign.stress import LOAD_ATTEMPTS, RateResult, StressSettings, judge, so_far, stress, trial_words
from harness.campaign.stress_command import run_stress
from harness.campaign.stress_report import answer, knee_bar, stress_json
from harness.campaign.trial import RunFigures, Trial
from harness.common.errors import ConfigError, IsorateError
from harness.config.run_config import RunConfig

LIMITS = Limits(start=1.0, low=0.01, high=1e6, tolerance=0.01, most=60)
GOOD = RunFigures(True, 0.0, 10.0, 10.0, 10.0, 0.01, 1.0, 2.0, None, 0.5)
Attempt = Callable[[float, bool], Tried]


def server(capacity: float, tried: list[tuple[float, bool]]) -> Attempt:
    """An engine that completes what it can, and holds every rate up to that."""

    def attempt(rate: float, sure: bool) -> Tried:
        tried.append((rate, sure))
        held = rate <= capacity
        return Tried(rate, Outcome.HELD if held else Outcome.FAILED, min(rate, capacity))

    return attempt


@pytest.mark.parametrize("capacity", [0.05, 0.9, 1.0, 3.3, 50.0, 199.0, 1000.0, 65_432.1])
def test_the_limit_of_a_server_is_found_within_the_tolerance(capacity: float) -> None:
    tried: list[tuple[float, bool]] = []
    found = search(server(capacity, tried), LIMITS)
    assert found.held <= capacity < found.failed
    assert found.failed <= found.held * 1.0100001
    assert (found.held, True) in tried
    assert (found.failed, True) in tried
    assert len(tried) < 35


def test_a_coarse_run_that_was_wrong_does_not_decide() -> None:
    """Single runs see twice the capacity; only the repeated ones see it as it is."""
    tried: list[tuple[float, bool]] = []
    right, wrong = server(10.0, tried), server(21.0, tried)
    found = search(lambda rate, sure: (right if sure else wrong)(rate, sure), LIMITS)
    assert found.held <= 10.0 < found.failed <= found.held * 1.0100001


def test_an_engine_that_holds_everything_ends_at_the_highest_rate() -> None:
    found = search(server(math.inf, []), LIMITS._replace(high=1000.0))
    assert (found.held, found.failed) == (1000.0, math.inf)
    assert "highest rate that may be tried" in found.stopped


def test_an_engine_that_holds_nothing_ends_at_the_lowest_rate() -> None:
    found = search(server(0.0, []), LIMITS)
    assert (found.held, found.failed) == (0.0, 0.01)
    assert "no rate down to" in found.stopped


def test_a_load_that_cannot_be_given_ends_the_search_and_blames_no_engine() -> None:
    found = search(lambda rate, sure: Tried(rate, Outcome.NO_LOAD if rate > 5 else Outcome.HELD, rate), LIMITS)
    assert found.held == 4.0
    assert math.isinf(found.failed)
    assert "could not be given at 8/s" in found.stopped


def test_the_number_of_trials_is_bounded() -> None:
    tried: list[tuple[float, bool]] = []
    search(server(1e5, tried), LIMITS._replace(most=3))
    assert len(tried) == 3


def trial(*runs: RunFigures, status: str = "VALID", bound_by: str = "nothing") -> Trial:
    return Trial(Path("x"), status, bound_by, runs)


@pytest.mark.parametrize(
    ("runs", "outcome"),
    [
        ([GOOD], Outcome.HELD),
        ([replace(GOOD, met=False)], Outcome.FAILED),
        ([replace(GOOD, growth=0.02)], Outcome.FAILED),
        ([GOOD, replace(GOOD, met=False), GOOD], Outcome.HELD),
        ([GOOD, replace(GOOD, met=False), replace(GOOD, growth=0.02)], Outcome.FAILED),
        ([], Outcome.FAILED),
    ],
)
def test_most_runs_decide_by_objectives_and_growth(runs: list[RunFigures], outcome: Outcome) -> None:
    assert judge(10.0, True, trial(*runs), 0.5).outcome is outcome


@pytest.mark.parametrize(
    ("astray", "outcome"),
    [
        ({"offered": 9.7}, Outcome.NO_LOAD),
        ({"offered": None}, Outcome.NO_LOAD),
        ({"lag_p99": 51.0}, Outcome.NO_LOAD),
        ({"lag_p99": 49.0}, Outcome.HELD),
        ({"offered": 9.9}, Outcome.HELD),
    ],
)
def test_a_load_that_is_astray_says_nothing_of_the_engine(astray: dict[str, float | None], outcome: Outcome) -> None:
    """10/s were asked for, the shortest objective is 500 ms."""
    assert judge(10.0, True, trial(replace(GOOD, **astray)), 0.5).outcome is outcome  # type: ignore[arg-type]


def settings() -> StressSettings:
    return StressSettings(LIMITS, 10.0, 3, 0.5, 0.5, ("--engine", "null"), Path("folder"))


def test_a_disturbed_load_is_given_again_before_the_search_ends() -> None:
    tried: list[RateResult] = []
    calls = 0

    def run(words: Sequence[str], folder: Path) -> Trial:
        nonlocal calls
        calls += 1
        disturbed = calls in (1, 2)
        return trial(replace(GOOD, offered=5.0 if disturbed else 10.0))

    result = stress(replace(settings(), limits=LIMITS._replace(start=10.0, high=10.0)), lambda one: None, tried, run)
    assert result.found.held == 10.0
    assert [one.outcome for one in tried[:LOAD_ATTEMPTS]] == [Outcome.NO_LOAD, Outcome.NO_LOAD, Outcome.HELD]


def test_a_trial_has_enough_requests_and_an_end() -> None:
    words = trial_words(settings(), 2.5, sure=True)
    flags = dict(zip(words[::2], words[1::2], strict=True))
    assert flags == {
        "--engine": "null", "--rate": "2.5", "--num-requests": "40", "--drain-timeout": "2", "--repeat-runs": "3",
    }  # fmt: skip
    assert "1000" in trial_words(settings(), 100.0, sure=False)


def test_an_interrupted_search_keeps_what_it_knows() -> None:
    tried = [
        RateResult(rate, outcome, "", "engine", False, trial(GOOD))
        for rate, outcome in ((1.0, Outcome.HELD), (2.0, Outcome.HELD), (4.0, Outcome.FAILED))
    ]
    result = so_far(tried, "interrupted")
    assert (result.found.held, result.found.failed) == (2.0, 4.0)
    assert "interrupted" in answer(result)
    assert stress_json(result, settings(), "stress")["held_rate"] == 2.0


def test_the_knee_is_drawn_to_scale() -> None:
    bars = [len(knee_bar(value, [1.0, 2.0, 1000.0], 20, ascii_only=True)) for value in (1.0, 2.0, 1000.0)]
    assert bars == [2, 4, 20]
    assert knee_bar(None, [1.0], 20, ascii_only=True) == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--slo is needed"),
        (["--slo", "ttft"], "--slo"),
        (["--slo", "ttft=1s", "--rate", "5"], "--rate: the search decides"),
        (["--slo", "ttft=1s", "--drain-timeout", "5"], "--drain-timeout: the search decides"),
        (["--slo", "ttft=1s", "--duration", "5"], "--duration: the search decides"),
        (["--slo", "ttft=1s", "--turns", "all"], "--turns: a session's later turns"),
        (["--slo", "ttft=1s", "--arrival", "steps"], "--arrival steps: the search tries one rate"),
        (["--slo", "ttft=1s", "--start-rate", "0"], "--start-rate must be"),
        (["--slo", "ttft=1s", "--start-rate", "5", "--max-rate", "4"], "must lie between"),
        (["--slo", "ttft=1s", "--tolerance", "nan"], "--tolerance"),
        (["--slo", "ttft=1s", "--repeats", "1.5"], "--repeats must be an integer"),
        (["--slo", "ttft=1s", "--engine", "nosuch"], "--engine"),
        (["--slo", "ttft=1s", "--out", "."], "it is there already"),
    ],
)
def test_a_bad_search_starts_nothing(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=says):
        run_stress("isorate", words)
    assert list(tmp_path.iterdir()) == []


def test_every_setting_that_a_campaign_decides_is_one_of_run() -> None:
    """A name that is none would let the flag through, and the search would overrule it silently."""
    assert {*stress_command._DECIDED, *sweep_command._DECIDED} <= set(RunConfig.model_fields)


def test_a_search_without_a_rate_blames_no_engine() -> None:
    assert answer(so_far([], "interrupted")) == "No rate was tried to its end: interrupted."


def test_a_result_that_cannot_be_saved_is_a_fault_and_no_end(tmp_path: Path) -> None:
    failures: list[IsorateError] = []
    for _ in range(2):
        save_last(tmp_path / "none" / "stress.json", {}, failures)
    assert [str(failure).startswith(f"cannot write {tmp_path}") for failure in failures] == [True]


def test_the_first_interruption_ends_a_campaign_and_no_other_keeps_it_from_saving() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with interrupted_once():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
    assert signal.getsignal(signal.SIGTERM) is before
