"""The arrival self-check in a line for the plan and one for what was sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.report.words import number, rate_words, safe

_WINDOWS = {"10ms": "10 ms", "100ms": "100 ms", "1s": "1 s"}


def arrival_lines(run: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(label, words) from a run and the plan of summary.json; nothing for a run that is older than the self-check.

    Where requests wait for the ends of others, no arrivals are planned.
    """
    arrivals = run.get("arrivals")
    if not arrivals:
        return
    if plan.get("gated_requests"):
        yield "Arrivals sent", _words(arrivals["actual"])
        return
    unknown = "" if arrivals["plan"]["rate"] is None else "process not known, "  # all at once is no process
    process = arrivals["process"] or ("recorded" if plan.get("trace") else "")
    bursts = arrivals["shift"]["bursts"]
    yield "Arrivals planned", f"{safe(process) + ' ' if process else unknown}{_words(arrivals['plan'])}"
    yield "Arrivals sent", f"{_words(arrivals['actual'])}, {number(bursts)} catch-up burst{'' if bursts == 1 else 's'}"


def _words(figures: Mapping[str, Any]) -> str:
    if figures["rate"] is None:
        return "all at once" if figures["gaps"] else "no gaps"
    parts = [rate_words(figures["rate"], "/s"), f"CV {figures['cv']:.3f}"]
    if figures["lag1"] is not None:
        parts.append(f"lag-1 {figures['lag1']:+.3f}")
    known = [(name, figures["dispersion"].get(key)) for key, name in _WINDOWS.items()]
    longest = [(name, value) for name, value in known if value is not None][-1:]
    parts += [f"dispersion {value:.2f} at {name}" for name, value in longest]
    value = figures["anderson_darling"]
    if value is not None:
        verb = "fits" if value < figures["anderson_darling_limit"] else "does not fit"
        parts.append(f"{verb} {safe(figures['law'])} (A*^2 {value:.2f})")
    return ", ".join(parts)
