"""What the probes cost: they rest in every second run of a session, and neighbouring runs are compared.

    python benchmarks/observer_effect.py --engine null --pairs 10 --append effect.jsonl
    python benchmarks/observer_effect.py --table effect.jsonl

TTFT p50 is of a paced load. The engine's throughput is output tokens per s: with the null engine those of a burst, with
a model those of the time that the paced load kept it busy. In the order on off off on. Each pair of runs appends one
line, so that a long comparison can be made in pieces; the table has, of all lines, the median of the pairs' ratios
on / off with a bootstrap 95 % interval. Sessions with the probes on and off, one after the other, drift by ten times
what the probes cost.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from isorate_run import ROOT, us
from probes_rest import ProbesRest, rests

#: By engine: measured runs of a session (a whole number of on off off on), the load that is run for TTFT, and the one
#: for throughput if that is another. Runs are short: a host drifts by a tenth within seconds.
LOADS = {
    "null": (
        200,
        ["--engine", "null", "--pretok", "--max-new-tokens", "1", "--rate", "500", "--num-requests", "250"],
        ["--engine", "null", "--pretok", "--max-new-tokens", "64", "--num-requests", "1000",
         "--submit-interval-ms", "0"],
    ),
    "gpt2": (20, ["--pretok", "--num-requests", "16", "--submit-interval-ms", "250", "--max-new-tokens", "16"]),
}  # fmt: skip
FIGURES = ("TTFT p50", "engine throughput")


def run_session(load: list[str], runs: int) -> list[dict[str, Any]]:
    """The measured runs of a session in which the probes rest by turns. Raises RuntimeError."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "harness", *load, "--repeat-runs", str(runs), "--warmup-runs", "1",
                   "--out", str(out), "--allow-invalid", "--quiet"]  # fmt: skip
        switch = ProbesRest(out, first_run=1)
        switch.start()
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        finally:
            switch.stop()
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
        found: list[dict[str, Any]] = json.loads((out / "summary.json").read_text())["runs"][1:]
    looks = [run["contention"]["gil_wait"]["count"] for run in found]
    for number, count in enumerate(looks):
        if (count == 0) != rests(number):
            raise RuntimeError(f"run {number}: the GIL probe looked {count} times")
    return found


def pairs(engine: str) -> list[dict[str, list[float]]]:
    """Of neighbouring runs: TTFT p50 (us) of the paced load, and output tokens per s, with the probes on and off."""
    number_of_runs, *loads = LOADS[engine]
    paced, *burst = (run_session(load, number_of_runs) for load in loads)
    found = []
    for first in range(0, number_of_runs, 2):
        pair = {}
        for number in (first, first + 1):
            run = (burst[0] if burst else paced)[number]
            busy = 1.0 if burst else float(run["engine"]["busy_fraction"])
            throughput = float(run["throughput"]["output_tokens_per_s"]) / busy
            pair["off" if rests(number) else "on"] = [us(paced[number], "ttft", "p50"), throughput]
        found.append(pair)
    return found


def interval(ratios: np.ndarray) -> tuple[float, float]:
    """Percentile bootstrap of the median, 95 %."""
    draws = np.random.default_rng(1).choice(ratios, (10_000, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(low), float(high)


def print_table(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    print("| engine | figure | off (median) | on / off | 95 % | pairs |\n|---|---|---|---|---|---|")
    for engine in LOADS:
        found = [line for line in lines if line["engine"] == engine]
        for i, name in enumerate(FIGURES):
            if not found:
                continue
            ratios = np.array([line["on"][i] / line["off"][i] for line in found])
            low, high = interval(ratios)
            off = float(np.median([line["off"][i] for line in found]))
            unit = f"{off:,.0f} us" if i == 0 else f"{off:,.0f} tokens/s"
            print(f"| {engine} | {name} | {unit} | {np.median(ratios):.4f} | {low:.4f}-{high:.4f} | {len(found)} |")


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
    done = 0
    while done < options.pairs:
        found = pairs(options.engine)
        with open(options.append, "a") as file:
            file.writelines(json.dumps({"engine": options.engine, **pair}) + "\n" for pair in found)
        done += len(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
