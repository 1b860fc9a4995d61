"""TTFT of requests that share the beginning of their prompts, with the prefix cache and without it, in turns.

    python benchmarks/prefix_cache.py

64 requests of 512 shared and 16 own tokens, one new token each, sent at even intervals to isorate's native engine, as a
user would. Prints the median over the repeats of TTFT p50 on each side, and the ratio. The requests come no faster than
the slower side can serve them, so that TTFT is a service and not a queue; `--interval-ms` 0 is a burst.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from isorate_run import ROOT, measure, median

sys.path.insert(0, str(ROOT))
from harness.common.plan_file import LoadPlan

SIDES = {"with prefix cache": "on", "without": "off"}


def write_plan(path: Path, arguments: argparse.Namespace, seed: int) -> None:
    draw = np.random.default_rng(seed)
    shared = draw.integers(0, 50257, arguments.shared_tokens)
    prompts = [np.concatenate([shared, draw.integers(0, 50257, arguments.own_tokens)])
               for _ in range(arguments.requests)]  # fmt: skip
    starts = np.arange(arguments.requests + 1) * len(prompts[0])
    offsets = (np.arange(arguments.requests) * arguments.interval_ms * 1e6).astype(np.int64)
    new_tokens = np.ones(arguments.requests, np.int32)
    ids = np.concatenate(prompts).astype(np.int32)
    LoadPlan(offsets, new_tokens, prompt_ids=ids, prompt_starts=starts.astype(np.int64)).save(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--shared-tokens", type=int, default=512)
    parser.add_argument("--own-tokens", type=int, default=16)
    parser.add_argument("--interval-ms", type=float, default=500.0)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    p50: dict[str, list[float]] = {name: [] for name in SIDES}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for repeat in range(arguments.repeats):
            plan = Path(folder) / f"plan-{repeat}.npz"
            write_plan(plan, arguments, repeat)
            for name, toggle in SIDES.items():
                run = measure("--plan", str(plan), "--prefix-cache", toggle, "--dtype", arguments.dtype)
                p50[name].append(run["metrics"]["ttft"]["p50"])
                cache = run["engine"]["prefix_cache"]
                print(f"repeat {repeat}, {name}: TTFT p50 {p50[name][-1]:.1f} ms, "
                      f"hit rate {100 * (cache['hit_rate'] or 0):.1f} %, {run['verdict']}")  # fmt: skip
    medians = {name: median(values) for name, values in p50.items()}
    print(f"\n{arguments.requests} requests, {arguments.shared_tokens} shared and {arguments.own_tokens} own tokens, "
          f"every {arguments.interval_ms:g} ms, {arguments.dtype}; median of {arguments.repeats}")  # fmt: skip
    for name, value in medians.items():
        print(f"TTFT p50 {name}: {value:.1f} ms")
    print(f"ratio: {medians['without'] / medians['with prefix cache']:.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
