"""`isorate doctor` on fake hosts: what is said of each setting, and that nothing that is missing makes it crash."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.common.errors import ConfigError
from harness.host.doctor import Finding, State
from harness.host.doctor_command import LOOKS, examine, render, run_doctor
from harness.host.reading import HostFiles

CPU = "/sys/devices/system/cpu"
TUNED = {
    "/proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-3\nCapEff:\t0000000000800000\n",
    "/proc/self/limits": "Limit  Soft Limit  Hard Limit  Units\nMax realtime priority     0                    0\n",
    "/proc/self/timerslack_ns": "50000\n",
    "/proc/self/cgroup": "0::/\n",
    "/proc/sys/kernel/sched_rt_runtime_us": "950000\n",
    "/proc/sys/kernel/sched_autogroup_enabled": "0\n",
    "/proc/meminfo": "MemTotal: 9 kB\nSwapTotal:       0 kB\n",
    "/proc/stat": "cpu  10 0 10 9980 0 0 0 1 0 0\ncpu0 1 1 1 1\n",
    "/proc/loadavg": "0.05 0.1 0.2 1/99 7\n",
    f"{CPU}/isolated": "2-3\n",
    f"{CPU}/nohz_full": "2-3\n",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "/sys/fs/cgroup/cpu.max": "max 100000\n",
    "/dev/cpu_dma_latency": "",
    "/dev/shm/file": "",
    **{f"{CPU}/cpu{cpu}/topology/thread_siblings_list": f"{cpu}\n" for cpu in range(4)},
    **{f"{CPU}/cpu{cpu}/cpufreq/scaling_governor": "performance\n" for cpu in range(4)},
}


def host(folder: Path, **changes: str) -> HostFiles:
    """A tuned host below `folder`, with the files that `changes` names by the last word of their path replaced."""
    for name, text in TUNED.items():
        path = folder / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(changes.get(path.name, text))
    return HostFiles(folder, {"TMPDIR": "/tmp"})


def findings(files: HostFiles) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(files)}


def test_a_tuned_host_has_nothing_to_improve_but_room(tmp_path: Path) -> None:
    found = findings(host(tmp_path))
    assert len(found) == len(LOOKS) == 18
    del found["memory files"], found["libraries"]  # of the machine that the test runs on
    assert {name: finding.state for name, finding in found.items() if finding.state is not State.GOOD} == {}


@pytest.mark.parametrize(
    ("file", "text", "name", "says", "advice"),
    [
        ("status", "Cpus_allowed_list: 0-1\nCapEff: 0\n", "cores", "2 may be used: 0-1", "with 4"),
        ("status", "Cpus_allowed_list: 1\n", "cores", "1 may be used", "INVALID"),
        ("thread_siblings_list", "0,2", "SMT", "0,2", "--engine-cores"),
        ("scaling_governor", "powersave", "governor", "powersave", "performance"),
        ("isolated", "", "isolation", "isolcpus none, nohz_full 2-3", "isolcpus=N"),
        ("timerslack_ns", "50000000", "timer slack", "50000 us", "prctl"),
        ("status", "Cpus_allowed_list: 0-3\nCapEff: 0000000000000000", "real time", "not held", "ulimit -r"),
        ("sched_rt_runtime_us", "-1", "real time", "-1", "950000"),
        ("sched_autogroup_enabled", "1", "autogroup", "on", "chrt"),
        ("current_clocksource", "hpet", "clocksource", "hpet", "tsc"),
        ("enabled", "[always] madvise never", "huge pages", "always", "madvise"),
        ("meminfo", "SwapTotal: 2097152 kB", "swap", "2,048 MiB", "swapoff"),
        ("stat", "cpu 10 0 10 80 0 0 0 100 0 0", "steal", "50.00 %", "bare metal"),
        ("loadavg", "3.50 1 1 1/9 9", "load", "3.5 processes", "top"),
        ("cpu.max", "150000 100000", "CPU limit", "1.5 CPUs", "cpuset"),
    ],
)
def test_what_could_be_better_is_said_with_the_way_to_it(
    tmp_path: Path, file: str, text: str, name: str, says: str, advice: str
) -> None:
    finding = findings(host(tmp_path, **{file: text}))[name]
    assert finding.state is State.BETTER
    assert says in finding.says and advice in finding.advice


def test_a_real_time_limit_without_the_capability_is_enough(tmp_path: Path) -> None:
    files = host(tmp_path, status="Cpus_allowed_list: 0-3\nCapEff: 0", limits="Max realtime priority   20   20")
    assert findings(files)["real time"].state is State.GOOD


def test_a_long_temporary_folder_is_named(tmp_path: Path) -> None:
    files = HostFiles(host(tmp_path).root, {"TMPDIR": "/" + "x" * 90})
    assert "TMPDIR" in findings(files)["socket path"].advice


def test_threads_set_by_the_environment_are_named(tmp_path: Path) -> None:
    files = HostFiles(host(tmp_path).root, {"OMP_NUM_THREADS": "1"})
    assert "--torch-threads" in findings(files)["torch threads"].advice


def test_a_host_without_any_file_is_not_known_and_no_crash(tmp_path: Path) -> None:
    found = findings(HostFiles(tmp_path, {}))
    known = {name for name, finding in found.items() if finding.state is not State.UNKNOWN}
    assert known == {"socket path", "libraries", "torch threads"}


@pytest.mark.parametrize("junk", ["", "\0\xff\n", "cpu", "cpu x y", "-5", "9" * 400, "0::\n:::", "1:cpu:/..\n"])
def test_files_that_hold_something_else_are_no_crash(tmp_path: Path, junk: str) -> None:
    files = host(tmp_path, **{Path(name).name: junk for name in TUNED})
    assert len(findings(files)) == 18
    assert render(examine(files)).isprintable() or "\n" in render(examine(files))


def test_folders_in_place_of_files_are_no_crash(tmp_path: Path) -> None:
    for name in TUNED:
        (tmp_path / name.lstrip("/")).mkdir(parents=True)
    assert len(examine(HostFiles(tmp_path, {}))) == 18


def test_the_text_has_a_line_for_each_and_the_advice_below(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_doctor("isorate", [], host(tmp_path, current_clocksource="hpet")) == 0
    out = capsys.readouterr().out
    assert all(finding.name in out for finding in examine(HostFiles(tmp_path, {})))
    assert "-> clocksource   hpet\n                 reading it is a system call" in out
    assert all(len(line) <= 100 for line in out.splitlines())


def test_the_json_has_every_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_doctor("isorate", ["--json"], host(tmp_path, isolated="")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "isorate.doctor/1" and len(found["findings"]) == 18
    states = {finding["name"]: finding["state"] for finding in found["findings"]}
    assert states["isolation"] == "could be better" and states["clocksource"] == "good"


def test_a_flag_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="--jsn"):
        run_doctor("isorate", ["--jsn"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_idle_states_need_a_device_that_may_be_written(tmp_path: Path) -> None:
    files = host(tmp_path)
    files.path("/dev/cpu_dma_latency").chmod(0o400)
    assert findings(files)["idle states"].state is State.BETTER
