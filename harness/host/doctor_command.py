"""`isorate doctor` from its command line to its exit code."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

from harness.cli.options import Option, Parser, add_help, add_option
from harness.host import doctor, doctor_setup
from harness.host.doctor import Finding, Look, State
from harness.host.reading import HostFiles
from harness.report.strict_json import strict_dumps

ABOUT = "Say what this host does for steady measurements, and what would make it better. It changes nothing."
SCHEMA = "isorate.doctor/1"
JSON = Option(("--json",), "json", "", "print JSON")
LOOKS: tuple[Look, ...] = (
    doctor.cores, doctor.siblings, doctor.governor, doctor.isolation, doctor.timer_slack, doctor.real_time,
    doctor.autogroup, doctor_setup.idle_states, doctor.clocksource, doctor.huge_pages, doctor.swap, doctor.steal,
    doctor.load_of_others, doctor_setup.cpu_quota, doctor_setup.collector_room, doctor_setup.socket_path,
    doctor_setup.libraries, doctor_setup.torch_threads,
)  # fmt: skip
_MARKS = {State.GOOD: "ok", State.BETTER: "->", State.UNKNOWN: "?"}
_WIDTH, _INDENT = 100, 17


def run_doctor(program: str, argv: Sequence[str], host: HostFiles | None = None) -> int:
    """Look at the host and print; the exit code is 0 whatever was found. Raises ConfigError for bad flags."""
    parser = Parser(prog=f"{program} doctor", description=ABOUT)
    add_option(parser.add_argument_group("Options"), JSON)
    add_help(parser)
    as_json = vars(parser.parse_all(list(argv))).get("json", False)
    findings = examine(host or HostFiles())
    if as_json:
        found = [finding.to_json() for finding in findings]
        sys.stdout.write(strict_dumps({"schema": SCHEMA, "findings": found}))
    else:
        print(render(findings))
    return 0


def examine(host: HostFiles) -> list[Finding]:
    """Every look's finding, in order."""
    return [look(host) for look in LOOKS]


def render(findings: Sequence[Finding]) -> str:
    """One line a finding, its advice below it."""
    lines: list[str] = []
    for finding in findings:
        says = "".join(char if char.isprintable() else "?" for char in finding.says)
        lines += _wrapped(f"{_MARKS[finding.state]:<3}{finding.name:<{_INDENT - 3}}", says)
        if finding.advice:
            lines += _wrapped(" " * _INDENT, finding.advice)
    better = sum(finding.state is State.BETTER for finding in findings)
    lines.append(f"{len(findings)} looked at, {better} could be better (->).")
    return "\n".join(lines)


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=head, subsequent_indent=" " * _INDENT, break_on_hyphens=False)
