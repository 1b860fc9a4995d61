"""Known truths that the GIL probe and gil_wait must show: the table in docs/trust.md.

    python benchmarks/gil_truths.py

A thread that never gives the GIL up makes a waiter wait for the switch interval; one call of the tokenizer holds the
GIL, the other does not; a sleeping engine shows neither. All on the null engine.
"""

from __future__ import annotations

import sys
from typing import Any

from isorate_run import measure, us

LOAD = ["--engine", "null", "--null-service-ms", "1", "--max-new-tokens", "1", "--num-requests", "300", "--rate", "50"]
LONG = ["--engine", "null", "--max-new-tokens", "1", "--rate", "10", "--num-requests", "60",
        "--prompt-repeats", "20000", "--unique-prompts", "--tokenize-workers", "1"]  # fmt: skip
CASES = {
    "sleeping engine": [*LOAD, "--pretok"],
    "GIL hog": [*LOAD, "--pretok", "--null-hold-gil"],
    "GIL hog, --switch-interval-ms 1": [*LOAD, "--pretok", "--null-hold-gil", "--switch-interval-ms", "1"],
    "20,000-token prompts, encode": [*LONG, "--tokenize-call", "encode"],
    "20,000-token prompts, encode_batch": [*LONG, "--tokenize-call", "encode_batch"],
}


def probe(run: dict[str, Any]) -> dict[str, Any]:
    """The probe's figures of a run."""
    figures: dict[str, Any] = run["contention"]["gil_wait"]
    return figures


def main() -> int:
    print("| engine | gil_wait p50 (messages) | probe p50 | p99 | max | share of its time waiting | tokenize p50 |")
    print("|---|---|---|---|---|---|---|")
    for name, flags in CASES.items():
        run = measure(*flags)
        seen = probe(run)
        cells = [f"{us(run, 'gil_wait', 'p50') / 1000:.3f} ms"]
        cells += [f"{seen[key]:.3f} ms" for key in ("p50", "p99", "max")]
        tokenize = us(run, "tokenize", "p50") / 1000
        print(f"| {name} | {' | '.join(cells)} | {seen['share']:.1%} | {tokenize:.1f} ms |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
