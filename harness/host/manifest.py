"""What the result says of the host and of the versions that ran. No environment values: they may hold secrets."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from harness.host.cgroup import cpu_groups, cpu_limit
from harness.host.cores import physical_siblings
from harness.host.gpu import gpu_facts

_IDLE = Path("/sys/devices/system/cpu/cpu0/cpuidle")
_LIBRARIES = ("isorate", "numpy", "numba", "pyzmq", "msgpack", "torch", "transformers", "tokenizers", "scipy")


def host_manifest(*, gpus: bool = False) -> dict[str, Any]:
    """Kernel, CPU, clocksource, governor, memory, load, versions, and GPUs if asked for: JSON-able."""
    cpus = sorted(os.sched_getaffinity(0))
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpus_online": os.cpu_count(),
        "cpus_allowed": cpus,
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "clocksource": _read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "governors": {cpu: _read(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor") for cpu in cpus},
        "idle_states": {state.name: _read(str(state / "name")) for state in sorted(_IDLE.glob("state*"))},
        "smt_siblings": {cpu: sorted(physical_siblings(cpu)) for cpu in cpus},
        "cgroup_cpu_limit": cpu_limit(cpu_groups()),
        "rt_runtime_us": _read("/proc/sys/kernel/sched_rt_runtime_us"),
        "hypervisor": "hypervisor" in _read("/proc/cpuinfo"),
        "python": sys.version.split()[0],
        "gil": bool(getattr(sys, "_is_gil_enabled", lambda: True)()),
        **({"gpus": gpu_facts()} if gpus else {}),
        "versions": {name: version for name in _LIBRARIES if (version := _version(name))},
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _cpu_model() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
