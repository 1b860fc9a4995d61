"""Submit lag of MLPerf LoadGen, by its own trace, for comparison with isorate's on the same plan.

    python benchmarks/loadgen_lag.py --qps 1000 --queries 10000 --cores 1 --plan-out plan.npz
    ./run.sh --engine null --plan plan.npz

LoadGen runs in a process of its own under `taskset`, in the Server scenario (Poisson arrivals), against a system under
test that completes every query at once. Its trace holds `issue_delay`: how many ns after its planned time each query
was issued. `--plan-out` writes the planned times, read from the same trace, as a plan that isorate replays.

The first use makes a virtual environment for PyPI's `mlcommons-loadgen` (see --venv); isorate itself does not need it.
Prints one JSON object: p50_us, p99_us, mean_us, max_us, n, qps and what was asked for.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = "mlcommons-loadgen==6.0.17"
DEFAULT_VENV = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isorate" / "loadgen-venv"
TRACE = "mlperf_log_trace.json"
PR_SET_TIMERSLACK = 29


@dataclass(frozen=True, slots=True)
class Settings:
    """One LoadGen run. timer_slack_ns 0 leaves the kernel's default, 50 us, which is what LoadGen ships with."""

    qps: float = 1000.0
    queries: int = 10_000
    seed: int = 0
    cores: str = ""
    timer_slack_ns: int = 0


@dataclass(frozen=True, slots=True)
class Issued:
    """What the trace says of each query, in issue order: planned offsets from the first, and lateness."""

    offsets_ns: list[int]
    delays_ns: list[int]

    def summary(self) -> dict[str, float | int]:
        """The figures of the lag; percentiles as NumPy's default, linear between ranks."""
        span_s = self.offsets_ns[-1] / 1e9
        return {
            "p50_us": percentile(self.delays_ns, 50) / 1e3,
            "p99_us": percentile(self.delays_ns, 99) / 1e3,
            "mean_us": sum(self.delays_ns) / len(self.delays_ns) / 1e3,
            "max_us": max(self.delays_ns) / 1e3,
            "n": len(self.delays_ns),
            "qps": (len(self.offsets_ns) - 1) / span_s if span_s else 0.0,
        }


