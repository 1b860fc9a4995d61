"""`isorate sweep`: the same run at every value of one or more flags, interleaved over rounds, as one table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from harness.campaign.trial import RunFigures, Trial, run_trial
from harness.cli.options import GROUPS
from harness.common.errors import ConfigError

_REFUSED = ("out", "quiet", "allow_invalid")


#: Sessions of one sweep at the most.
MAX_TRIALS = 10_000
#: Longest part of a folder's name that says the point.
_MAX_NAME = 200


class Axis(NamedTuple):
    """A flag of `run` and the values that it takes in turn, as text."""

    flag: str
    values: tuple[str, ...]


Point = tuple[str, ...]
"""A value for each axis, in their order."""


@dataclass(frozen=True, slots=True)
class PointTrial:
    """A session of a sweep: which point, in which round."""

    point: Point
    round: int
    trial: Trial


def parse_axis(text: str) -> Axis:
    """Read `FLAG=V1,V2,...`; values that hold commas are parted by `|`. Raises ConfigError naming the axis."""
    name, equals, rest = text.partition("=")
    flag = "--" + name.strip().removeprefix("--")
    values = tuple(value.strip() for value in rest.split("|" if "|" in rest else ","))
    if not equals or not all(values):
        raise ConfigError(f"--vary must be like rate=1,2,4, not {text!r}")
    options = {spelling: option for group in GROUPS.values() for option in group for spelling in option.flags}
    option = options.get(flag)
    if option is None or option.field in _REFUSED:
        raise ConfigError(f"--vary {text}: run has no flag {flag} that can be varied")
    if not option.metavar:
        raise ConfigError(f"--vary {text}: {flag} takes no value")
    if len(set(values)) != len(values):
        raise ConfigError(f"--vary {text}: a value is named twice")
    return Axis(flag, values)


def require_few(axes: Sequence[Axis], rounds: int) -> None:
    """Raises ConfigError for more sessions than anybody waits for."""
    count = rounds * math.prod(len(axis.values) for axis in axes)
    if count > MAX_TRIALS:
        raise ConfigError(f"--vary: {count} sessions are too many, at most {MAX_TRIALS} can be run")


def require_free(axes: Sequence[Axis], given: Mapping[str, Any]) -> None:
    """Raises ConfigError for a flag that is also given a fixed value. given: `RunConfig` fields of the command line."""
    fields = {spelling: option.field for group in GROUPS.values() for option in group for spelling in option.flags}
    for axis in axes:
        if fields[axis.flag] in given:
            raise ConfigError(f"{axis.flag} is given and varied: which of its values is meant?")
    varied = [fields[axis.flag] for axis in axes]
    if len(set(varied)) != len(varied):
        raise ConfigError("--vary: a flag is named twice")


def points(axes: Sequence[Axis]) -> list[Point]:
    """All combinations, the last axis moving fastest."""
    return list(itertools.product(*(axis.values for axis in axes)))


def words_of(axes: Sequence[Axis], point: Point) -> list[str]:
    """The flags of a point."""
    return [word for axis, value in zip(axes, point, strict=True) for word in (axis.flag, value)]


def in_order(all_points: Sequence[Point], rounds: int) -> list[tuple[int, Point]]:
    """Forwards and backwards in turn (ABBA): what drifts over time does not look like an effect of the flag."""
    return [
        (number, point)
        for number in range(rounds)
        for point in (all_points if number % 2 == 0 else list(reversed(all_points)))
    ]


def sweep(
    axes: Sequence[Axis],
    words: Sequence[str],
    rounds: int,
    folder: Path,
    tell: Callable[[PointTrial], None],
) -> None:
    """Run all points; every trial is told as soon as it is there. Raises what `run_trial` raises."""
    for number, (round_, point) in enumerate(in_order(points(axes), rounds)):
        trial = run_trial([*words, *words_of(axes, point)], folder / f"{number:03d}-{_name(point)}")
        tell(PointTrial(point, round_, trial))


def _name(point: Point) -> str:
    """The point as part of a folder's name."""
    parts = ("".join(c if c.isascii() and (c.isalnum() or c in ".-") else "-" for c in value) for value in point)
    return "_".join(part[:24] for part in parts)[:_MAX_NAME]


def median(trials: Sequence[PointTrial], point: Point, name: str) -> float | None:
    """The median of a figure over all measured runs of a point; None where none has it."""
    runs: list[RunFigures] = [run for one in trials if one.point == point for run in one.trial.runs]
    values = sorted(value for run in runs if (value := getattr(run, name)) is not None)
    return values[len(values) // 2] if values else None
