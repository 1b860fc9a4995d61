"""`isorate selftest` from its command line to its exit code."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.campaign.flags import parse, whole
from harness.campaign.folder import make_folder
from harness.cli.options import GROUPS, Option, nearest
from harness.common.errors import ConfigError, RunError
from harness.host.floor import Floor, floor_path, host_print, write_floor
from harness.report.strict_json import strict_dumps
from harness.selftest.lines import Line, told
from harness.selftest.parts import (
    FULL,
    QUICK,
    SERVICE_MS,
    Runs,
    Sizes,
    clock_lines,
    gil_lines,
    host_lines,
    measure_floor,
    observer_lines,
    poisson_lines,
)
from harness.selftest.queue_parts import dd1_lines, md1_lines
from harness.selftest.sessions import Sessions

ABOUT = (
    "Measure what is known: sessions on the null engine against queueing theory, closed forms and CPython's own "
    "figures. Takes 3 to 4 minutes; exits with 1 where one figure is off. It stores what the path takes without an "
    "engine, as the floor that later sessions on this host are judged by."
)
PARTS = ("host", "poisson", "floor", "dd1", "md1", "gil", "observer", "clock")
OPTIONS = (
    Option(("--quick",), "quick", "", "about a minute: fewer requests, M/D/1 at one load"),
    Option(("--seeds",), "seeds", "N", "M/D/1 sessions a load, each with a seed of its own (default 1)"),
    Option(("--seed",), "seed", "K", "the first of these seeds (default 1)"),
    Option(("--service-ms",), "service_ms", "MS",
           "service time of the queueing sessions, 1 to 1000 (default 25; what is allowed is 2 % of it)"),
    Option(("--only",), "only", "PART[,PART]", f"some parts only, of {', '.join(PARTS)}"),
    Option(("--out",), "out", "DIR", "keep the sessions' folders and selftest.json there (default: nothing is kept)"),
    Option(("--json",), "json", "", "print JSON in place of the table"),
)
#: Groups of run's flags that say where and how the processes run, and nothing of the load.
PASSED_ON = ("Processes and cores", "Contention in the engine")
SCHEMA = "isorate.selftest/1"
EXIT_DONE, EXIT_FAILED = 0, 1


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line. parts: in the order of PARTS. words: flags of `run` for all sessions."""

    sizes: Sizes
    seeds: tuple[int, ...]
    parts: tuple[str, ...]
    out: Path | None
    json: bool
    quick: bool
    words: tuple[str, ...]


def run_selftest(program: str, version: str, argv: Sequence[str]) -> int:
    """Run the parts that were asked for, print a line as each figure is known; returns the exit code.

    Raises ConfigError for bad flags before anything was started, RunError where a session failed.
    """
    asked = _asked(program, argv)
    if asked.out is not None:
        return _run(asked, make_folder(asked.out, "selftest"), version)
    with tempfile.TemporaryDirectory(prefix="isorate-selftest-") as folder:
        return _run(asked, Path(folder), version)


def _asked(program: str, argv: Sequence[str]) -> Asked:
    decided = {
        option.field: "the self-test decides it; of run's flags it takes those of processes, cores and contention"
        for title, options in GROUPS.items() if title not in PASSED_ON for option in options
    } | {"probes": "the self-test compares both"}  # fmt: skip
    parsed = parse(f"{program} selftest", ABOUT, OPTIONS, argv, decided)
    own = parsed.own
    parts = own["only"].split(",") if "only" in own else PARTS
    for part in parts:
        if part not in PARTS:
            known = nearest(part, list(PARTS)) or f": there are {', '.join(PARTS)}"
            raise ConfigError(f"--only: there is no part {part!r}{known}")
    first, count = whole(own, "seed", 1, 0, 1 << 31), whole(own, "seeds", 1, 1, 1000)
    service_ms = float(whole(own, "service_ms", int(SERVICE_MS), 1, 1000))
    return Asked(
        sizes=(QUICK if own.get("quick") else FULL)._replace(service_ms=service_ms),
        seeds=tuple(range(first, first + count)),
        parts=tuple(part for part in PARTS if part in parts),
        out=Path(own["out"]) if "out" in own else None,
        json=bool(own.get("json")),
        quick=bool(own.get("quick")),
        words=parsed.words,
    )


def _run(asked: Asked, folder: Path, version: str) -> int:
    sessions = Sessions(folder, asked.words)
    lines: list[Line] = []
    if not asked.json:
        print(_row("", "", "expected", "measured"))
    for line in _lines(asked, sessions, version):
        lines.append(line)
        if not asked.json:
            print(_row(line.word, line.name, line.expected, line.measured), flush=True)
    result = _result(asked, lines, sessions, version)
    text = strict_dumps(result)
    if asked.out is not None:
        _save(folder / "selftest.json", text)
    if asked.json:
        sys.stdout.write(text)
    else:
        print(_verdict(lines, sessions))
    return EXIT_DONE if result["passed"] else EXIT_FAILED


def _lines(asked: Asked, sessions: Sessions, version: str) -> Iterator[Line]:
    """The lines in the order in which they are measured; the clocks come last, from all sessions' handshakes."""
    sizes = asked.sizes
    plain: dict[str, Callable[[Runs, Sizes], list[Line]]] = {
        "dd1": dd1_lines, "gil": gil_lines, "observer": observer_lines,
    }  # fmt: skip
    for part in asked.parts:
        if part == "host":
            yield from host_lines()
        elif part == "poisson":
            yield from poisson_lines(sizes)
        elif part == "floor":
            yield from _floor_lines(sessions, sizes, version)
        elif part == "md1":
            for load in sizes.loads:
                yield from md1_lines(sessions, sizes, load, asked.seeds)
        elif part in plain:
            yield from plain[part](sessions, sizes)
        else:
            if not sessions.clocks:  # nothing else was asked for
                sessions.run("clock", ["--rate", "100", "--num-requests", "20"])
            yield from clock_lines(sessions.clocks)


def _floor_lines(sessions: Sessions, sizes: Sizes, version: str) -> list[Line]:
    lines, p50, p99 = measure_floor(sessions, sizes)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    path = floor_path()
    try:
        write_floor(path, Floor(host_print(), p50, p99, when, version))
        kept = f"kept in {path}"
    except RunError as error:  # a home that cannot be written is no fault of the measurement
        kept = str(error)
    return [*lines, told("floor", "Floor of this host", kept)]


def _result(asked: Asked, lines: Sequence[Line], sessions: Sessions, version: str) -> dict[str, Any]:
    host = host_print()
    return {
        "schema": SCHEMA,
        "version": version,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": {"cpu": host.cpu, "cores": host.cores, "kernel": host.kernel},
        "quick": asked.quick,
        "seeds": list(asked.seeds),
        "sizes": asked.sizes._asdict(),
        "flags": list(asked.words),
        "verdicts": list(sessions.verdicts),
        "passed": all(line.passed is not False for line in lines),
        "lines": [line.to_json() for line in lines],
    }


def _save(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


def _row(word: str, name: str, expected: str, measured: str) -> str:
    return f"{word:<5}{name:<52} {expected:<20} {measured}".rstrip()


def _verdict(lines: Sequence[Line], sessions: Sessions) -> str:
    failed = [line for line in lines if line.passed is False]
    judged = sum(line.passed is not None for line in lines)
    words = ", ".join(f"{sessions.verdicts.count(word)} {word}" for word in dict.fromkeys(sessions.verdicts))
    said = f"{len(failed)} of {judged} figures are off" if failed else f"All {judged} figures are as they should be"
    return f"{said}. Sessions: {words or 'none'}."
