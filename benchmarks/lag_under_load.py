"""Submit lag beside an engine that is saturated and one that is idle: the same plan, in turns, on disjoint cores.

    python benchmarks/lag_under_load.py --repeats 5 --wait spin

2,000 prompts of 259 tokens, one every 2 ms, which is many times what the engine can do; clients give up after 5 s, so
that a run ends. Saturated: isorate's native engine. Idle: the null engine without service time, which only receives.

By default (`--wait auto`) the pacer sleeps between requests, and is as late as the host wakes it; with `--wait spin` it
stays awake, as the control does. The control has nothing of isorate: a bare loop on the submitter's core reads the
clock until each due time has come, while another process computes on the engine's core, or does not. What is late
there, the host has made late.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from isorate_run import measure, median, us

REQUESTS, INTERVAL_MS = 2000, 2
LOAD = (
    "--schedule", "absolute", "--prompt", "Hello", "--prompt-repeats", "256", "--unique-prompts", "--pretok",
    "--num-requests", str(REQUESTS), "--max-new-tokens", "1", "--max-batch-size", "16",
    "--submit-interval-ms", str(INTERVAL_MS), "--abort-after-ms", "5000",
)  # fmt: skip
SIDES = {
    "isorate, engine saturated": ("--engine", "native", "--no-prefix-cache", "--no-stop-on-eos"),
    "isorate, engine idle": ("--engine", "null"),
}
CONTROLS = {"control, other core busy": True, "control, other core idle": False}
HOG = "import torch\ntorch.set_num_threads(1)\na = torch.ones(768, 768, dtype=torch.bfloat16)\nwhile True: a @ a"


def control(core: int, other: int, is_busy: bool) -> tuple[float, float, float]:
    """How late a bare loop on `core` reads the clock after each due time: p50, p99, max in us."""
    hog = subprocess.Popen(["taskset", "-c", str(other), sys.executable, "-c", HOG]) if is_busy else None
    try:
        time.sleep(5.0 if is_busy else 0.5)  # until it has loaded torch
        os.sched_setaffinity(0, {core})
        late = []
        due = time.monotonic_ns()
        for _ in range(REQUESTS):
            due += INTERVAL_MS * 1_000_000
            while (now := time.monotonic_ns()) < due:
                pass
            late.append((now - due) / 1e3)
        return percentiles(late)
    finally:
        os.sched_setaffinity(0, {core, other})
        if hog is not None:
            hog.kill()
            hog.wait()


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1]


def isorate(engine: Sequence[str]) -> tuple[float, float, float, float]:
    """Submit lag p50, p99, max in us, and how much of the run the engine was busy for, in percent."""
    run = measure(*LOAD, *engine)
    p50, p99, longest = (us(run, "submit_lag", figure) for figure in ("p50", "p99", "max"))
    return p50, p99, longest, 100 * float(run["engine"].get("busy_fraction") or 0.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--wait", default="auto")
    parser.add_argument("--submitter-core", type=int, default=1)
    parser.add_argument("--engine-core", type=int, default=0)
    arguments = parser.parse_args()
    cores = ("--submitter-cores", str(arguments.submitter_core), "--engine-cores", str(arguments.engine_core))
    lags: dict[str, list[tuple[float, float, float]]] = {name: [] for name in (*SIDES, *CONTROLS)}
    for repeat in range(arguments.repeats):
        for name, engine in SIDES.items():
            p50, p99, longest, busy = isorate([*engine, *cores, "--wait", arguments.wait])
            lags[name].append((p50, p99, longest))
            print(f"repeat {repeat}, {name}: p50 {p50:.3f}, p99 {p99:.3f}, max {longest:.1f} us, busy {busy:.1f} %")
        for name, is_busy in CONTROLS.items():
            p50, p99, longest = control(arguments.submitter_core, arguments.engine_core, is_busy)
            lags[name].append((p50, p99, longest))
            print(f"repeat {repeat}, {name}: p50 {p50:.3f}, p99 {p99:.3f}, max {longest:.1f} us")
    print(f"\n{REQUESTS} due times every {INTERVAL_MS} ms, medians of {arguments.repeats} runs, us")
    print("| | p50 | p99 | max |\n|---|---|---|---|")
    for name, rows in lags.items():
        print(f"| {name} | " + " | ".join(f"{median(column):.3f}" for column in zip(*rows, strict=True)) + " |")
    p99s = {name: median([row[1] for row in rows]) for name, rows in lags.items()}
    for (one, another), what in ((tuple(SIDES), "isorate"), (tuple(CONTROLS), "control")):
        print(f"p99 {what}, busy / idle: {p99s[one] / p99s[another]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
