"""`isorate stress` from its command line to its exit code."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.campaign.flags import CampaignWords, number, parse, whole
from harness.campaign.folder import make_folder, remove_empty, save_last, write_result
from harness.campaign.interrupts import interrupted_once
from harness.campaign.search import Limits
from harness.campaign.stress import RateResult, StressSettings, so_far, stress, trial_words
from harness.campaign.stress_report import live_line, render, stress_json
from harness.cli.options import Option, run_parser
from harness.common.errors import ConfigError, IsorateError

ABOUT = (
    "Find the highest arrival rate that the engine holds: --slo kept by the planned requests, and no backlog that "
    "grows. The rate doubles until one fails; then the interval is cut, on repeated runs, until it is narrower than "
    "--tolerance."
)
OPTIONS = (
    Option(("--start-rate",), "start_rate", "R", "first rate, requests per second (default 1)"),
    Option(("--min-rate",), "min_rate", "R", "no lower rate is tried (default 0.01)"),
    Option(("--max-rate",), "max_rate", "R", "no higher rate is tried (default 1e6)"),
    Option(("--tolerance",), "tolerance", "PERCENT", "width of the answer that is enough (default 1)"),
    Option(("--trial",), "trial", "S", "seconds of load a run (default 10), 40 requests at least"),
    Option(("--repeats",), "repeats", "N", "runs that decide near the limit; the majority counts (default 3)"),
    Option(("--max-trials",), "max_trials", "N", "sessions at the most (default 40)"),
    Option(("--out",), "out", "DIR", "folder of the search (default results/stress-TIME)"),
)
_BY_SEARCH = (
    "rate", "submit_interval_ms", "num_requests", "duration_s", "repeat_runs", "drain_timeout_s", "allow_invalid",
    "quiet", "plan", "trace", "think_time", "max_concurrency",
)  # fmt: skip
_DECIDED = {
    **dict.fromkeys(_BY_SEARCH, "the search decides it (see `stress --help`)"),
    "turns": "a session's later turns come when the engine ends earlier ones, so the search would not set the rate",
}
#: Processes that one rate does not describe.
_NO_ONE_RATE = ("ramp", "steps", "burst")
EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130


def run_stress(program: str, argv: Sequence[str]) -> int:
    """As `_run`, and an interruption ends it once."""
    with interrupted_once():
        return _run(program, argv)


def _run(program: str, argv: Sequence[str]) -> int:
    """Search, print and save; returns the exit code. Raises ConfigError before anything was started."""
    words = parse(f"{program} stress", ABOUT, OPTIONS, argv, _DECIDED)
    settings = _settings(program, words)
    folder = make_folder(Path(words.own["out"]) if "out" in words.own else None, "stress")
    settings = replace(settings, folder=folder)
    tried: list[RateResult] = []
    command = f"{program} stress {shlex.join(argv)}"

    def tell(result: RateResult) -> None:
        print(live_line(result), file=sys.stderr, flush=True)
        write_result(folder / "stress.json", stress_json(so_far(tried, "under way"), settings, command))

    code, failures = EXIT_DONE, list[IsorateError]()
    try:
        result = stress(settings, tell, tried)
    except KeyboardInterrupt:
        result, code = so_far(tried, "interrupted"), EXIT_INTERRUPTED
    except IsorateError as error:
        if isinstance(error, ConfigError) and not tried:
            remove_empty(folder)
            raise
        result = so_far(tried, "a run failed")
        failures.append(error)
    save_last(folder / "stress.json", stress_json(result, settings, command), failures)
    render(result, settings, folder)
    for failure in failures:
        print(f"isorate: {failure}", file=sys.stderr)
    return code or (EXIT_FAILED if failures else EXIT_DONE)


def _settings(program: str, words: CampaignWords) -> StressSettings:
    own = words.own
    low = number(own, "min_rate", 0.01, 1e-6, 1e7)
    high = number(own, "max_rate", 1e6, 1e-6, 1e7)
    start = number(own, "start_rate", min(max(1.0, low), high), 1e-6, 1e7)
    if not low <= start <= high:
        raise ConfigError(f"--start-rate {start:g} must lie between --min-rate {low:g} and --max-rate {high:g}")
    limits = Limits(
        start, low, high, number(own, "tolerance", 1.0, 0.1, 100.0) / 100.0, whole(own, "max_trials", 40, 1, 1000)
    )
    from harness.config.run_config import RunConfig

    if "slo" not in words.run:
        raise ConfigError("--slo is needed: what does it mean to hold a rate? (such as --slo ttft=500ms@p99)")
    if words.run.get("arrival") in _NO_ONE_RATE:
        raise ConfigError(f"--arrival {words.run['arrival']}: the search tries one rate after the other")
    settings = StressSettings(
        limits, number(own, "trial", 10.0, 0.1, 86_400), whole(own, "repeats", 3, 1, 99), 0.0, 0.0, words.words, Path()
    )
    config = RunConfig(**vars(run_parser(program).parse_all(trial_words(settings, start, sure=True))))
    limits_s = [slo.limit_ns / 1e9 for slo in config.slo]
    return replace(settings, shortest_limit_s=min(limits_s), longest_limit_s=max(limits_s))
