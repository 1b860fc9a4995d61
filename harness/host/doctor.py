"""What `isorate doctor` looks at: each a function from the host's files to one finding. It reads, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from harness.host.cores import format_cpu_list
from harness.host.reading import HostFiles, integer


class State(Enum):
    """GOOD: nothing to do. BETTER: measurements would be steadier otherwise. UNKNOWN: the host does not say."""

    GOOD = "good"
    BETTER = "could be better"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor. says: what is so. advice: what would make it better, and how; empty where nothing is."""

    name: str
    state: State
    says: str
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "state": self.state.value, "says": self.says, "advice": self.advice or None}


Look = Callable[[HostFiles], Finding]


def good(name: str, says: str) -> Finding:
    return Finding(name, State.GOOD, says)


def better(name: str, says: str, advice: str) -> Finding:
    return Finding(name, State.BETTER, says, advice)


def unknown(name: str, what: str) -> Finding:
    return Finding(name, State.UNKNOWN, f"{what} cannot be read")


_CPU = "/sys/devices/system/cpu"
_CAP_SYS_NICE = 23
_ENOUGH_CORES = 4
_DEFAULT_SLACK_NS = 50_000
_STEAL_SHARE = 0.001  # V11 of the measurement notes


def cores(host: HostFiles) -> Finding:
    cpus = host.allowed()
    if not cpus:
        return unknown("cores", "/proc/self/status")
    says = f"{len(cpus)} may be used: {format_cpu_list(cpus)}"
    if len(cpus) >= _ENOUGH_CORES:
        return good("cores", says)
    if len(cpus) == 1:
        advice = "engine and submitter share it, and every verdict is INVALID: give at least 2, better 4"
    else:
        advice = "with 4 engine, submitter, its I/O thread and the harness have each their own; widen taskset or cpuset"
    return better("cores", says, advice)


