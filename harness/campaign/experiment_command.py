"""`isorate experiment schedule` from its command line to its table and exit code."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.campaign.experiment import (
    CELLS,
    PUBLISHED_REQUESTS,
    CellSession,
    Scale,
    calibrate,
    cell_words,
    load_words,
    run_rounds,
)
from harness.campaign.experiment_report import SCHEMA, experiment_json, live_line, render, scale_lines, sessions_of
from harness.campaign.flags import CampaignWords, number, parse, whole
from harness.campaign.folder import make_folder, write_result
from harness.cli.options import Option, nearest, run_parser
from harness.common.errors import ConfigError, IsorateError
from harness.session.workspace import absolute

EXPERIMENTS = ("schedule",)
RESULT = "experiment.json"
ABOUT = (
    "The published experiment: relative or absolute clock, raw or tokenized prompts, submitter as a thread of the "
    "engine's process or as a process of its own. Eight sessions a round, forwards and backwards in turn; one table "
    "with intervals, and what it shows in words."
)
OPTIONS = (
    Option(("--rounds",), "rounds", "N", "how often all eight cells are run (default 6: intervals of 97 %)"),
    Option(("--budget",), "budget", "S", "seconds that the engine needs for a run's requests, which decides their "
           "number (default 10)"),
    Option(("--resume",), "resume", "DIR", "go on with an experiment that was begun, with its own flags: only --rounds "
           "may be given beside it"),
    Option(("--out",), "out", "DIR", "folder of the experiment (default results/experiment-TIME)"),
)  # fmt: skip
_DECIDED = {
    **dict.fromkeys(("topology", "schedule", "pretok", "allow_invalid", "quiet", "plan"), "the experiment decides it"),
    **dict.fromkeys(
        ("rate", "arrival", "duration_s", "trace", "think_time", "max_concurrency"),
        "the experiment's requests are a constant interval apart: --submit-interval-ms",
    ),
}
DEFAULT_ROUNDS, DEFAULT_BUDGET_S = 6, 10.0
EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130


@dataclass(slots=True)
class Experiment:
    """One experiment and what of it is done. words: flags that all cells share. scale: None until calibrated.

    budget_s, interval_ms, requests (None: by the budget): what the calibration needs.
    """

    folder: Path
    words: list[str]
    command: str
    rounds: int
    scale: Scale | None
    sessions: list[CellSession]
    budget_s: float = DEFAULT_BUDGET_S
    interval_ms: float = 0.0
    requests: int | None = None

    def save(self) -> None:
        """Write experiment.json. Raises RunError."""
        if self.scale is not None:
            write_result(
                self.folder / RESULT,
                experiment_json(self.sessions, self.scale, self.words, self.command, self.rounds),
            )

    def tell(self, session: CellSession) -> None:
        """Take a session that has ended."""
        self.sessions.append(session)
        print(live_line(session), file=sys.stderr, flush=True)
        self.save()


def run_experiment(program: str, argv: Sequence[str]) -> int:
    """Run what is asked for; returns the exit code. Raises ConfigError before anything was started."""
    name, *rest = argv or [""]
    if name in ("-h", "--help"):
        name, rest = "schedule", ["--help"]
    if name not in EXPERIMENTS:
        hint = nearest(name, list(EXPERIMENTS)) or f": there is {', '.join(EXPERIMENTS)}"
        raise ConfigError(f"there is no experiment {name!r}{hint}" if name else f"which experiment{hint}")
    words = parse(f"{program} experiment schedule", ABOUT, OPTIONS, rest, _DECIDED)
    command = f"{program} experiment {shlex.join(argv)}"
    experiment = _resumed(words) if "resume" in words.own else _begun(program, words, command)
    code, failure = EXIT_DONE, None
    try:
        _go_on(experiment)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except IsorateError as error:
        code, failure = EXIT_FAILED, error
    if experiment.scale is not None:
        experiment.save()
        render(experiment.sessions, experiment.scale, experiment.folder)
    if failure is not None:
        print(f"isorate: {failure}", file=sys.stderr)
    return code


def _go_on(experiment: Experiment) -> None:
    if experiment.scale is None:
        experiment.scale = calibrate(
            experiment.words, experiment.interval_ms, experiment.folder / "calibration", experiment.budget_s,
            experiment.requests,
        )  # fmt: skip
        experiment.save()
        for line in scale_lines(experiment.scale):
            print(line, file=sys.stderr, flush=True)
    run_rounds(
        experiment.words, experiment.scale, experiment.rounds, experiment.folder, experiment.sessions, experiment.tell
    )


def _begun(program: str, words: CampaignWords, command: str) -> Experiment:
    shared = load_words(_without_number(words), words.run)
    from harness.config.run_config import RunConfig

    requests = words.run.get("num_requests")
    for cell in CELLS:  # every configuration, before the first of them is run
        flags = run_parser(program).parse_all(cell_words(shared, cell, requests or PUBLISHED_REQUESTS))
        config = RunConfig(**vars(flags))
    if not config.submit_interval_ms:
        raise ConfigError("--submit-interval-ms must be above 0: the experiment is about the interval")
    if config.num_requests == 1:
        raise ConfigError("--num-requests must be at least 2: one request has no arrival rate")
    budget_s = number(words.own, "budget", DEFAULT_BUDGET_S, 0.1, 3600)
    rounds = whole(words.own, "rounds", DEFAULT_ROUNDS, 1, 1000)
    folder = make_folder(Path(words.own["out"]) if "out" in words.own else None, "experiment")
    asked = None if requests is None else config.num_requests
    return Experiment(folder, shared, command, rounds, None, [], budget_s, config.submit_interval_ms, asked)


def _without_number(words: CampaignWords) -> list[str]:
    """The user's flags less --num-requests, which every session gets."""
    kept, skip = [], False
    for word in words.words:
        if skip:
            skip = False
        elif word == "--num-requests":
            skip = True
        elif not word.startswith("--num-requests="):
            kept.append(word)
    return kept


def _resumed(words: CampaignWords) -> Experiment:
    """The experiment in a folder. Raises ConfigError where there is none, or where other flags are given."""
    other = sorted(f"--{name}" for name in words.own if name not in ("resume", "rounds")) + list(words.words)
    if other:
        raise ConfigError(f"{other[0]}: an experiment is resumed with its own flags; only --rounds may be given")
    folder = absolute(Path(words.own["resume"]).expanduser())
    path = folder / RESULT
    try:
        saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if saved["schema"] != SCHEMA:
            raise ValueError(f"schema {saved['schema']!r}")
        scale, sessions = sessions_of(saved)
        rounds = whole(words.own, "rounds", int(saved["rounds"]), 1, 1000)
        shared = [str(word) for word in saved["words"]]
        return Experiment(folder, shared, str(saved["command"]), rounds, scale, sessions)
    except OSError as error:
        raise ConfigError(f"--resume {folder}: no experiment to go on with: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"--resume {folder}: {RESULT} is damaged: {error}") from None
