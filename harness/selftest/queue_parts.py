"""The parts of the self-test that hold sessions against queueing theory: D/D/1, and M/D/1 over one seed or several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.common.clock import NS_PER_MS, NS_PER_S
from harness.selftest.lines import Line, at_most, told
from harness.selftest.parts import Runs, Sizes, sent_lines, service
from harness.selftest.queueing import (
    Md1Result,
    Residuals,
    Served,
    enough_inside,
    lindley_limit_ns,
    lindley_residuals,
    md1_result,
    overload_slope,
)
from harness.selftest.sessions import Measured

OVERLOAD = 1.25
#: An interval wider than that share of the mean holds anything: the host stood still, or there were too few requests.
TELLING = 0.6
LITTLE_PERCENT = 1.0
SLOPE_PERCENT = 1.0


def served(measured: Measured, sizes: Sizes) -> Served:
    """The single server of a session."""
    stamps = measured.stamps
    service_ns = round(sizes.service_ms * NS_PER_MS)
    # A step serves one request; the batch of a step is formed when its request is scheduled.
    order = np.argsort(measured.steps["t_batch"])
    places = order[np.searchsorted(measured.steps["t_batch"], stamps["t_scheduled"], sorter=order)]
    freed = measured.steps["t_end"][places]
    return Served.of(stamps["t_tokenized"], stamps["t_scheduled"], stamps["t_first_token"], freed, service_ns)


def dd1_lines(runs: Runs, sizes: Sizes) -> list[Line]:
    """A constant rate: nobody waits below capacity; above it each waits longer than the one before, by S - T."""
    lines = []
    for name, load in (("D/D/1 at load 0.5", 0.5), (f"D/D/1 at load {OVERLOAD:g}", OVERLOAD)):
        rate = load * 1e3 / sizes.service_ms
        words = [*service(sizes.service_ms), "--rate", f"{rate:.9g}", "--num-requests", str(sizes.dd1)]
        queue = served(runs.run(f"dd1-{load:g}", words), sizes)
        lines += lindley_lines("dd1", name, [lindley_residuals(queue)], queue.service_ns)
    off = 100.0 * abs(overload_slope(queue, round(NS_PER_S / rate)) - 1.0)
    lines.append(at_most("dd1", f"{name}: slope of the waits off S - T", off, SLOPE_PERCENT, "%"))
    return lines


def lindley_lines(part: str, name: str, residuals: Sequence[Residuals], service_ns: int) -> list[Line]:
    """p99 of the worst session, of starts and of ends."""
    limit = lindley_limit_ns(service_ns) / 1e3
    starts, ends = (max(getattr(one, field) for one in residuals) / 1e3 for field in ("start_p99", "end_p99"))
    p50 = max(one.start_p50 for one in residuals) / 1e3, max(one.end_p50 for one in residuals) / 1e3
    most = max(one.start_max for one in residuals) / 1e3, max(one.end_max for one in residuals) / 1e3
    return [
        at_most(part, f"{name}: service starts off Lindley, p99", starts, limit, "us"),
        at_most(part, f"{name}: service ends off Lindley, p99", ends, limit, "us"),
        told(part, f"{name}: starts, ends p50 and max",
             f"{p50[0]:,.0f}, {p50[1]:,.0f} us; {most[0]:,.0f}, {most[1]:,.0f} us"),
    ]  # fmt: skip


def md1_lines(runs: Runs, sizes: Sizes, load: float, seeds: Sequence[int]) -> list[Line]:
    """Poisson arrivals at a load: a session a seed."""
    rate = f"{load * 1e3 / sizes.service_ms:.9g}"
    sessions, results, residuals = [], [], []
    for seed in seeds:
        words = [*service(sizes.service_ms), "--arrival", "poisson", "--rate", rate, "--num-requests", str(sizes.md1)]
        measured = runs.run(f"md1-{load:g}-{seed}", [*words, "--seed", str(seed)], watch=seed == seeds[0])
        queue = served(measured, sizes)
        sessions.append(measured)
        residuals.append(lindley_residuals(queue))
        results.append(md1_result(queue, load, seed))
    name = f"M/D/1 at load {load:g}"
    return [
        *lindley_lines("md1", name, residuals, queue.service_ns),
        _mean_line(name, results),
        *_share_lines(name, results),
        little_line(name, sessions[0]),
        *sent_lines("md1", load, sessions),
    ]


def _mean_line(name: str, results: Sequence[Md1Result]) -> Line:
    inside = sum(result.inside for result in results)
    telling = all(result.mean.half <= TELLING * result.theory for result in results)
    passed = telling and inside >= enough_inside(len(results)) and not any(result.far_outside for result in results)
    mean = float(np.mean([result.mean.mean for result in results]))
    half = float(np.mean([result.mean.half for result in results]))
    vif = float(np.mean([result.mean.vif for result in results]))
    text = f"{mean:.3f} +-{half:.3f} S (VIF {vif:.1f}), {inside} of {len(results)} inside 95 %"
    text += "" if telling else ", too wide to tell"
    return Line("md1", f"{name}: mean wait", f"{results[0].theory:.3f} S", text, passed, mean, results[0].theory)


def _share_lines(name: str, results: Sequence[Md1Result]) -> list[Line]:
    lines = []
    for shares in zip(*(result.shares for result in results), strict=True):
        inside = sum(share.inside for share in shares)
        passed = inside >= enough_inside(len(shares)) and not any(share.far_outside for share in shares)
        measured = float(np.mean([share.measured for share in shares]))
        text = f"{100 * measured:.2f} %, {inside} of {len(shares)} inside 95 %"
        title = f"{name}: waits up to {shares[0].wait:.3f} S"
        lines.append(Line("md1", title, f"{100 * shares[0].theory:.2f} %", text, passed, measured, shares[0].theory))
    return lines


def little_line(name: str, measured: Measured) -> Line:
    """The mean number in the engine, by its counters, against rate times mean time in it, by the stamps. Both over the
    time from the first arrival to the last departure."""
    stamps = measured.stamps
    inside = stamps["t_first_token"] - stamps["t_ingress"]
    span = int(stamps["t_first_token"].max() - stamps["t_ingress"].min())
    expected = float(inside.sum()) / span
    occupancy = measured.occupancy
    title = f"{name}: Little's law"
    if occupancy is None or len(occupancy.times) < 2:
        return Line("md1", title, f"{expected:.4f} in the engine", "the counters were not seen", False)
    found = occupancy.area_ns() / span
    off = 100.0 * abs(found / expected - 1.0)
    text = f"{found:.4f} by the counters, {off:.2f} % off"
    wanted = f"{expected:.4f} +-{LITTLE_PERCENT:g} %"
    return Line("md1", title, wanted, text, off <= LITTLE_PERCENT, off, LITTLE_PERCENT)
