"""What the parent reads of the host, against files as the kernel writes them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from harness.common.collector import Collector, CollectorShape
from harness.common.isolation import RealTime, limit_spin
from harness.common.probes.ring import read_ring
from harness.common.processes import name_thread
from harness.host.cgroup import Throttling, cpu_groups, cpu_limit, throttling
from harness.host.cpu_latency import CpuLatency
from harness.host.cpu_times import CpuTimes, read_cpu_times
from harness.host.sampler import HostSampler, name_cells, name_of
from harness.host.threads import ProcessThreads
from helpers import wait_until

# proc_stat(5): user nice system idle iowait irq softirq steal guest guest_nice, in ticks
STAT = """cpu  100 0 100 1000 0 0 0 9 0 0
cpu0 10 2 30 400 5 6 7 8 0 0
cpu1 1 0 0 0 0 0 0 0 0 0
cpu10 20 0 0 0 0 0 0 0 0 0
intr 12345 0
ctxt 99
"""


def test_times_of_the_asked_cpus_only(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(STAT)
    tick = 10**9 // os.sysconf("SC_CLK_TCK")
    assert read_cpu_times({0, 10, 77}, tmp_path / "stat") == [
        CpuTimes(0, 42 * tick, 405 * tick, 13 * tick, 8 * tick),
        CpuTimes(10, 20 * tick, 0, 0, 0),
    ]
    assert read_cpu_times({0}, tmp_path / "no such file") == []


def test_the_tightest_limit_of_nested_groups_counts_v2(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "cgroup").write_text("0::/a/b\n")
    (deep / "cpu.max").write_text("max 100000\n")
    (tmp_path / "a" / "cpu.max").write_text("150000 100000\n")
    (deep / "cpu.stat").write_text("usage_usec 5\nnr_periods 9\nnr_throttled 3\nthrottled_usec 250\n")
    groups = cpu_groups(tmp_path / "cgroup", tmp_path)
    assert groups == [deep, tmp_path / "a", tmp_path]
    assert cpu_limit(groups) == 1.5
    assert throttling(groups) == Throttling(3, 250_000)


def test_limits_and_throttling_of_v1(tmp_path: Path) -> None:
    group = tmp_path / "cpu,cpuacct" / "job"
    group.mkdir(parents=True)
    (tmp_path / "cgroup").write_text("4:memory:/x\n1:cpu,cpuacct:/job\n")
    (group / "cpu.cfs_quota_us").write_text("50000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    (group / "cpu.stat").write_text("nr_periods 9\nnr_throttled 4\nthrottled_time 77\n")
    groups = cpu_groups(tmp_path / "cgroup", tmp_path)
    assert cpu_limit(groups) == 0.5 and throttling(groups) == Throttling(4, 77)
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    assert cpu_limit(groups) is None


def test_a_host_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert cpu_groups(tmp_path / "none", tmp_path) == []
    assert cpu_limit([]) is None and throttling([]) == Throttling(0, 0)


def test_threads_are_found_by_their_kernel_names() -> None:
    ready, done = threading.Event(), threading.Event()

    def body() -> None:
        name_thread("a-longer-name-than-15")
        ready.set()
        done.wait(30)

    thread = threading.Thread(target=body)
    thread.start()
    ready.wait(30)
    process = ProcessThreads(os.getpid())
    try:
        found = {times.tid: times for times in process.scan()}
        mine = found[thread.native_id or 0]
        assert mine.name == b"a-longer-name-t" and mine.cpu_ns > 0 and mine.run_delay_ns >= 0
        assert mine.voluntary >= 0 and mine.involuntary >= 0
        assert all(times.tid != mine.tid for times in process.sample())  # it slept since
        assert os.getpid() in {times.tid for times in process.sample() + process.scan()}
    finally:
        done.set()
        thread.join()
        process.close()
    assert process.sample() == []


def test_a_process_that_is_gone_has_no_threads() -> None:
    process = ProcessThreads(2**22 + 1)
    assert process.scan() == [] and process.sample() == []


@pytest.mark.parametrize("name", [b"", b"x", b"ZMQbg/IO/0", b"\xff" * 15, b"0123456789abcde"])
def test_a_thread_s_name_survives_two_cells(name: bytes) -> None:
    assert name_of(*name_cells(name)) == name.decode("utf-8", "backslashreplace")


def test_the_sampler_marks_all_threads_and_cpus(tmp_path: Path) -> None:
    shape = CollectorShape(1, 1, 1, gil=1, threads=64, cpus=16)
    collector = Collector.create(tmp_path / "c.bin", shape, {}, (os.getpid(), 1))
    cpu = min(os.sched_getaffinity(0))
    sampler = HostSampler(collector, {0: os.getpid(), 2: 2**22 + 1}, frozenset({cpu}), lambda: 5)
    sampler.mark()
    sampler.close()
    threads, cpus = read_ring(collector.rings["threads"]).rows, read_ring(collector.rings["cpus"]).rows
    assert os.getpid() in threads[:, 1] and (threads[:, 4] >= 0).all()
    assert cpus[:, 1].tolist() == [cpu, -1] and np.all(cpus[:, 0] == 5)


def test_a_sampler_whose_probes_rest_reads_at_the_ends_of_a_run_alone(tmp_path: Path) -> None:
    shape = CollectorShape(1, 1, 1, threads=64, cpus=8)
    collector = Collector.create(tmp_path / "c", shape, {}, (os.getpid(), 1))
    sampler = HostSampler(collector, {0: os.getpid()}, frozenset(), lambda: 5)
    sampler.mark()
    marked = int(collector.rings["threads"][0, 0])
    collector.set_word("probes_rest", 1)
    sampler.tick(10**12)
    assert collector.rings["threads"][0, 0] == marked > 0
    collector.set_word("probes_rest", 0)
    ticks = iter(range(10**12, 2 * 10**12, 10**9))

    def sampled() -> bool:
        sampler.tick(next(ticks))
        return bool(collector.rings["threads"][0, 0] > marked)

    wait_until(sampled, what="a sample of this thread, which runs")
    sampler.close()
    collector.close()


def test_idle_states_are_held_while_the_file_is_open_and_a_refusal_is_one_line(tmp_path: Path) -> None:
    device = tmp_path / "cpu_dma_latency"
    device.touch()
    latency = CpuLatency(device)
    assert latency.held.held and device.read_bytes() == bytes(4)
    latency.release()
    latency.release()
    refused = CpuLatency(tmp_path / "none")
    assert not refused.held.held and "--hold-cpu-latency is not used" in refused.held.line
    assert "\n" not in refused.held.line


@pytest.mark.parametrize(
    ("runtime", "words"), [("-1", "does not throttle"), ("950000", "CAP_SYS_NICE"), ("x", "cannot be read")]
)
def test_real_time_is_left_alone_where_it_is_refused_or_could_starve_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, words: str
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    (tmp_path / "runtime").write_text(runtime)
    real_time = RealTime(tmp_path / "runtime")
    assert not real_time.held.held and words in real_time.held.line
    real_time.begin()  # both do nothing, and so do not raise
    real_time.end()


def test_a_real_time_pacer_sleeps_three_quarters_of_the_mean_gap_at_least() -> None:
    assert limit_spin(200_000, 100.0) == 200_000
    assert limit_spin(200_000, 10_000.0) == 25_000
    assert limit_spin(200_000, 0.0) == 200_000
