"""`isorate sweep` from its command line to its table and exit code."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.campaign.flags import parse, whole
from harness.campaign.folder import make_folder, remove_empty, save_last, write_result
from harness.campaign.interrupts import interrupted_once
from harness.campaign.sweep import (
    Axis,
    Point,
    PointTrial,
    median,
    parse_axis,
    points,
    require_few,
    require_free,
    sweep,
    words_of,
)
from harness.cli.options import Option, run_parser
from harness.common.errors import ConfigError, IsorateError
from harness.report.words import rate_words, safe, time_words

SCHEMA = "isorate.sweep/1"
ABOUT = "Run the same load at every value of a flag of run, and show all of them in one table."
OPTIONS = (
    Option(("--vary",), "vary", "FLAG=V1,V2,...", "a flag of run and its values, such as rate=1,2,4; several --vary "
           "give all combinations; values that hold commas are parted by |", repeats=True),
    Option(("--rounds",), "rounds", "N", "how often all points are run, forwards and backwards in turn (default 1)"),
    Option(("--out",), "out", "DIR", "folder of the sweep (default results/sweep-TIME)"),
)  # fmt: skip
_DECIDED = dict.fromkeys(("allow_invalid", "quiet"), "the sweep decides it")
_GRADES = ("VALID", "SUSPECT", "INVALID")


def run_sweep(program: str, argv: Sequence[str]) -> int:
    """As `_run`, and an interruption ends it once."""
    with interrupted_once():
        return _run(program, argv)


def _run(program: str, argv: Sequence[str]) -> int:
    """Run all points; returns the exit code. Raises ConfigError before anything was started."""
    words = parse(f"{program} sweep", ABOUT, OPTIONS, argv, _DECIDED)
    axes = [parse_axis(text) for text in words.own.get("vary", [])]
    if not axes:
        raise ConfigError("--vary is needed: which flag, and which values? (such as --vary rate=1,2,4)")
    require_free(axes, words.run)
    rounds = whole(words.own, "rounds", 1, 1, 1000)
    require_few(axes, rounds)
    _check_points(program, axes, words.words)
    folder = make_folder(Path(words.own["out"]) if "out" in words.own else None, "sweep")
    command = f"{program} sweep {shlex.join(argv)}"
    trials: list[PointTrial] = []

    def tell(trial: PointTrial) -> None:
        trials.append(trial)
        print(_live(axes, trial), file=sys.stderr, flush=True)
        write_result(folder / "sweep.json", sweep_json(axes, trials, command))

    code, failures = 0, list[IsorateError]()
    try:
        sweep(axes, words.words, rounds, folder, tell)
    except KeyboardInterrupt:
        code = 130
    except IsorateError as error:
        if isinstance(error, ConfigError) and not trials:
            remove_empty(folder)
            raise
        failures.append(error)
    save_last(folder / "sweep.json", sweep_json(axes, trials, command), failures)
    render(axes, trials, folder)
    for failure in failures:
        print(f"isorate: {failure}", file=sys.stderr)
    return code or (1 if failures else 0)


def _check_points(program: str, axes: Sequence[Axis], words: Sequence[str]) -> None:
    """Every point's configuration, before the first of them is run."""
    from harness.config.run_config import RunConfig

    for point in points(axes):
        RunConfig(**vars(run_parser(program).parse_all([*words, *words_of(axes, point)])))


def _live(axes: Sequence[Axis], one: PointTrial) -> str:
    figures = one.trial.runs[-1] if one.trial.runs else None
    said = "no run was measured" if figures is None else f"TTFT p50 {time_words(figures.ttft_p50)}"
    return f"{shlex.join(words_of(axes, one.point))}: {one.trial.status}, {said}"


def render(axes: Sequence[Axis], trials: Sequence[PointTrial], folder: Path, console: Console | None = None) -> None:
    """Print a line a point: medians over its runs, and its worst verdict."""
    console = console or Console(file=sys.stdout)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for axis in axes:
        table.add_column(axis.flag.removeprefix("--"), justify="right", no_wrap=True)
    for name in ("runs", "offered", "completed", "goodput", "lag p99", "TTFT p50", "TTFT p99", "TPOT p99", "verdict"):
        table.add_column(name, justify="right", no_wrap=True)
    for point in points(axes):
        of_point = [one for one in trials if one.point == point]
        if not of_point:
            continue
        status = max((one.trial.status for one in of_point), key=_GRADES.index)
        times = [median(trials, point, name) for name in ("lag_p99", "ttft_p50", "ttft_p99", "tpot_p99")]
        table.add_row(
            *(safe(value) for value in point),
            str(sum(len(one.trial.runs) for one in of_point)),
            *(_or_dash(rate_words, median(trials, point, name), "") for name in ("offered", "completed", "goodput")),
            *(_or_dash(time_words, value) for value in times),
            status,
        )
    console.print(table, width=min(console.width, 120))
    console.print(Text.assemble(("Results: ", "bold"), safe(folder)), soft_wrap=True, highlight=False)


def _or_dash(words: Any, value: float | None, *more: str) -> str:
    return "-" if value is None else str(words(value, *more))


def sweep_json(axes: Sequence[Axis], trials: Sequence[PointTrial], command: str) -> dict[str, Any]:
    """sweep.json: the axes and every trial in order."""

    def flags(point: Point) -> dict[str, str]:
        return {axis.flag.removeprefix("--"): value for axis, value in zip(axes, point, strict=True)}

    return {
        "schema": SCHEMA,
        "command": command,
        "axes": [axis._asdict() for axis in axes],
        "trials": [
            {
                "point": flags(one.point),
                "round": one.round,
                "folder": one.trial.folder.name,
                "verdict": one.trial.status,
                "bound_by": one.trial.bound_by,
                "runs": [asdict(run) for run in one.trial.runs],
            }
            for one in trials
        ],
    }
