"""Sweeps: axes, their points, the order of rounds, and the table."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from harness.campaign.sweep import Axis, PointTrial, in_order, median, parse_axis, points, words_of
from harness.campaign.sweep_command import render, run_sweep, sweep_json
from harness.campaign.trial import RunFigures, Trial
from harness.common.errors import ConfigError

FIGURES = RunFigures(None, 0.0, 10.0, 9.0, None, 0.01, 1.0, 2.0, None, 0.5)


def test_values_are_parted_by_commas_or_by_bars() -> None:
    assert parse_axis("rate=1,2, 4") == Axis("--rate", ("1", "2", "4"))
    assert parse_axis("--engine-cores=0,1|0") == Axis("--engine-cores", ("0,1", "0"))


@pytest.mark.parametrize("text", ["rate", "rate=", "=1", "rate=1,,2", "rate=1,1", "nope=1", "quiet=on", "out=a,b"])
def test_what_is_no_axis_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--vary"):
        parse_axis(text)


def test_rounds_run_forwards_and_backwards() -> None:
    axes = [Axis("--rate", ("1", "2")), Axis("--seed", ("7",))]
    assert points(axes) == [("1", "7"), ("2", "7")]
    assert words_of(axes, ("2", "7")) == ["--rate", "2", "--seed", "7"]
    assert [point[0] for _, point in in_order(points(axes), 2)] == ["1", "2", "2", "1"]


def made(point: str, ttft: float, status: str = "VALID") -> PointTrial:
    from dataclasses import replace

    return PointTrial((point,), 0, Trial(Path("f"), status, "nothing", (replace(FIGURES, ttft_p50=ttft),)))


def test_a_point_shows_medians_and_its_worst_verdict() -> None:
    axes = [Axis("--rate", ("1", "2"))]
    trials = [made("1", 3.0), made("1", 5.0, "SUSPECT"), made("1", 9.0), made("2", 4.0)]
    assert median(trials, ("1",), "ttft_p50") == 5.0
    out = io.StringIO()
    render(axes, trials, Path("folder"), Console(file=out, width=100))
    line = next(line for line in out.getvalue().splitlines() if "5.00 ms" in line)
    assert "SUSPECT" in line
    assert max(map(len, out.getvalue().splitlines())) <= 100
    assert sweep_json(axes, trials, "sweep")["trials"][1]["verdict"] == "SUSPECT"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--vary is needed"),
        (["--vary", "rate=1,x"], "--rate"),
        (["--vary", "rate=1", "--vary", "rate=2"], "named twice"),
        (["--vary", "rate=1", "--quiet"], "--quiet"),
        (["--vary", "rate=1", "--rounds", "0"], "--rounds"),
        (["--vary", "rate=1,2", "--rate", "3"], "--rate is given and varied"),
        (["--vary", "seed=1,2,3", "--rounds", "1000", "--vary", "rate=1,2,3,4"], "12000 sessions are too many"),
        (["--vary", "rate=1", "--no-such"], "--no-such"),
    ],
)
def test_a_bad_sweep_starts_nothing(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=says):
        run_sweep("isorate", words)
    assert list(tmp_path.iterdir()) == []


def test_a_point_that_a_run_refuses_ends_the_sweep_as_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only the run can see, such as a file that is not there: exit code 2, and no empty folder stays."""

    def refuse(*_: object) -> Trial:
        raise ConfigError("--prompts x: No such file or directory")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.campaign.sweep.run_trial", refuse)
    with pytest.raises(ConfigError, match="No such file"):
        run_sweep("isorate", ["--vary", "rate=1", "--engine", "null", "--out", "made"])
    assert list(tmp_path.iterdir()) == []
