"""What the probes cost: the same load with --probes on and off, interleaved (on off, off on ...), for one engine.

    python benchmarks/observer_effect.py --engine null --pairs 10 --append effect.jsonl
    python benchmarks/observer_effect.py --table effect.jsonl

TTFT p50 is of a paced load. The engine's throughput is output tokens per s: with the null engine those of a burst, with
a model those of the time that the paced load kept it busy. Each pair appends one line, so that a long comparison can be
made in pieces; the table has, of all lines, the median of the pairs' ratios on / off with a bootstrap 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from isorate_run import measure, us

LOADS = {
    "null": (
        ["--engine", "null", "--pretok", "--max-new-tokens", "1", "--rate", "500", "--num-requests", "2000"],
        ["--engine", "null", "--pretok", "--max-new-tokens", "64", "--num-requests", "2000",
         "--submit-interval-ms", "0"],
    ),
    "gpt2": (["--pretok", "--num-requests", "24", "--submit-interval-ms", "250"],),
}  # fmt: skip
FIGURES = ("TTFT p50", "engine throughput")


def figures(engine: str, probes: str) -> tuple[float, float]:
    """TTFT p50 (us) of the paced load, and output tokens per s."""
    paced, *burst = (measure(*load, "--probes", probes) for load in LOADS[engine])
    run = burst[0] if burst else paced
    busy = 1.0 if burst else float(paced["engine"]["busy_fraction"])
    return us(paced, "ttft", "p50"), float(run["throughput"]["output_tokens_per_s"]) / busy


def interval(ratios: np.ndarray) -> tuple[float, float]:
    """Percentile bootstrap of the median, 95 %."""
    draws = np.random.default_rng(1).choice(ratios, (10_000, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(low), float(high)


def print_table(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    print("| engine | figure | off (median) | on / off | 95 % | pairs |\n|---|---|---|---|---|---|")
    for engine in LOADS:
        pairs = [line for line in lines if line["engine"] == engine]
        for i, name in enumerate(FIGURES):
            if not pairs:
                continue
            ratios = np.array([line["on"][i] / line["off"][i] for line in pairs])
            low, high = interval(ratios)
            off = float(np.median([line["off"][i] for line in pairs]))
            unit = f"{off:,.0f} us" if i == 0 else f"{off:,.0f} tokens/s"
            print(f"| {engine} | {name} | {unit} | {np.median(ratios):.4f} | {low:.4f}-{high:.4f} | {len(pairs)} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=tuple(LOADS), default="null")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--append", type=Path, default=Path("effect.jsonl"))
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if options.table is not None:
        print_table(options.table)
        return 0
    done = len(options.append.read_text().splitlines()) if options.append.exists() else 0
    for pair in range(done, done + options.pairs):
        order = ("on", "off") if pair % 2 == 0 else ("off", "on")
        found = {probes: figures(options.engine, probes) for probes in order}
        with open(options.append, "a") as file:
            file.write(json.dumps({"engine": options.engine, **found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
