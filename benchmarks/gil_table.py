"""What a busy GIL in the engine does to a request, told apart from what it does not: the table in the README.

    python benchmarks/gil_table.py --repeats 3

Null engine, idle against a pure-Python spinner thread, at a low and a high rate; medians over interleaved repeats.
"""

from __future__ import annotations

import argparse
import sys

from isorate_run import measure, median, us

RATES = ((50.0, 500), (1000.0, 5000))
METRICS = (("submit_lag", "submit lag"), ("transit", "transit"), ("ingress_wait", "ingress wait"),
           ("gil_wait", "gil_wait"))  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    print(f"| rate | engine | {' | '.join(f'{label} p50 / p99' for _, label in METRICS)} |")
    print("|---|---|" + "---|" * len(METRICS))
    for rate, count in RATES:
        runs: dict[str, list[dict[str, object]]] = {"idle": [], "GIL spinner": []}
        for _ in range(repeats):
            for name, flags in (("idle", []), ("GIL spinner", ["--null-hold-gil"])):
                load = ["--engine", "null", "--pretok", "--max-new-tokens", "1", "--rate", str(rate)]
                runs[name].append(measure(*load, "--num-requests", str(count), *flags))
        for name, measured in runs.items():
            cells = []
            for metric, _ in METRICS:
                p50, p99 = (median([us(run, metric, p) for run in measured]) for p in ("p50", "p99"))
                cells.append(f"{p50:,.2f} / {p99:,.2f} us" if p99 < 1000 else f"{p50:,.0f} / {p99:,.0f} us")
            print(f"| {rate:g}/s | {name} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
