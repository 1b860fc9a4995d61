"""isorate's submit lag and wire offset beside MLPerf LoadGen's own lag, alternating, on the same Poisson plan.

    python benchmarks/submit_lag.py --qps 1000 --queries 10000 --repeats 5

Each repetition runs LoadGen, takes the plan from its trace, and replays that very plan with isorate's null engine,
submitter on the same core. Prints medians over the repetitions and the ratios.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from isorate_run import ROOT, measure, median, us

FIGURES = ("LoadGen lag", "isorate lag", "isorate t_wire - t_intended")


def loadgen(arguments: argparse.Namespace, plan: Path) -> dict[str, float]:
    """One LoadGen run in a process of its own; writes its plan."""
    command = [
        sys.executable, str(ROOT / "benchmarks" / "loadgen_lag.py"), "--qps", str(arguments.qps),
        "--queries", str(arguments.queries), "--cores", arguments.core, "--plan-out", str(plan),
        "--timer-slack-ns", str(arguments.timer_slack_ns),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qps", type=float, default=1000.0)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--core", default="0", help="the core of LoadGen and of isorate's submitter")
    parser.add_argument("--timer-slack-ns", type=int, default=0, help="LoadGen's timer slack (0: the default, 50 us)")
    arguments = parser.parse_args()
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in FIGURES}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for repeat in range(arguments.repeats):
            plan = Path(folder) / f"plan-{repeat}.npz"
            theirs = loadgen(arguments, plan)
            ours = measure("--engine", "null", "--plan", str(plan), "--submitter-cores", arguments.core)
            rows["LoadGen lag"].append((theirs["p50_us"], theirs["p99_us"]))
            rows["isorate lag"].append((us(ours, "submit_lag", "p50"), us(ours, "submit_lag", "p99")))
            rows["isorate t_wire - t_intended"].append((us(ours, "wire_offset", "p50"), us(ours, "wire_offset", "p99")))
    print(f"{arguments.queries} requests at {arguments.qps:g}/s, the same Poisson plan, {arguments.repeats} repeats")
    print(f"{'us, median over repeats':<32}{'p50':>12}{'p99':>12}")
    medians = {name: (median([p50 for p50, _ in values]), median([p99 for _, p99 in values]))
               for name, values in rows.items()}  # fmt: skip
    for name, (p50, p99) in medians.items():
        print(f"{name:<32}{p50:>12.3f}{p99:>12.3f}")
    for name in FIGURES[1:]:
        ratios = [medians[FIGURES[0]][i] / medians[name][i] for i in (0, 1)]
        print(f"{'LoadGen / ' + name:<32}{ratios[0]:>11.1f}x{ratios[1]:>11.1f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
