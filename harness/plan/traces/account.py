"""The account of a trace in words: how it was read, and what became of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.plan.traces.guard import rate_words

_FATES = {"keep": "the engine rejects them", "scale": "scaled", "clip": "clipped", "skip": "left out"}


def facts_of(account: Mapping[str, Any]) -> tuple[str, ...]:
    """Two lines: the whole trace, and the part that is sent."""
    rate, cv, gap = account["mean_rate"], account["gap_cv"], account["smallest_gap_ns"]
    whole = [f"{account['rows']:,} rows", f"span {account['span_s']:.9g} s"]
    whole += [f"mean rate {rate_words(rate)}"] if rate is not None else []
    whole += [f"CV of gaps {cv:.2f}"] if cv is not None else []
    whole += [f"smallest gap {gap / 1000:g} us"] if gap is not None else []
    sent = [f"{account['requests']:,} of them sent"]
    sent += [f"window {' to '.join(str(one or 'end') for one in account['window_s'])} s"] if account["window_s"] else []
    sent += [f"{account['speed']} x as fast"] if account["speed"] != "1" else []
    return (
        f"trace {account['file']} ({account['format']}, {account['unit']}): {', '.join(whole)}",
        f"trace: {', '.join(sent)}",
    )


def warnings_of(account: Mapping[str, Any]) -> tuple[str, ...]:
    """One line for each thing that a user would not expect; rows that met a policy are never silent."""
    lines = [f"trace: {text}" for text in account["warnings"]]
    if account["sorted"]:
        lines.append("trace: rows whose times went back were put in order (--sort)")
    if account["beyond_context"]:
        fate = _FATES[account["lengths"]]
        lines.append(f"trace: {_rows(account['beyond_context'])} beyond the context of {account['context']:,} tokens: "
                     f"{fate} (--lengths {account['lengths']})")  # fmt: skip
    empty = {"no_prompt_tokens": "prompt", "no_output_tokens": "output"}
    fates = {"prompt": "the engine rejects them", "output": "they complete without a token"}
    for name, what in empty.items():
        if account[name]:
            fate = "left out" if account["empty"] == "skip" else fates[what]
            lines.append(f"trace: {_rows(account[name])} without {what} tokens: {fate} (--trace-empty "
                         f"{account['empty']})")  # fmt: skip
    if account["prompt_length_differs"]:
        lines.append(f"trace: {_rows(account['prompt_length_differs'])} with a prompt of another length than "
                     "input_length says: the prompt counts")  # fmt: skip
    return tuple(lines)


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
