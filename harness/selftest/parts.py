"""The parts of the self-test that need no queueing theory: clocks, the floor, plans, the GIL, what the probes cost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from harness.common.clock import monotonic_ns
from harness.common.processes import sharpen_timers
from harness.measures.arrival_check import AD_LIMIT_1, AD_LIMIT_5, figures
from harness.plan.arrival_spec import ArrivalSpec
from harness.plan.processes import schedule_of
from harness.selftest.lines import Line, at_most, told
from harness.selftest.sessions import Measured


class Sizes(NamedTuple):
    """How long the self-test takes. service_ms: of D/D/1 and M/D/1; the others: requests a session, plans, and pairs of
    sessions with and without probes."""

    service_ms: float
    floor: int
    dd1: int
    md1: int
    loads: tuple[float, ...]
    gil: int
    plans: int
    observer: int
    pairs: int


#: What starts and ends may be off grows with the service, and Python on cold caches takes some 200 us to take a request
#: in on a virtual machine: 2 % of 25 ms leave that room, as a model's steps do.
SERVICE_MS = 25.0
FULL = Sizes(SERVICE_MS, 1000, 200, 500, (0.3, 0.5), 250, 200, 300, 2)
QUICK = Sizes(SERVICE_MS, 300, 100, 400, (0.5,), 100, 50, 150, 1)

#: Bounds from the measurement notes: V13, C9, C16; of the GIL CPython's switch interval of 5 ms; C5.
CLOCK_BOUND_US = 50.0
FLOOR_P50_US, FLOOR_P99_US = 1_000.0, 5_000.0
OBSERVER_PERCENT, OBSERVER_SERVICE_MS = 1.0, 10.0
GIL_P50_MS = (4.5, 5.5)
REJECTED_PERCENT = 10.0
_PLAN_REQUESTS = 1_000
_WAKES, _NAP_NS = 300, 5_000_000


class Runs(Protocol):
    """What the parts need of `harness.selftest.sessions.Sessions`."""

    def run(self, name: str, words: Sequence[str], watch: bool = False) -> Measured: ...


def host_lines() -> list[Line]:
    """How late this host wakes a thread that only sleeps: whatever in a session sleeps is woken no better."""
    sharpen_timers()
    late = []
    for _ in range(_WAKES):
        due = monotonic_ns() + _NAP_NS
        time.sleep(_NAP_NS / 1e9)
        late.append((monotonic_ns() - due) / 1e3)
    p50, p99, most = np.percentile(late, (50, 99, 100))
    text = f"{p50:,.0f}, {p99:,.0f}, {most:,.0f} us"
    return [told("host", "This host wakes a sleeper late by, p50, p99, max", text, float(p99))]


def clock_lines(clocks: Sequence[Mapping[str, Any]]) -> list[Line]:
    """By process: the least bound on the offset of its clock over all handshakes. (In each of them every stamp of the
    child lay between our send and our receive, else its session had failed.)"""
    lines = []
    for process in ("engine", "submitter"):
        bounds = [bound for clock in clocks if (bound := clock.get(process, {}).get("offset_bound_ns")) is not None]
        least = min(bounds) / 1e3 if bounds else None
        lines.append(at_most("clock", f"Clock offset of the {process}, at most", least, CLOCK_BOUND_US, "us"))
    return lines


def measure_floor(runs: Runs, sizes: Sizes) -> tuple[list[Line], int, int]:
    """TTFT where the engine takes no time: the lines, and p50 and p99 in ns."""
    measured = runs.run("floor", ["--rate", "100", "--num-requests", str(sizes.floor)])
    ttft = measured.stamps["t_delivered"] - measured.stamps["t_intended"]
    p50, p99 = (int(value) for value in np.percentile(ttft, (50, 99)))
    lines = [
        at_most("floor", "Null engine, whole path p50", p50 / 1e3, FLOOR_P50_US, "us"),
        at_most("floor", "Null engine, whole path p99", p99 / 1e3, FLOOR_P99_US, "us"),
    ]
    return lines, p50, p99


def poisson_lines(sizes: Sizes) -> list[Line]:
    """Plans of seeds 1, 2, ... against the law of their process; each test rejects 5 % of good ones."""
    lines = []
    tests = {"Anderson-Darling": 0, "lag-1 correlation": 0}
    for seed in range(1, sizes.plans + 1):
        schedule = schedule_of(ArrivalSpec(arrival="poisson", rate=100.0, seed=seed))
        found = figures(schedule.offsets(_PLAN_REQUESTS, None), schedule)
        assert found.anderson_darling is not None and found.law_lag1 is not None and found.lag1_limit is not None
        tests["Anderson-Darling"] += found.anderson_darling > AD_LIMIT_5
        tests["lag-1 correlation"] += abs(found.law_lag1) > found.lag1_limit
    for name, rejected in tests.items():
        share = 100.0 * rejected / sizes.plans
        lines.append(at_most("poisson", f"Poisson plans that {name} rejects", share, REJECTED_PERCENT, "%"))
    return lines


def sent_lines(part: str, load: float, sessions: Sequence[Measured]) -> list[Line]:
    """The gaps as they were sent: the law's test at its outer limit, and what the submitter did to their variation."""
    arrivals = [session.run["arrivals"] for session in sessions]
    darling = max((entry["actual"]["anderson_darling"] or 0.0 for entry in arrivals), default=0.0)
    shifts = [100.0 * abs(entry["shift"]["delta_ca2"]) / entry["shift"]["planned_ca2"] for entry in arrivals]
    name = f"load {load:g}"
    return [
        at_most(part, f"Sent gaps, {name}: Anderson-Darling", darling, 2.0 * AD_LIMIT_1, ""),
        at_most(part, f"Sent gaps, {name}: Ca^2 off the plan's", max(shifts), 1.0, "%"),
    ]


