"""Injects faults into live runs of the null engine and prints which checks each flipped: the table in docs/trust.md.

    python benchmarks/faults.py [NAME ...]

`must` are the checks that a fault has to flip; a noisy host flips others beside them. Faults that no signal or flag
makes (a dropped or doubled completion, a stamp out of order) are injected into made sessions alone
(tests/made_faults.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NULL = ("--engine", "null", "--null-service-ms", "1")
LOAD = ("--rate", "200", "--num-requests", "1200", "--max-new-tokens", "1", "--pretok", "--warmup-runs", "0")
#: What a pacer that sleeps is late by on a virtual machine is no fault of ours; on one core it has to.
SPIN = ("--wait", "spin")
#: Runs the command line with a generator that is wrong, in one line of Python.
RELATIVE = """
import dataclasses, sys, harness.session.live as session, harness.__main__ as cli
right = session.submitter_spec
session.submitter_spec = lambda *a, **k: dataclasses.replace(right(*a, **k), relative=True)
sys.exit(cli.main(sys.argv[1:]))
"""
WINDOWED = """
import sys, numpy as np, harness.plan.build as build, harness.__main__ as cli
def windowed(config, limit):
    counts = np.random.default_rng(3).poisson(200, 6)
    return np.array([s * 10**9 + k * 10**9 // c for s, c in enumerate(counts) for k in range(c)], dtype=np.int64)[:1000]
build.build_offsets = windowed
sys.exit(cli.main(sys.argv[1:]))
"""


class Fault(NamedTuple):
    """must: checks that it has to flip. act: what is done once 300 requests were sent. prefix: before the command."""

    must: frozenset[str]
    act: Callable[[int], None] | None = None
    flags: tuple[str, ...] = (*NULL, *LOAD)
    prefix: tuple[str, ...] = ()
    program: str = ""


def child(parent: int, module: str) -> int:
    """The pid of a child by its module."""
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if module.encode() in words:
            return int(pid)
    raise RuntimeError(f"{parent} has no child {module}")


def pause(pid: int, seconds: float) -> None:
    """SIGSTOP, and SIGCONT a time later."""
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


def stop_child(module: str, seconds: float, times: int = 1) -> Callable[[int], None]:
    def act(parent: int) -> None:
        for _ in range(times):
            pause(child(parent, module), seconds)
            time.sleep(0.05 if times > 1 else 0)

    return act


def hog(parent: int) -> None:
    """Spin on the submitter's CPU for three seconds."""
    cpu = min(os.sched_getaffinity(child(parent, "submitter_proc")))
    spin = "import time; end = time.monotonic() + 3\nwhile time.monotonic() < end: pass"
    subprocess.run(["taskset", "-c", str(cpu), sys.executable, "-c", spin], check=True)


FAULTS: dict[str, Fault] = {
    "none": Fault(frozenset()),
    "short stops of the submitter (20 x 8 ms)": Fault(
        frozenset({"submit_lag", "lag_share", "omission_gap"}), stop_child("submitter_proc", 0.008, 20)
    ),
    "relative clock against the absolute plan": Fault(frozenset({"stamp_chain", "drift"}), program=RELATIVE),
    "windowed Poisson": Fault(
        frozenset({"plan_shape"}), flags=(*NULL, *LOAD, "--arrival", "poisson"), program=WINDOWED
    ),
    "submitter stopped for 1.4 s": Fault(
        frozenset({"submit_lag", "lag_share", "submit_lag_gap", "gap_shift", "omission_gap"}),
        stop_child("submitter_proc", 1.4),
    ),
    "engine stopped for 1 s": Fault(frozenset({"unread"}), stop_child("engine_proc", 1.0)),
    "harness (receiver) stopped for 1 s": Fault(frozenset({"delivery", "hiccups"}), lambda pid: pause(pid, 1.0)),
    "Python spinner in the engine": Fault(
        frozenset({"gil_wait", "gil_share"}), flags=(*NULL, *LOAD, "--null-hold-gil")
    ),
    "GC pause": Fault(frozenset({"gc_engine"}), flags=("--engine", "gc_engine:make", *LOAD, "--gc", "on")),
    "all on one core": Fault(frozenset({"shared_core"}), prefix=("taskset", "-c", "0")),
    "hog on the submitter's core": Fault(frozenset({"other_load"}), hog),
}


def run(fault: Fault) -> dict[str, Any]:
    """Run once with the fault; the verdict of its summary."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        out, shm = Path(folder) / "out", Path(folder)
        start = ["-c", fault.program] if fault.program else ["-m", "harness"]
        wait = () if "shared_core" in fault.must else SPIN
        command = [*fault.prefix, sys.executable, *start, *fault.flags, *wait, "--out", str(out), "--quiet",
                   "--allow-invalid", "--collector-dir", "/dev/shm"]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}", "ISORATE_PROGRAM": "isorate"}
        process = subprocess.Popen(
            command, cwd=shm, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        if fault.act is not None:
            wait_until_sent(process, 300)
            fault.act(process.pid)
        _, errors = process.communicate(timeout=120)
        if not (out / "summary.json").exists():
            raise RuntimeError(f"no summary: {errors}")
        verdict: dict[str, Any] = json.loads((out / "summary.json").read_text())["verdict"]
    return verdict


def wait_until_sent(process: subprocess.Popen[str], count: int) -> None:
    """Until the run has sent so many; reads its collector, whose description names our result folder."""
    from harness.common.collector import Collector, read_header
    from harness.common.errors import CollectorError

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        for path in Path("/dev/shm").glob("isorate-*.collector"):
            try:
                if read_header(path).owner_pid != process.pid:
                    continue
                collector = Collector.attach(path, writable=False)
            except (CollectorError, OSError):
                continue
            sent = collector.word("sent")
            collector.close()
            if sent >= count:
                return
        time.sleep(0.02)
    raise RuntimeError(f"the run did not send {count} requests in time")


def main(names: Sequence[str]) -> int:
    unknown = set(names) - set(FAULTS)
    if unknown:
        print(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}", file=sys.stderr)
        return 2
    missed = 0
    print("| fault | verdict | bound by | must flip | flipped beside them |\n|---|---|---|---|---|")
    for name in names or FAULTS:
        verdict = run(FAULTS[name])
        flipped = {
            check["id"]: check["status"] for check in verdict["checks"] if check["status"] in ("WARN", "INVALID")
        }
        must = [f"{check} {flipped.get(check, '**missed**')}" for check in sorted(FAULTS[name].must)]
        missed += sum(check not in flipped for check in FAULTS[name].must)
        beside = [f"{check} {status}" for check, status in flipped.items() if check not in FAULTS[name].must]
        cells = (name, verdict["status"], verdict["bound_by"], ", ".join(must) or "-", ", ".join(beside) or "-")
        print(f"| {' | '.join(cells)} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
