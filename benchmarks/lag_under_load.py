"""Submit lag beside an engine that is saturated and one that is idle: the same plan, in turns, on disjoint cores.

    python benchmarks/lag_under_load.py --repeats 5

The load is the published one: 256 prompts of 259 tokens, one every millisecond. Saturated: isorate's native
engine, which has work from the first request to long after the last. Idle: the null engine without service time, which
only receives. Prints each run's submit lag, and p50 and p99 over all requests of all repeats.
"""

from __future__ import annotations

import argparse
import sys

from isorate_run import measure, median, us

LOAD = ("--schedule", "absolute", "--prompt", "Hello", "--prompt-repeats", "256", "--unique-prompts", "--pretok",
        "--num-requests", "256", "--max-new-tokens", "1", "--max-batch-size", "16",
        "--submit-interval-ms", "1")  # fmt: skip
SIDES = {"saturated": ("--engine", "native", "--no-prefix-cache", "--no-stop-on-eos"), "idle": ("--engine", "null")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    lags: dict[str, list[tuple[float, float, float]]] = {name: [] for name in SIDES}
    for repeat in range(arguments.repeats):
        for name, engine in SIDES.items():
            run = measure(*LOAD, *engine)
            p50, p99, longest = (us(run, "submit_lag", figure) for figure in ("p50", "p99", "max"))
            lags[name].append((p50, p99, longest))
            busy = 100 * (run["engine"].get("busy_fraction") or 0.0)
            print(f"repeat {repeat}, {name}: p50 {p50:.3f}, p99 {p99:.3f}, max {longest:.1f} us; "
                  f"the engine was busy for {busy:.1f} % of the run")  # fmt: skip
    print(f"\nmedians of {arguments.repeats} runs, us\n| engine | p50 | p99 | max |\n|---|---|---|---|")
    for name, rows in lags.items():
        print(f"| {name} | " + " | ".join(f"{median(column):.3f}" for column in zip(*rows, strict=True)) + " |")
    p99 = {name: median([row[1] for row in rows]) for name, rows in lags.items()}
    print(f"p99 saturated / idle: {p99['saturated'] / p99['idle']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
