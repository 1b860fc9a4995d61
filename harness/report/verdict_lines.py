"""The verdict in the terminal: the checks that did not pass with what to do, the others in a line, or all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.report.words import number, safe

STYLES = {"VALID": "bold green", "SUSPECT": "bold yellow", "INVALID": "bold red", "PASS": "green", "WARN": "yellow"}
_FAILED = ("INVALID", "WARN")


def print_verdict(
    summary: Mapping[str, Any], console: Console, width: int, *, ascii_only: bool, all_checks: bool
) -> None:
    """Print the verdict of summary.json. all_checks: every check, not only those that did not pass."""
    verdict = summary["verdict"]
    status = (verdict["status"], STYLES.get(verdict["status"], ""))
    saturated = " (saturated)" if verdict.get("saturated") else ""
    line = Text.assemble(("Verdict: ", "bold"), status, f"   bound by: {verdict['bound_by']}{saturated}")
    console.print(line, highlight=False)
    if verdict["bound_by"] in ("engine", "nothing"):  # else the checks below say why
        for reason in verdict.get("bound_by_reasons", ())[:1]:
            console.print(Text(safe(f"The {verdict['bound_by']}: {reason}.", ascii_only=ascii_only)), width=width)
    failed = [check for status in _FAILED for check in verdict["checks"] if check["status"] == status]
    shown = verdict["checks"] if all_checks else failed
    if shown:
        console.print(_table(shown), width=width)
    if not all_checks:
        console.print(Text(_rest(verdict["checks"])), width=width)
    if failed:
        console.print()
    for check in failed:
        _print_hanging(console, check, width, ascii_only)
    for words in _changed(verdict.get("limits") or {}):
        console.print(Text(safe(words, ascii_only=ascii_only)), width=width)
    console.print()


def _table(checks: Iterable[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("", min_width=7, no_wrap=True)
    table.add_column("Check", min_width=27, no_wrap=True)
    table.add_column("value", justify="right", min_width=9, no_wrap=True)
    table.add_column("limit", justify="right", min_width=9, no_wrap=True)
    table.add_column("", no_wrap=True)
    for check in checks:
        grade = Text(check["status"], style=STYLES.get(check["status"], "dim"))
        table.add_row(grade, check["name"], number(check["value"]), number(check["threshold"]), check["unit"])
    return table


def _rest(checks: Sequence[Mapping[str, Any]]) -> str:
    """How many passed, and how many do not apply; with the command that shows them."""
    passed = sum(check["status"] == "PASS" for check in checks)
    other = sum(check["status"] == "N/A" for check in checks)
    words = f"{passed} check{'' if passed == 1 else 's'} passed"
    if other:
        words += f", {other} do{'es' if other == 1 else ''} not apply"
    return f"{words} (--verbose shows them)."


def _changed(limits: Mapping[str, Any]) -> list[str]:
    """One line for limits that are not the declared ones."""
    changed = limits.get("changed") or {}
    if not changed:
        return []
    said = [f"{check} {key} {value}" for check, given in changed.items() for key, value in given.items()]
    return [f"Limits changed by {limits.get('file')}: {', '.join(said)}."]


def _print_hanging(console: Console, check: Mapping[str, Any], width: int, ascii_only: bool) -> None:
    """A check that did not pass, explained beneath the table with a hanging indent."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=7, no_wrap=True)
    grid.add_column(overflow="fold")
    words = Text(safe(f"{check['name']}: {check['explanation']}", ascii_only=ascii_only))
    grid.add_row(Text(check["status"], style=STYLES.get(check["status"], "")), words)
    console.print(grid, width=width)
