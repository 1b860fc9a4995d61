"""`isorate explain DIR` from its command line to its exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.cli.options import Parser, add_help
from harness.common.errors import ConfigError
from harness.common.stamps import SEPARATE_LEDGER
from harness.explain.attribution import explain, worst
from harness.explain.tables import Folder, read_folder

ABOUT = "Where a request's time went: its parts, who was ahead of it, which steps served it, which pauses overlapped."
MAX_STORIES = 1000


def run_explain(program: str, argv: Sequence[str]) -> int:
    """Print the stories that were asked for; returns 0. Raises ConfigError."""
    parser = Parser(prog=f"{program} explain", description=ABOUT)
    parser.add_argument("folder", metavar="DIR", help="a result folder")
    group = parser.add_argument_group("Options")
    group.add_argument("--request", metavar="N", help="the request of this number")
    worst_help = "the requests with the largest ttft (the default), e2e, tpot or part of the ledger, such as queue_wait"
    group.add_argument("--worst", metavar="METRIC", help=worst_help)
    group.add_argument("--top", metavar="N", help="how many of the worst (default 1)")
    group.add_argument("--run", metavar="N", help="the run (default: the first measured one)")
    group.add_argument("--json", action="store_true", help="print a list of objects, times in ns")
    add_help(parser)
    given = vars(parser.parse_all(list(argv)))
    folder = Path(given["folder"])
    if not folder.is_dir():
        raise ConfigError(f"explain {folder}: no such folder")
    if "request" in given and ("worst" in given or "top" in given):
        raise ConfigError("--request excludes --worst and --top")
    numbers = {name: _number(given, name) for name in ("request", "top", "run")}
    found = read_folder(folder, numbers["run"])
    requests = _choose(found, folder, numbers["request"], str(given.get("worst", "ttft")), numbers["top"])
    stories = [explain(found.requests, found.steps, found.probes, SEPARATE_LEDGER, request) for request in requests]
    _show(stories, found, as_json=bool(given.get("json")))
    return 0


def _number(given: dict[str, object], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not str(text).isdecimal() or len(str(text)) > 9:
        raise ConfigError(f"--{name} must be a whole number, not {text!r}")
    return int(str(text))


def _choose(found: Folder, folder: Path, request: int | None, metric: str, top: int | None) -> list[int]:
    rows = found.requests.rows
    if request is not None:
        if request >= rows:
            raise ConfigError(f"--request {request}: run {found.requests.run} has the requests 0 to {rows - 1}")
        return [request]
    if top is not None and not 1 <= top <= MAX_STORIES:
        raise ConfigError(f"--top must be from 1 to {MAX_STORIES}, not {top}")
    try:
        chosen = worst(found.requests, SEPARATE_LEDGER, metric, top or 1)
    except KeyError:
        parts = ", ".join(part.name for part in SEPARATE_LEDGER.parts)
        raise ConfigError(f"--worst knows ttft, e2e, tpot, {parts}; not {metric!r}") from None
    if not chosen:
        raise ConfigError(f"explain {folder}: no request of run {found.requests.run} has a {metric}")
    return chosen


def _show(stories: Sequence[object], found: Folder, *, as_json: bool) -> None:
    from rich.console import Console

    from harness.explain.attribution import Story
    from harness.explain.story_text import render_story, story_json
    from harness.report.strict_json import strict_dumps

    typed = [story for story in stories if isinstance(story, Story)]
    if as_json:
        print(strict_dumps([story_json(story) for story in typed]))
        return
    for missing, what in ((found.steps, "no step table"), (found.probes, "no probes (--probes off, or an older run)")):
        if missing is None:
            print(f"isorate: this folder has {what}: less can be said", file=sys.stderr)
    console = Console()
    for story in typed:
        render_story(story, console)
