"""The doctor's looks at limits of this process, room, and what is installed; beside those at the host in `doctor`."""

from __future__ import annotations

import os
import tempfile
from importlib import metadata
from pathlib import Path

from harness.host.cgroup import cpu_groups, cpu_limit
from harness.host.doctor import Finding, better, good, unknown
from harness.host.reading import HostFiles

_ENOUGH_ROOM = 1 << 30  # a million requests need about a quarter of it
_IPC_PATH_BYTES = 107  # sun_path of sockaddr_un, less its end
_LONGEST_SOCKET = "isorate-XXXXXXXX/results.sock"


def idle_states(host: HostFiles) -> Finding:
    device = host.path("/dev/cpu_dma_latency")
    if not device.exists():
        return unknown("idle states", "/dev/cpu_dma_latency")
    if os.access(device, os.W_OK):
        return good("idle states", "/dev/cpu_dma_latency may be written: --hold-cpu-latency works")
    return better(
        "idle states", "/dev/cpu_dma_latency may not be written",
        "a core that wakes from a deep sleep is late: run as root, or a udev rule that gives the device to your group",
    )  # fmt: skip


def cpu_quota(host: HostFiles) -> Finding:
    if host.text("/proc/self/cgroup") is None:
        return unknown("CPU limit", "/proc/self/cgroup")
    try:
        limit = cpu_limit(cpu_groups(host.path("/proc/self/cgroup"), host.path("/sys/fs/cgroup")))
    except ValueError:
        return unknown("CPU limit", "/proc/self/cgroup")
    if limit is None:
        return good("CPU limit", "no control group limits the CPU time")
    return better(
        "CPU limit", f"the control group allows {limit:g} CPUs",
        "a process over its quota stands still for tens of ms: give whole cores (docker --cpuset-cpus, not --cpus)",
    )  # fmt: skip


def collector_room(host: HostFiles) -> Finding:
    folder = host.path("/dev/shm")
    try:
        room = os.statvfs(folder)
    except OSError:
        return unknown("memory files", "/dev/shm")
    free = room.f_bavail * room.f_frsize
    says = f"/dev/shm has {free / (1 << 20):,.0f} MiB free for the collector"
    if not os.access(folder, os.W_OK):
        return better("memory files", "/dev/shm may not be written", "--collector-dir DIR, best on a tmpfs")
    if free >= _ENOUGH_ROOM:
        return good("memory files", says)
    return better("memory files", says, "a million requests need 1 GiB: mount -o remount,size=2G /dev/shm, or docker "
                  "--shm-size")  # fmt: skip


def socket_path(host: HostFiles) -> Finding:
    base = host.environment.get("TMPDIR") or tempfile.gettempdir()
    length = len(os.fsencode(Path(base) / _LONGEST_SOCKET))
    says = f"{length} of {_IPC_PATH_BYTES} bytes below {base}"
    if length <= _IPC_PATH_BYTES:
        return good("socket path", says)
    return better("socket path", says, "no run can start: set TMPDIR to a shorter folder")


def libraries(host: HostFiles) -> Finding:
    versions = {name: _version(name) for name in ("pyzmq", "numba", "torch")}
    says = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    missing = [name for name, version in versions.items() if not version]
    if not missing:
        return good("libraries", says)
    why = {
        "pyzmq": "nothing runs without it",
        "numba": "stamps and pacer then need the GIL, and ingress wait is not measured",
        "torch": "only the null engine and engines of your own run",
    }
    return better("libraries", says, "; ".join(f"{name}: {why[name]}" for name in missing) + "; pip install them")


def torch_threads(host: HostFiles) -> Finding:
    set_to = host.environment.get("OMP_NUM_THREADS")
    if set_to is None:
        return good("torch threads", "as many as the engine has cores; --torch-threads N decides")
    return better(
        "torch threads", f"OMP_NUM_THREADS={set_to} is set",
        "libraries follow it, the engine's torch does not: unset it, and use --torch-threads",
    )  # fmt: skip


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
