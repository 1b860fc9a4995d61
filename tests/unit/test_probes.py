"""The probes' threads: they write what they see, count it, and end when told."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from fakes import FakeClock

from harness.common.clock import monotonic_ns
from harness.common.collector import CONTROL_WORDS, Int64Array
from harness.common.probes.gc_pauses import GcProbe
from harness.common.probes.gil import CompiledGilProbe, make_gil_probe
from harness.common.probes.hiccup import HiccupMonitor, compile_hiccups
from harness.common.probes.ring import EXACT, PERIOD, REST_NS, SHORTEST, SLEEPS, read_ring
from harness.common.probes.schedstat import open_schedstat, run_delay
from helpers import wait_until

pytestmark = pytest.mark.timeout(60)
REST = CONTROL_WORDS["probes_rest"]


def ring(rows: int = 64) -> Int64Array:
    return np.zeros((1 + rows, 8), dtype=np.int64)


def cell() -> Int64Array:
    return np.zeros(8, dtype=np.int64)


@pytest.fixture(params=[False, True], ids=["compiled", "plain"])
def probed(request: pytest.FixtureRequest) -> Iterator[tuple[Int64Array, Int64Array, object]]:
    """A running GIL probe of 0.2 ms: its ring, its stop cell, the probe."""
    rows, control = ring(1 << 14), cell()
    probe = make_gil_probe(rows, control, 0, monotonic_ns, plain=request.param, period_ns=200_000)
    probe.start()
    yield rows, control, probe
    probe.stop()


def test_a_gil_probe_writes_waits_on_the_clock_and_says_whether_they_are_exact(
    probed: tuple[Int64Array, Int64Array, object],
) -> None:
    rows, control, probe = probed
    before = monotonic_ns()
    wait_until(lambda: rows[0, 0] >= 5, 10, "five looks")
    control[0] = 1
    wait_until(lambda: not named("gil-probe"), 10, "the end of the probe")
    found = read_ring(rows)
    assert found.lost == 0 and len(found.rows) >= 5
    assert (np.diff(found.rows[:, 0]) > 0).all()
    assert (found.rows[:, 1] >= 0).all() and (found.rows[:, 2] >= 0).all()
    assert before - 10**9 < found.rows[0, 0] < monotonic_ns()
    assert found.head[EXACT] == int(isinstance(probe, CompiledGilProbe))


def test_a_gil_probe_that_rests_writes_nothing_and_then_goes_on(probed: tuple[Int64Array, Int64Array, object]) -> None:
    rows, control, _ = probed
    wait_until(lambda: rows[0, 0] >= 1, 10, "the first look")
    control[REST] = 1
    wait_until(lambda: stands_still(rows[0], 0), 10, "an end of the looks")
    seen = rows[0, 0]
    control[REST] = 0
    wait_until(lambda: rows[0, 0] >= seen + 5, 10, "looks after the rest")


def stands_still(cells: Int64Array, i: int) -> bool:
    """For two rests, a hundred times as long as the probes of these tests sleep else."""
    seen, end = cells[i], time.monotonic() + 2 * REST_NS / 1e9
    while cells[i] == seen and time.monotonic() < end:
        time.sleep(0.005)
    return bool(cells[i] == seen)


def named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_a_thread_that_keeps_the_gil_shows_as_waits_of_the_switch_interval() -> None:
    """CPython's rule: a waiter gets the GIL from a thread that never sleeps after the switch interval, not before."""
    rows, control = ring(1 << 12), cell()
    probe = make_gil_probe(rows, control, 0, monotonic_ns, plain=False, period_ns=100_000)
    probe.start()
    wait_until(lambda: rows[0, 0] >= 1, 10, "the first look")
    seen, end = rows[0, 0], time.monotonic() + 20
    # Pure Python: gives the GIL up only when asked. Once it has, a busy machine may leave it without a core for some
    # milliseconds, in which the probe finds the GIL free: so not every wait is a long one.
    while rows[0, 0] < seen + 200 and time.monotonic() < end:
        pass
    probe.stop()
    assert (read_ring(rows).rows[seen:, 1] > 4_000_000).sum() >= 5


def test_a_probe_can_be_stopped_without_the_stop_word_and_before_it_started() -> None:
    for start in (True, False):
        probe = make_gil_probe(ring(), cell(), 0, monotonic_ns, plain=True, period_ns=100_000)
        if start:
            probe.start()
        probe.stop()
        assert not named("gil-probe")


@pytest.mark.parametrize("plain", [False, True])
def test_the_hiccup_monitor_counts_its_sleeps_and_keeps_the_shortest(plain: bool) -> None:
    rows, control = ring(), cell()
    loop = None if plain else compile_hiccups()
    monitor = HiccupMonitor(rows, control, 0, sorted(os.sched_getaffinity(0))[:1], monotonic_ns, loop, 500_000)
    assert monitor.exact is not plain
    monitor.start()
    wait_until(lambda: rows[0, SLEEPS] >= 20, 10, "twenty sleeps")
    control[0] = 1
    monitor.join()
    assert rows[0, PERIOD] == 500_000 <= rows[0, SHORTEST]
    found = read_ring(rows).rows
    assert (found[:, 1] > 100_000).all() and (found[:, 2] >= 0).all()


@pytest.mark.parametrize("plain", [False, True])
def test_a_hiccup_monitor_that_rests_sleeps_uncounted_and_takes_the_rest_for_no_hiccup(plain: bool) -> None:
    rows, control = ring(), cell()
    monitor = HiccupMonitor(rows, control, 0, (), monotonic_ns, None if plain else compile_hiccups(), 500_000)
    control[REST] = 1
    monitor.start()
    assert stands_still(rows[0], SLEEPS) and rows[0, SLEEPS] == 0
    control[REST] = 0
    wait_until(lambda: rows[0, SLEEPS] >= 5, 10, "sleeps after the rest")
    control[0] = 1
    monitor.join()
    assert rows[0, SHORTEST] < REST_NS


def test_a_collection_in_a_rest_is_not_written() -> None:
    rows, control = ring(), cell()
    probe = GcProbe(rows, control, monotonic_ns)
    probe.install()
    try:
        control[REST] = 1
        gc.collect()
        assert rows[0, 0] == 0
        control[REST] = 0
        gc.collect()
    finally:
        probe.remove()
    assert rows[0, 0] > 0


def test_every_collection_is_written_with_its_generation() -> None:
    rows = ring()
    probe = GcProbe(rows, cell(), FakeClock(1_000, tick=7))
    probe.install()
    try:
        gc.collect(1)
        gc.collect(2)
    finally:
        probe.remove()
    gc.collect()
    found = read_ring(rows).rows
    assert [row[1:3].tolist() for row in found if row[2] in (1, 2)][:2] == [[7, 1], [7, 2]]
    assert len(found) == rows[0, 0] and probe._note not in gc.callbacks


def test_run_queue_delay_of_a_thread_never_shrinks() -> None:
    fd = open_schedstat()
    assert fd >= 0
    try:
        first = run_delay(fd)
        assert 0 <= first <= run_delay(fd)
    finally:
        os.close(fd)
    assert run_delay(-1) == 0
