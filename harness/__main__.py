"""The command line: `isorate [run] [options]`, `plan [options]`, `report DIR`, `recover DIR`. Imports as it needs."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import sys
from pathlib import Path

from harness.cli.options import Parser, add_help, nearest, plan_parser, run_parser
from harness.common.errors import ConfigError, IsorateError, RunError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

COMMANDS = {
    "run": "measure an engine under a load (the default; `run --help` lists its options)",
    "plan": "build and describe a load without running it (`plan --help` lists its options)",
    "report": "print the summary of a result folder",
    "explain": "say where the time of one request went",
    "stress": "find the highest arrival rate that an engine holds under objectives",
    "sweep": "run the same load at every value of a flag, as one table",
    "experiment": "repeat a published finding on this host: `experiment schedule`",
    "recover": "rebuild the report of a run that died, from its collector",
    "selftest": "measure what is known: queueing theory, closed forms, CPython's own figures",
    "doctor": "say what this host does for steady measurements, and what would make it better",
}


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; errors become one line on stderr."""
    words = sys.argv[1:] if argv is None else argv
    open_standard_streams()
    try:
        code = _dispatch(words)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except ConfigError as error:
        return _fail(error, EXIT_USAGE)
    except IsorateError as error:
        return _fail(error, EXIT_FAILED)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        _give_up_stdout()
        return EXIT_FAILED
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _give_up_stdout()
        return _fail(RunError(f"cannot write: {error.strerror}"), EXIT_FAILED)


def open_standard_streams() -> None:
    """Stand in for a closed stdin, stdout or stderr: a socket or the collector that got its number would be printed on.

    /dev/null takes the lowest number that is free, so that the three are filled in their order.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            stream = open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def _fail(error: IsorateError, code: int) -> int:
    line = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in str(error))
    if sys.stderr is not None:
        print(f"isorate: {line}", file=sys.stderr)
    return code


def _give_up_stdout() -> None:
    """Else Python complains once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _dispatch(words: list[str]) -> int:
    for number, word in enumerate(words, start=1):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"argument {number} is not valid UTF-8: {word!r}") from None
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version")):
        return _run(words, words)
    command, rest = words[0], words[1:]
    if command == "run":
        return _run(rest, words)
    if command == "explain":
        from harness.explain.command import run_explain

        return run_explain(_program(), rest)
    if command == "stress":
        from harness.campaign.stress_command import run_stress

        return run_stress(_program(), rest)
    if command == "sweep":
        from harness.campaign.sweep_command import run_sweep

        return run_sweep(_program(), rest)
    if command == "experiment":
        from harness.campaign.experiment_command import run_experiment

        return run_experiment(_program(), rest)
    if command == "plan":
        return _plan(rest)
    if command == "selftest":
        from harness.selftest.command import run_selftest

        return run_selftest(_program(), _version(), rest)
    if command == "doctor":
        from harness.host.doctor_command import run_doctor

        return run_doctor(_program(), rest)
    if command in ("report", "recover"):
        return _on_folder(command, rest)
    if command == "--version":
        print(f"isorate {_version()}")
        return 0
    if command in ("-h", "--help"):
        print(_overview())
        return 0
    known = nearest(command, list(COMMANDS)) or f": there are {', '.join(COMMANDS)}"
    raise ConfigError(f"there is no command {command!r}{known}")


def _run(flags: list[str], words: list[str]) -> int:
    parsed = run_parser(_program()).parse_all(flags)
    from harness.config.run_config import RunConfig

    config = RunConfig(**vars(parsed))
    _end_with_campaign()
    from harness.session.supervisor import run_session

    return run_session(config, [*_invocation(), *words])


def _end_with_campaign() -> None:
    """A run of a campaign does not outlive it: it ends as at SIGTERM, and saves what it measured."""
    from harness.common.processes import die_with_parent

    parent = os.environ.pop("ISORATE_CAMPAIGN_PID", "")
    if parent.isdecimal():
        die_with_parent(int(parent), signal.SIGTERM)


def _plan(flags: list[str]) -> int:
    parsed = vars(plan_parser(_program()).parse_all(flags))
    as_json = parsed.pop("json", False)
    from harness.config.run_config import RunConfig

    config = RunConfig(**parsed)
    from harness.cli.plan_command import plan_load

    return plan_load(config, as_json)


def _on_folder(command: str, words: list[str]) -> int:
    parser = Parser(prog=f"{_program()} {command}", description=COMMANDS[command])
    parser.add_argument("folder", metavar="DIR", help="a result folder")
    shows = "print the checks that passed or do not apply too"
    parser.add_argument("--verbose", "--checks", action="store_true", dest="all_checks", help=shows)
    add_help(parser)
    parsed = vars(parser.parse_all(words))
    folder, all_checks = Path(parsed["folder"]), bool(parsed.get("all_checks"))
    if not folder.is_dir():
        raise ConfigError(f"{command} {folder}: no such folder")
    from harness.cli import folder_commands

    act = folder_commands.report if command == "report" else folder_commands.recover
    return act(folder, all_checks=all_checks)


def _overview() -> str:
    program = _program()
    lines = [
        f"usage: {program} [command] [options]",
        "",
        "Did the engine change, or did the load change? isorate sends a planned load from a process of its own,",
        "measures it apart from the engine, and says whether the load can be trusted.",
        "",
        "Commands:",
        *(f"  {name:<11}{text}" for name, text in COMMANDS.items()),
        "",
        f"`{program} COMMAND --help` says more. `{program} --version` prints the version.",
        "Exit codes: 0 done, 1 the run failed, 2 bad usage, 3 the verdict is INVALID, 130 interrupted.",
    ]
    return "\n".join(lines)


def _invocation() -> list[str]:
    """How this program was called, for help and for the command that repeats a run; a wrapper sets ISORATE_PROGRAM."""
    wrapper = os.environ.get("ISORATE_PROGRAM")
    if wrapper:
        return [wrapper]
    script = Path(sys.argv[0]).name
    return ["python", "-m", "harness"] if script in ("__main__.py", "-m", "-c", "") else [script]


def _program() -> str:
    return shlex.join(_invocation())


def _version() -> str:
    """The version of the checkout that this file lies in, else of the installed package."""
    import tomllib
    from importlib.metadata import PackageNotFoundError, version

    try:
        with open(Path(__file__).parents[1] / "pyproject.toml", "rb") as file:
            return str(tomllib.load(file)["project"]["version"])
    except (OSError, tomllib.TOMLDecodeError, KeyError):
        pass
    try:
        return version("isorate")
    except PackageNotFoundError:
        return "of unknown version"


if __name__ == "__main__":
    sys.exit(main())
