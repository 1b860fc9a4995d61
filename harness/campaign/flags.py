"""The command lines of campaigns: their own flags, and all of `run`'s that the campaign does not decide itself."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from harness.cli.options import Option, Parser, add_help, add_option, run_parser
from harness.common.errors import ConfigError


class CampaignWords:
    """A parsed command line: `own` flags by name as text, and the words of `run` that are left, checked."""

    def __init__(self, own: Mapping[str, Any], words: Sequence[str], run: Mapping[str, Any]) -> None:
        self.own = own
        self.words = tuple(words)
        self.run = run


def parse(
    prog: str, about: str, options: Sequence[Option], argv: Sequence[str], decided: Mapping[str, str]
) -> CampaignWords:
    """Split and check a command line. decided: `RunConfig` fields that the campaign sets, each with the reason.

    Raises ConfigError naming the flag; `--help` prints and exits.
    """
    parser = Parser(prog=prog, usage=f"{prog} [options] [any option of run]", description=about)
    group = parser.add_argument_group("Options")
    for option in options:
        add_option(group, option)
    add_help(parser)
    own, rest = parser.parse_known_args(list(argv))
    run = vars(_run_flags(prog, rest))
    for field, reason in decided.items():
        if field in run:
            raise ConfigError(f"--{field.removesuffix('_s').replace('_', '-')}: {reason}")
    return CampaignWords(vars(own), rest, run)


def _run_flags(prog: str, words: list[str]) -> argparse.Namespace:
    return run_parser(prog).parse_all(words)


def number(own: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    """A number among the campaign's own flags. Raises ConfigError naming flag and range."""
    flag = "--" + name.replace("_", "-")
    text = own.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:  # also NaN
        raise ConfigError(f"{flag} must be a number from {low:g} to {high:g}, not {text!r}")
    return value


def whole(own: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    """The same for an integer."""
    value = number(own, name, default, low, high)
    if value != int(value):
        raise ConfigError(f"--{name.replace('_', '-')} must be an integer, not {own[name]!r}")
    return int(value)
