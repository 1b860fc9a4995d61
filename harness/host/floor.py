"""The floor of this host: what a request takes through the whole path without any engine, as `isorate selftest` found.

Kept in the user's cache folder (docs/selftest.md has the format); a session takes it up where the host is the same.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.common.errors import RunError
from harness.host.reading import HostFiles
from harness.report.strict_json import strict_dumps

SCHEMA = "isorate.floor/1"
_MAX_NS = 60 * 10**9
_MAX_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class HostPrint:
    """What makes a host the same one: its CPU's model, how many cores this process may use, its kernel's release."""

    cpu: str
    cores: int
    kernel: str


@dataclass(frozen=True, slots=True)
class Floor:
    """TTFT of the null engine without any service, ns at p50 and p99. when: UTC, ISO 8601. version: of isorate."""

    host: HostPrint
    p50_ns: int
    p99_ns: int
    when: str
    version: str

    def to_session(self) -> dict[str, Any]:
        """`SessionInfo.floor`."""
        return {"ttft_p50_ns": self.p50_ns, "ttft_p99_ns": self.p99_ns, "when": self.when, "version": self.version}


def host_print(files: HostFiles | None = None) -> HostPrint:
    """Of this host. Ask before the affinity of this process is narrowed to its own cores."""
    model = (files or HostFiles()).field("/proc/cpuinfo", "model name")
    return HostPrint(model or platform.processor() or "unknown", len(os.sched_getaffinity(0)), platform.release())


def floor_path(environment: Mapping[str, str] | None = None) -> Path:
    """isorate/floor.json under XDG_CACHE_HOME, which defaults to ~/.cache."""
    home = (os.environ if environment is None else environment).get("XDG_CACHE_HOME", "")
    return Path(home if os.path.isabs(home) else os.path.expanduser("~/.cache")) / "isorate" / "floor.json"


def read_floor(path: Path, host: HostPrint) -> Floor | None:
    """The floor that was stored for `host`; None where there is none, of another host, or a file that is no floor."""
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read(_MAX_BYTES))
        found = data["host"]
        stored = HostPrint(str(found["cpu"]), int(found["cores"]), str(found["kernel"]))
        p50, p99 = data["floor_p50_ns"], data["floor_p99_ns"]
        if data["schema"] != SCHEMA or stored != host or type(p50) is not int or type(p99) is not int:
            return None
        return Floor(stored, p50, p99, str(data["when"]), str(data["version"])) if 0 < p50 <= p99 <= _MAX_NS else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def write_floor(path: Path, floor: Floor) -> None:
    """Store it in one step. Raises RunError naming the file."""
    text = strict_dumps({
        "schema": SCHEMA,
        "host": {"cpu": floor.host.cpu, "cores": floor.host.cores, "kernel": floor.host.kernel},
        "floor_p50_ns": floor.p50_ns,
        "floor_p99_ns": floor.p99_ns,
        "when": floor.when,
        "version": floor.version,
    })  # fmt: skip
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise RunError(f"cannot keep the floor in {path}: {error.strerror or error}") from error


def session_floor() -> dict[str, Any]:
    """What a session that begins now knows of the floor; empty where nothing is stored for this host."""
    floor = read_floor(floor_path(), host_print())
    return {} if floor is None else floor.to_session()