def percentile(values: Sequence[int], percent: float) -> float:
    """Linear between ranks. By hand, since this file also runs where there is no NumPy."""
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def ensure_venv(folder: Path) -> Path:
    """The interpreter of a virtual environment that has LoadGen, made at first use."""
    python = folder / "bin" / "python"
    done = folder / PACKAGE  # written last: a broken installation is made again
    if not done.exists():
        print(f"installing {PACKAGE} into {folder} (once)", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", os.fspath(folder)], check=True)
        pip = [os.fspath(python), "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
        subprocess.run([*pip, PACKAGE], check=True, stdout=sys.stderr)
        done.touch()
    return python


def run_loadgen(settings: Settings, folder: Path) -> None:
    """In the LoadGen environment: run and leave the trace in `folder`. The issuing thread is this one."""
    import mlperf_loadgen as lg  # type: ignore[import-not-found]  # only in its own environment

    if settings.timer_slack_ns:
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, settings.timer_slack_ns, 0, 0, 0)
    test = lg.TestSettings()
    test.scenario = lg.TestScenario.Server
    test.mode = lg.TestMode.PerformanceOnly
    test.server_target_qps = settings.qps
    test.server_target_latency_ns = 1_000_000_000
    test.schedule_rng_seed = settings.seed
    test.min_duration_ms = 0
    test.min_query_count = test.max_query_count = settings.queries
    logs = lg.LogSettings()
    logs.enable_trace = True
    output = lg.LogOutputSettings()
    output.outdir = str(folder)
    output.copy_summary_to_stdout = False
    logs.log_output = output
    response, complete = lg.QuerySampleResponse, lg.QuerySamplesComplete

    def answer(query_ids: list[int], _sample_indices: list[int]) -> None:
        complete([response(query_id, 0, 0) for query_id in query_ids])

    # The cheapest system under test that the Python binding has, so that LoadGen is late by itself or not at all.
    system = lg.ConstructFastSUT(answer, lambda: None)
    library = lg.ConstructQSL(1024, 1024, lambda _samples: None, lambda _samples: None)
    lg.StartTestWithLogSettings(system, library, test, logs, "")
    lg.DestroyQSL(library)
    lg.DestroyFastSUT(system)


def read_trace(path: Path) -> Issued:
    """Planned times and delays of all queries.

    Events of the name "Sample", phase "b": `ts` is the *planned* time in us with three decimals, hence exact in ns, and
    `issue_start_ns` the delay from there (the same number as `issue_delay` of the "Latency" event before it).
    """
    rows: list[tuple[int, int, int]] = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if '"name":"Sample"' in line and '"ph":"b"' in line:
                event = json.loads(line.rstrip().rstrip(","), parse_float=str)
                us, _, ns = str(event["ts"]).partition(".")
                planned_ns = int(us) * 1000 + int(ns.ljust(3, "0"))
                rows.append((event["args"]["sample_seq"], planned_ns, event["args"]["issue_start_ns"]))
    if not rows:
        raise SystemExit(f"{path} holds no queries: did LoadGen fail?")
    rows.sort()
    first = rows[0][1]
    return Issued([planned - first for _, planned, _ in rows], [delay for _, _, delay in rows])


def measure(settings: Settings, venv: Path = DEFAULT_VENV) -> Issued:
    """Run LoadGen in a process of its own and read its trace."""
    python = ensure_venv(venv)
    with tempfile.TemporaryDirectory(prefix="loadgen-") as folder:
        worker = [os.fspath(python), os.path.abspath(__file__), "--worker", folder, *_flags(settings)]
        pinned = ["taskset", "-c", settings.cores] if settings.cores else []
        subprocess.run([*pinned, *worker], check=True, stdout=sys.stderr)
        issued = read_trace(Path(folder, TRACE))
    if len(issued.delays_ns) != settings.queries:
        raise SystemExit(f"LoadGen issued {len(issued.delays_ns)} of {settings.queries} queries")
    return issued


def _flags(settings: Settings) -> list[str]:
    values = {"--qps": settings.qps, "--queries": settings.queries, "--seed": settings.seed,
              "--timer-slack-ns": settings.timer_slack_ns}  # fmt: skip
    return [str(word) for pair in values.items() for word in pair]


def write_plan(offsets_ns: Sequence[int], path: Path) -> None:
    """A plan of these times for isorate: one token id a prompt, one new token, pre-tokenized."""
    sys.path.insert(0, os.fspath(Path(__file__).resolve().parent.parent))
    import numpy as np

    from harness.common.plan_file import LoadPlan

    count = len(offsets_ns)
    plan = LoadPlan(
        offsets_ns=np.asarray(offsets_ns, dtype=np.int64),
        max_new_tokens=np.ones(count, dtype=np.int32),
        prompt_ids=np.full(count, 15496, dtype=np.int32),  # "Hello" in GPT-2's vocabulary
        prompt_starts=np.arange(count + 1, dtype=np.int64),
    )
    plan.save(path)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    defaults = Settings()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--qps", type=float, default=defaults.qps, help="target rate (default %(default)g)")
    parser.add_argument("--queries", type=int, default=defaults.queries, help="default %(default)s")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="of the Poisson schedule (default %(default)s)")
    parser.add_argument("--cores", default=defaults.cores, metavar="LIST", help="taskset list (default: not pinned)")
    parser.add_argument("--timer-slack-ns", type=int, default=0, metavar="NS",
                        help="0 leaves the kernel's 50 us, as LoadGen does; 1 shows what they cost")  # fmt: skip
    parser.add_argument("--plan-out", type=Path, metavar="FILE", help="write the planned times as isorate's plan.npz")
    parser.add_argument("--venv", type=Path, default=DEFAULT_VENV, help="default %(default)s")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if not 0 < args.qps < float("inf") or args.queries < 2:
        parser.error("--qps must be positive and --queries at least 2")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    settings = Settings(args.qps, args.queries, args.seed, args.cores, args.timer_slack_ns)
    if args.worker:
        run_loadgen(settings, args.worker)
        return 0
    issued = measure(settings, args.venv)
    if args.plan_out:
        write_plan(issued.offsets_ns, args.plan_out)
    report: dict[str, Any] = issued.summary()
    asked = {"target_qps": args.qps, "seed": args.seed, "cores": args.cores, "timer_slack_ns": args.timer_slack_ns}
    print(json.dumps(report | asked | {"package": PACKAGE}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