def gil_lines(runs: Runs, sizes: Sizes) -> list[Line]:
    """A thread that never gives the GIL up must be seen as CPython's switch interval."""
    low, high = GIL_P50_MS
    words = ["--null-hold-gil", "--rate", "50", "--num-requests", str(sizes.gil)]
    value = runs.run("gil", words).metric_ms("gil_wait", "p50")
    measured = "not measured" if value is None else f"{value:.3f} ms"
    passed = value is not None and low <= value <= high
    return [Line("gil", "GIL hog: gil_wait p50", f"{low:g} to {high:g} ms", measured, passed, value, high)]


def observer_lines(runs: Runs, sizes: Sizes) -> list[Line]:
    """TTFT p50 with the probes against without, in the order off on on off."""
    found: dict[str, list[float]] = {"on": [], "off": []}
    rate = f"{500.0 / OBSERVER_SERVICE_MS:g}"
    for pair in range(sizes.pairs):
        for probes in ("off", "on") if pair % 2 == 0 else ("on", "off"):
            words = [*service(OBSERVER_SERVICE_MS), "--rate", rate, "--num-requests", str(sizes.observer)]
            value = runs.run(f"observer-{pair}-{probes}", [*words, "--probes", probes]).metric_ms("ttft", "p50")
            found[probes].append(float("nan") if value is None else value)
    on, off = (float(np.mean(found[probes])) for probes in ("on", "off"))
    change = 100.0 * (on / off - 1.0)
    line = at_most("observer", "Probes on: TTFT p50 longer by", change, OBSERVER_PERCENT, "%")
    return [line, told("observer", "TTFT p50 with probes, without", f"{on:.3f} ms, {off:.3f} ms", on)]


def service(service_ms: float) -> list[str]:
    """The words for a server whose services take exactly so long. It needs no prompts: decoding them would be seen as a
    late start."""
    return ["--payload", "index", "--null-service", "ideal", "--null-service-ms", f"{service_ms:g}"]
