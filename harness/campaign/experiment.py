"""The published 2 x 2 in both topologies: relative or absolute clock, raw or tokenized prompts; cells, rounds, figures.

A session is a process of its own, so that no cell inherits another's memory; rounds go forwards and backwards in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from harness.campaign.sweep import in_order
from harness.campaign.trial import run_trial
from harness.common.errors import RunError

#: The published load, flag by `RunConfig` field: what a user gives in its place wins.
PUBLISHED: Mapping[str, tuple[str, ...]] = {
    "prompt_repeats": ("--prompt-repeats", "256"),
    "unique_prompts": ("--unique-prompts",),
    "max_new_tokens": ("--max-new-tokens", "1"),
    "submit_interval_ms": ("--submit-interval-ms", "1"),
    "max_batch_size": ("--max-batch-size", "16"),
    "prefill_max_batch_size": ("--prefill-max-batch-size", "16"),
    "stop_on_eos": ("--no-stop-on-eos",),
    "prefix_cache": ("--no-prefix-cache",),
}
#: Fields that say what is sent in another way than by repeating a text.
_OTHER_PROMPTS = {"prompts", "dataset", "corpus", "prompt_kind", "input_len", "trace"}
PUBLISHED_REQUESTS, FEWEST_REQUESTS = 256, 32


class Cell(NamedTuple):
    """One of the eight: its topology, clock and prompts (pretok: "on" or "off")."""

    topology: str
    schedule: str
    pretok: str

    @property
    def words(self) -> tuple[str, ...]:
        """Its flags of run."""
        tokenized = ("--pretok",) if self.pretok == "on" else ()
        return ("--topology", self.topology, "--schedule", self.schedule, *tokenized)

    @property
    def name(self) -> str:
        return f"{self.topology}-{self.schedule}-pretok-{self.pretok}"


CELLS = tuple(
    Cell(*values) for values in itertools.product(("inproc", "separate"), ("relative", "absolute"), ("off", "on"))
)
CALIBRATION = Cell("separate", "absolute", "on")


class Figures(NamedTuple):
    """What is compared of one run: rates per s, times in ms; None where not measured. Fields name themselves."""

    arrival_rate: float | None
    submit_wall: float | None
    submit_lag_p50: float | None
    submit_lag_p99: float | None
    add_request_p50: float | None
    queue_wait_p50: float | None
    ttft_p50: float | None
    ttft_p99: float | None
    ttft_from_submit_p50: float | None
    ttft_from_submit_p99: float | None
    tokenize_p50: float | None
    completed_rate: float | None
    engine_busy: float | None


@dataclass(frozen=True, slots=True)
class CellSession:
    """A session of a cell in a round. folder: its name in the experiment's. runs: its measured runs."""

    cell: Cell
    round: int
    folder: str
    verdict: str
    prompt_tokens: int | None
    runs: tuple[Figures, ...]


@dataclass(frozen=True, slots=True)
class Scale:
    """How the load was fitted to the host. service_rate, interval_rate: requests per s; asked: the user set the number.

    utilization: arrivals over what the engine serves, while requests are sent; 1 is saturated.
    """

    requests: int
    service_rate: float
    interval_rate: float
    budget_s: float
    asked: bool

    @property
    def utilization(self) -> float:
        return self.interval_rate / self.service_rate


def load_words(words: Sequence[str], given: Mapping[str, Any]) -> list[str]:
    """The flags that all cells share: the published ones, less those that the user gave, and the user's."""
    replaced = set(given)
    if _OTHER_PROMPTS & replaced:
        replaced |= {"prompt_repeats", "unique_prompts"}
    published = [word for field, flags in PUBLISHED.items() if field not in replaced for word in flags]
    return [*published, *words]


def cell_words(words: Sequence[str], cell: Cell, requests: int | str) -> list[str]:
    """All flags of a cell's session."""
    return [*words, *cell.words, "--num-requests", str(requests)]


def calibrate(words: Sequence[str], interval_ms: float, folder: Path, budget_s: float, asked: int | None) -> Scale:
    """Measure the service rate with a burst, and fit the number of requests to it. Raises as `run_trial`.

    The number is what the host serves in `budget_s`, from FEWEST_REQUESTS to PUBLISHED_REQUESTS, unless `asked`.
    """
    run_trial([*cell_words(words, CALIBRATION, FEWEST_REQUESTS), "--submit-interval-ms", "0"], folder)
    rates = [run["rate"]["completed"] for run in _summary(folder)["runs"] if not run["warmup"]]
    if not rates or not rates[0]:
        raise RunError(f"the calibration says no rate: see {folder}")
    return Scale(asked or fitting(rates[0], budget_s), rates[0], 1e3 / interval_ms, budget_s, asked is not None)


def fitting(service_rate: float, budget_s: float) -> int:
    """How many requests an engine serves in `budget_s`, within what the experiment can use."""
    return min(max(round(service_rate * budget_s), FEWEST_REQUESTS), PUBLISHED_REQUESTS)


def run_rounds(
    words: Sequence[str],
    scale: Scale,
    rounds: int,
    folder: Path,
    done: Sequence[CellSession],
    tell: Callable[[CellSession], None],
) -> None:
    """Run what of `rounds` rounds is not `done`; each session is told as soon as it is there. Raises as `run_trial`."""
    there = {(one.round, one.cell) for one in done}
    for number, cell in _order(rounds):
        if (number, cell) in there:
            continue
        name = _free_name(folder, f"{number:02d}-{cell.name}")
        trial = run_trial(cell_words(words, cell, scale.requests), folder / name)
        summary = _summary(folder / name)
        runs = tuple(figures_of(run) for run in summary["runs"] if not run["warmup"])
        tell(CellSession(cell, number, name, trial.status, summary["plan"]["prompt_tokens"], runs))


def _order(rounds: int) -> list[tuple[int, Cell]]:
    points = in_order([tuple(cell) for cell in CELLS], rounds)
    return [(number, Cell(*point)) for number, point in points]


def _free_name(folder: Path, name: str) -> str:
    """A session that was cut off keeps its folder; the one that replaces it gets the next name."""
    names = itertools.chain([name], (f"{name}-again-{k}" for k in itertools.count(1)))
    return next(one for one in names if not (folder / one).exists())


def _summary(folder: Path) -> Mapping[str, Any]:
    from harness.report.reading import read_summary

    return read_summary(folder / "summary.json")


def figures_of(run: Mapping[str, Any]) -> Figures:
    """The figures of one run of summary.json."""
    metrics = run["metrics"]

    def at(name: str, statistic: str) -> float | None:
        values = metrics.get(name)
        return values[statistic] if values and values["count"] else None

    return Figures(
        arrival_rate=run["rate"]["offered"],
        submit_wall=run["submit_wall_ms"],
        submit_lag_p50=at("submit_lag", "p50"),
        submit_lag_p99=at("submit_lag", "p99"),
        add_request_p50=at("add_request", "p50"),
        queue_wait_p50=at("queue_wait_post_tok", "p50"),
        ttft_p50=at("ttft", "p50"),
        ttft_p99=at("ttft", "p99"),
        ttft_from_submit_p50=at("ttft_from_submit", "p50"),
        ttft_from_submit_p99=at("ttft_from_submit", "p99"),
        tokenize_p50=at("tokenize", "p50"),
        completed_rate=run["rate"]["completed"],
        engine_busy=run["engine"]["busy_fraction"],
    )
