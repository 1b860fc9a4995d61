"""`experiment schedule`: its cells and order, the rule of its scale, and a conclusion that follows from the figures."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from harness.campaign import experiment, experiment_command, experiment_report
from harness.campaign.experiment import (
    CELLS,
    FEWEST_REQUESTS,
    PUBLISHED_REQUESTS,
    Cell,
    CellSession,
    Figures,
    Scale,
    fitting,
    load_words,
)
from harness.campaign.experiment_command import run_experiment
from harness.campaign.experiment_findings import Change, compare, lag_effects, pretok_effects, sentences
from harness.campaign.experiment_report import experiment_json, render, sessions_of
from harness.campaign.order_interval import median_interval
from harness.campaign.trial import Trial
from harness.cli.options import run_parser
from harness.common.errors import ConfigError
from harness.config.run_config import RunConfig

pytestmark = pytest.mark.timeout(30)
SCALE = Scale(36, 3.6, 1000.0, 10.0, asked=False)
NOTHING = Figures(*[None] * len(Figures._fields))


def rounds_of(value: Callable[[Cell, int], float], rounds: int = 6, figure: str = "arrival_rate") -> list[CellSession]:
    """Sessions whose figure is `value(cell, round)`."""
    return [
        CellSession(cell, k, f"{k}-{cell.name}", "VALID", 9324, (NOTHING._replace(**{figure: value(cell, k)}),))
        for k in range(rounds)
        for cell in CELLS
    ]


# The interval


@pytest.mark.parametrize(
    ("n", "depth", "confidence"),
    [(5, 1, 0.9375), (6, 1, 0.96875), (9, 2, 0.9609375), (10, 2, 0.978515625), (20, 6, 0.9586105346679688)],
)
def test_the_interval_is_the_tables_of_order_statistics(n: int, depth: int, confidence: float) -> None:
    found = median_interval([float(k) for k in range(1, n + 1)])
    assert found is not None
    assert (found.low, found.high, found.median) == (depth, n + 1 - depth, (n + 1) / 2)
    assert found.confidence == pytest.approx(confidence, abs=1e-12)


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    held = 0
    for values in rng.exponential(size=(4000, 9)):
        found = median_interval(values.tolist())
        assert found is not None
        held += found.low <= math.log(2) <= found.high
    assert held / 4000 == pytest.approx(0.9609, abs=0.013)  # four standard errors


def test_one_value_has_no_confidence_and_none_no_estimate() -> None:
    one = median_interval([3.0])
    assert one is not None and (one.median, one.low, one.high, one.confidence) == (3.0, 3.0, 3.0, 0.0)
    assert median_interval([]) is None


# The conclusion


def published(cell: Cell, k: int) -> float:
    """Rates as published for one process (256 requests in 375.5, 302.2, 255.4, 255.2 ms), with a drift over rounds."""
    walls = {("relative", "off"): 375.5, ("relative", "on"): 302.2}
    wall = walls.get((cell.schedule, cell.pretok), 255.3) if cell.topology == "inproc" else 255.3
    return 255_000 / (wall * (1 + 0.05 * k))


def test_the_published_figures_change_under_relative_in_one_process_only() -> None:
    effects = pretok_effects(rounds_of(published))
    changes = {(one.of.topology, one.of.schedule): one.change for one in effects}
    assert changes == {
        ("inproc", "relative"): Change.CHANGES,
        ("inproc", "absolute"): Change.STAYS,
        ("separate", "relative"): Change.STAYS,
        ("separate", "absolute"): Change.STAYS,
    }
    ratio = effects[0].ratio
    assert ratio is not None and ratio.median == pytest.approx(375.5 / 302.2)
    said = sentences(rounds_of(published))
    assert said[0].startswith("In one process, relative clock: pretok raises the arrival rate (+24.26 %")
    assert said[4].startswith("So under inproc + relative tokenizing beforehand changes the load itself")


def test_other_figures_give_another_conclusion() -> None:
    assert sentences(rounds_of(lambda cell, k: 1000.0))[4].startswith("So the load was the same in all cells")
    slower = sentences(rounds_of(lambda cell, k: 900.0 if cell.pretok == "on" else 1000.0))
    assert all("pretok lowers the arrival rate (-10.00 %" in line for line in slower[:4])


def test_a_difference_within_the_margin_is_no_change_although_the_interval_excludes_1() -> None:
    effect = pretok_effects(rounds_of(lambda cell, k: 1001.0 if cell.pretok == "on" else 1000.0))[0]
    assert effect.excludes_one and effect.change is Change.STAYS


@pytest.mark.parametrize(
    "value",
    [lambda cell, k: 1000.0 + 300 * (k % 2) * (cell.pretok == "on"), lambda cell, k: math.nan],
    ids=["rounds that contradict each other", "not a number"],
)
def test_what_the_rounds_do_not_decide_is_said_to_be_undecided(value: Callable[[Cell, int], float]) -> None:
    effects = pretok_effects(rounds_of(value))
    assert {one.change for one in effects} == {Change.UNDECIDED}
    assert sentences(rounds_of(value))[4].startswith("So far not all four are decided")


def test_too_few_rounds_decide_nothing() -> None:
    assert pretok_effects(rounds_of(published, rounds=4))[0].change is Change.UNDECIDED
    assert pretok_effects(rounds_of(published, rounds=5))[0].change is Change.CHANGES


def test_ratios_are_of_sessions_of_the_same_round() -> None:
    sessions = rounds_of(lambda cell, k: 10.0**k * (3.0 if cell.topology == "inproc" else 2.0), figure="submit_lag_p99")
    for finding in lag_effects(sessions):
        assert finding.ratio is not None and (finding.ratio.low, finding.ratio.high) == (1.5, 1.5)
    on, off = Cell("inproc", "absolute", "on"), Cell("inproc", "absolute", "off")
    only = [one for one in sessions if one.cell != off or one.round != 2]
    unpaired = compare(only, "submit_lag_p99", on, off).ratio
    assert unpaired is not None and unpaired.rounds == 5


def test_nothing_measured_is_said_and_not_computed() -> None:
    assert "not measured" in sentences([])[0]


# The load and its scale


def test_the_eight_cells_share_the_published_load() -> None:
    words = load_words([], {})
    assert len(set(CELLS)) == 8
    for cell in CELLS:
        config = RunConfig(**vars(run_parser("p").parse_all(experiment.cell_words(words, cell, 256))))
        assert (config.prompt_repeats, config.unique_prompts, config.submit_interval_ms) == ((256,), True, 1.0)
        assert (config.max_new_tokens, config.max_batch_size, config.prefix_cache) == (1, 16, False)
        assert (config.topology, config.schedule, config.pretok) == (
            cell.topology, cell.schedule, cell.pretok == "on",
        )  # fmt: skip


def test_what_the_user_gives_replaces_the_published() -> None:
    words = load_words(["--max-batch-size", "4", "--prompts", "x"], {"max_batch_size": "4", "prompts": "x"})
    assert words.count("--max-batch-size") == 1 and "--prompt-repeats" not in words


@pytest.mark.parametrize(
    ("rate", "budget_s", "requests"),
    [(3.6, 10, 36), (0.01, 10, FEWEST_REQUESTS), (1e6, 10, PUBLISHED_REQUESTS), (10.0, 10, 100)],
)
def test_the_number_of_requests_is_what_the_host_serves_in_the_budget(
    rate: float, budget_s: float, requests: int
) -> None:
    assert fitting(rate, budget_s) == requests


# From command line to table


class FakeRuns:
    """Stands in for `run_trial`: writes the summary of a run whose figures follow from its flags."""

    def __init__(self, fail_at: int = 0, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.words: list[list[str]] = []
        self.fail_at, self.error = fail_at, error

    def __call__(self, words: Sequence[str], folder: Path) -> Trial:
        self.words.append(list(words))
        folder.mkdir()
        if len(self.words) == self.fail_at:
            raise self.error("cut off")
        config = RunConfig(**vars(run_parser("p").parse_all(list(words))))
        slow = config.topology == "inproc" and config.schedule == "relative" and not config.pretok
        rate = 750.0 if slow else 1000.0
        metric = {"count": 9, "p50": 1.0, "p99": 0.875 if config.topology == "inproc" else 0.000028}
        run = {
            "warmup": False, "submit_wall_ms": 9.0, "rate": {"offered": rate, "completed": 40.0},
            "engine": {"busy_fraction": 1.0},
            "metrics": dict.fromkeys(("submit_lag", "ttft", "ttft_from_submit", "add_request"), metric),
        }  # fmt: skip
        summary = {"schema": "isorate.summary/1", "runs": [{**run, "warmup": True}, run],
                   "plan": {"prompt_tokens": 259}}  # fmt: skip
        (folder / "summary.json").write_text(json.dumps(summary))
        return Trial(folder, "VALID", "engine", ())


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    fake = FakeRuns()
    monkeypatch.setattr(experiment, "run_trial", fake)
    return fake


def saved(folder: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((folder / "experiment.json").read_text())
    return parsed


def test_rounds_are_interleaved_and_the_conclusion_is_saved(
    runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_experiment("p", ["schedule", "--rounds", "6", "--budget", "2", "--out", str(tmp_path / "e")]) == 0
    assert len(runs.words) == 1 + 6 * 8
    assert runs.words[0][-2:] == ["--submit-interval-ms", "0"]
    result = saved(tmp_path / "e")
    order = [tuple(one["cell"].values()) for one in result["sessions"]]
    assert order[:8] == [tuple(cell) for cell in CELLS] and order[8:16] == [tuple(cell) for cell in reversed(CELLS)]
    assert result["scale"]["requests"] == 80 and result["scale"]["utilization"] == 25.0
    assert [one["change"] for one in result["findings"]][:4] == ["changes", "stays put", "stays put", "stays put"]
    assert result["findings"][4]["ratio"]["median"] == pytest.approx(0.875 / 0.000028)
    printed = capsys.readouterr().out
    assert "31,250.0 x" in printed and "pretok raises the arrival rate" in printed.replace("\n", " ")


def test_an_experiment_that_was_cut_off_goes_on_where_it_was(
    runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.fail_at = 6
    out = tmp_path / "e"
    assert run_experiment("p", ["schedule", "--rounds", "1", "--budget", "2", "--out", str(out)]) == 130
    assert len(saved(out)["sessions"]) == 4
    runs.fail_at = 0
    assert run_experiment("p", ["schedule", "--resume", str(out), "--rounds", "2"]) == 0
    result = saved(out)
    assert [(one["round"], tuple(one["cell"].values())) for one in result["sessions"]] == [
        *((0, tuple(cell)) for cell in CELLS), *((1, tuple(cell)) for cell in reversed(CELLS)),
    ]  # fmt: skip
    assert result["sessions"][4]["folder"].endswith("-again-1")
    assert len(runs.words) == 1 + 16 + 1


def test_a_failed_session_ends_it_with_what_is_known(
    runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.fail_at, runs.error = 4, ConfigError
    assert run_experiment("p", ["schedule", "--out", str(tmp_path / "e"), "--num-requests", "5"]) == 1
    assert "cut off" in capsys.readouterr().err
    assert saved(tmp_path / "e")["scale"]["requests"] == 5
    assert runs.words[1][-2:] == ["--num-requests", "5"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "which experiment"),
        (["shedule"], "did you mean schedule"),
        (["schedule", "--topology", "inproc"], "--topology: the experiment decides it"),
        (["schedule", "--rate", "5"], "--rate: the experiment's requests are a constant interval apart"),
        (["schedule", "--submit-interval-ms", "0"], "--submit-interval-ms must be above 0"),
        (["schedule", "--num-requests", "1"], "--num-requests must be at least 2"),
        (["schedule", "--num-requests", "many"], "--num-requests"),
        (["schedule", "--pacer", "compiled"], "--pacer means nothing with --topology inproc"),
        (["schedule", "--rounds", "0"], "--rounds must be"),
        (["schedule", "--budget", "inf"], "--budget must be"),
        (["schedule", "--resume", "nowhere"], "no experiment to go on with"),
        (["schedule", "--resume", "nowhere", "--budget", "3"], "--budget: an experiment is resumed with its own flags"),
        (["schedule", "--resume", "nowhere", "--seed", "3"], "--seed: an experiment is resumed with its own flags"),
        (["schedule", "--rats", "3"], "there is no flag --rats"),
    ],
)
def test_bad_usage_is_one_line_and_starts_nothing(
    runs: FakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        run_experiment("p", words)
    assert line in str(caught.value) and "\n" not in str(caught.value)
    assert runs.words == [] and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "other"}', '{"schema": "isorate.experiment.schedule/1"}'])
def test_a_damaged_result_is_not_resumed(runs: FakeRuns, tmp_path: Path, text: str) -> None:
    (tmp_path / experiment_command.RESULT).write_text(text)
    with pytest.raises(ConfigError, match="is damaged"):
        run_experiment("p", ["schedule", "--resume", str(tmp_path)])


def test_what_is_saved_reads_back_equal() -> None:
    sessions = rounds_of(published, rounds=2)
    text = json.dumps(experiment_json(sessions, SCALE, ["--x"], "p experiment schedule", 2))
    assert sessions_of(json.loads(text)) == (SCALE, sessions)


def test_the_table_fits_80_columns_uncut() -> None:
    sessions = [
        CellSession(cell, k, "f", "VALID", 66304, (Figures(*[12_345.678 * (1 + k / 10)] * len(Figures._fields)),))
        for cell in CELLS
        for k in range(3)
    ]
    out = io.StringIO()
    render(sessions, SCALE, Path("somewhere"), Console(file=out, width=80))
    text = out.getvalue()
    assert "\u2026" not in text and max(map(len, text.splitlines())) <= 80
    assert "separate absolute" in text and "12.35-14.81" in text


@pytest.mark.parametrize(
    ("value", "text"), [(999.9, "999.9"), (999.97, "1,000"), (1_002.4, "1,002"), (44.0, "44"), (0.5, "0.500")]
)
def test_a_figure_that_rounds_to_a_thousand_is_written_as_one(value: float, text: str) -> None:
    assert experiment_report._figure(value) == text