def siblings(host: HostFiles) -> Finding:
    cpus = host.allowed() or ()
    groups = {cpu: host.cpus(f"{_CPU}/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus}
    known = {cpu: group for cpu, group in groups.items() if group}
    if not known:
        return unknown("SMT", f"{_CPU}/cpu*/topology/thread_siblings_list")
    shared = sorted({format_cpu_list(group) for group in known.values() if len(group) > 1})
    if not shared:
        return good("SMT", "no two cores share a physical one")
    return better(
        "SMT", f"cores that share a physical one: {' '.join(shared)}",
        "give engine and submitter cores of different pairs (--engine-cores, --submitter-cores), or turn SMT off: "
        f"echo off > {_CPU}/smt/control",
    )  # fmt: skip


def governor(host: HostFiles) -> Finding:
    found = {host.text(f"{_CPU}/cpu{cpu}/cpufreq/scaling_governor") for cpu in host.allowed() or ()} - {None}
    if not found:
        return unknown("governor", f"{_CPU}/cpu*/cpufreq (a virtual machine has none)")
    says = ", ".join(sorted(word for word in found if word))
    if found == {"performance"}:
        return good("governor", says)
    return better("governor", says, "the clock rate follows the load: cpupower frequency-set -g performance")


def isolation(host: HostFiles) -> Finding:
    isolated, ticks = host.cpus(f"{_CPU}/isolated"), host.cpus(f"{_CPU}/nohz_full")
    if isolated is None and ticks is None:
        return unknown("isolation", f"{_CPU}/isolated")
    says = f"isolcpus {format_cpu_list(isolated or ()) or 'none'}, nohz_full {format_cpu_list(ticks or ()) or 'none'}"
    if isolated:
        return good("isolation", says)
    return better(
        "isolation", says,
        "other processes may run on the submitter's core: boot with isolcpus=N nohz_full=N rcu_nocbs=N, then "
        "taskset -c ALL ./run.sh --submitter-cores N",
    )  # fmt: skip


def timer_slack(host: HostFiles) -> Finding:
    slack = host.number("/proc/self/timerslack_ns")
    if slack is None:
        return unknown("timer slack", "/proc/self/timerslack_ns")
    says = f"{slack / 1000:g} us inherited; the measured processes set theirs to 1 ns"
    if slack <= _DEFAULT_SLACK_NS:
        return good("timer slack", says)
    return better("timer slack", says, "more than the kernel's 50 us: whoever started this shell set it with prctl")


def real_time(host: HostFiles) -> Finding:
    limit = host.field("/proc/self/limits", "Max realtime priority")
    capabilities = host.field("/proc/self/status", "CapEff")
    if limit is None and capabilities is None:
        return unknown("real time", "/proc/self/limits")
    soft = (limit or "0").partition(" ")[0]
    most = 99 if soft == "unlimited" else integer(soft) or 0
    capable = bool(_hex(capabilities) >> _CAP_SYS_NICE & 1)
    runtime = host.number("/proc/sys/kernel/sched_rt_runtime_us")
    says = f"rtprio limit {most}, CAP_SYS_NICE {'held' if capable else 'not held'}, sched_rt_runtime_us {runtime}"
    if not (capable or most > 0):
        return better("real time", says, "no thread may run under SCHED_FIFO: ulimit -r 20, or setcap cap_sys_nice")
    if runtime == -1:
        return better(
            "real time", says,
            "a spinning FIFO thread would keep all else off its core: sysctl kernel.sched_rt_runtime_us=950000",
        )  # fmt: skip
    return good("real time", says)


def _hex(text: str | None) -> int:
    try:
        return int(text or "0", 16)
    except ValueError:
        return 0


def autogroup(host: HostFiles) -> Finding:
    name = "/proc/sys/kernel/sched_autogroup_enabled"
    found = host.number(name)
    if found is None:
        return unknown("autogroup", name)
    if found == 0:
        return good("autogroup", "off: nice counts between all processes")
    return better(
        "autogroup", "on: each terminal session gets the same share, whatever the nice of its processes",
        f"other jobs that are niced disturb all the same: echo 0 > {name}, or start isorate with chrt -r 5",
    )  # fmt: skip


def clocksource(host: HostFiles) -> Finding:
    name = "/sys/devices/system/clocksource/clocksource0"
    found = host.text(f"{name}/current_clocksource")
    if found is None:
        return unknown("clocksource", name)
    if found in ("tsc", "kvm-clock", "arch_sys_counter"):
        return good("clocksource", found)
    return better(
        "clocksource", found, f"reading it is a system call or worse: echo tsc > {name}/current_clocksource, if "
        f"{name}/available_clocksource has it"
    )  # fmt: skip


def huge_pages(host: HostFiles) -> Finding:
    name = "/sys/kernel/mm/transparent_hugepage/enabled"
    found = host.text(name)
    if found is None:
        return unknown("huge pages", name)
    chosen = found.partition("[")[2].partition("]")[0] or found
    if chosen != "always":
        return good("huge pages", f"transparent ones: {chosen}")
    return better("huge pages", "transparent ones: always", f"khugepaged may stall a process: echo madvise > {name}")


def swap(host: HostFiles) -> Finding:
    size = integer((host.field("/proc/meminfo", "SwapTotal") or "").partition(" ")[0])
    if size is None or size < 0:
        return unknown("swap", "/proc/meminfo")
    if size == 0:
        return good("swap", "none")
    says = f"{size // 1024:,} MiB"
    return better("swap", says, "a page that was swapped out stalls its thread: swapoff -a, or --mlock")


def steal(host: HostFiles) -> Finding:
    fields = [integer(word) for word in (host.field("/proc/stat", "cpu ") or "").split()[:8]]
    ticks = [max(value, 0) for value in fields if value is not None]
    if len(ticks) < 8:
        return unknown("steal", "/proc/stat")
    share = ticks[7] / (sum(ticks) or 1)
    says = f"{100 * share:.2f} % of the CPUs' time since boot went to other virtual machines"
    if share <= _STEAL_SHARE:
        return good("steal", says)
    return better("steal", says, "the host is shared: dedicated cores, or bare metal")


def load_of_others(host: HostFiles) -> Finding:
    words = (host.text("/proc/loadavg") or "").split()
    try:
        load = float(words[0])
    except (IndexError, ValueError):
        return unknown("load", "/proc/loadavg")
    says = f"{load:g} processes wanted a core in the last minute"
    if load < 0.3:
        return good("load", says)
    return better("load", says, "end or move what else runs here (top)")
