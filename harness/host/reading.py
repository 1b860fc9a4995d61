"""Files of /proc, /sys and /dev below a root that tests replace. What is missing or unreadable reads as None."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from harness.common.errors import ConfigError
from harness.host.cores import parse_cpu_list


def integer(text: str) -> int | None:
    """The text as an integer of at most 64 bits; None for anything else."""
    try:
        value = int(text)
    except ValueError:
        return None
    return value if -(1 << 63) <= value < 1 << 63 else None


@dataclass(frozen=True, slots=True)
class HostFiles:
    """A host as its files describe it. root: where /proc, /sys and /dev lie; environment: of this process."""

    root: Path = Path("/")
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def path(self, name: str) -> Path:
        """`name` is absolute, such as /proc/stat."""
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str | None:
        """The file without surrounding space; None where it cannot be read or is empty."""
        try:
            return self.path(name).read_text("utf-8", "replace").strip() or None
        except (OSError, ValueError):
            return None

    def number(self, name: str) -> int | None:
        """The file as an integer; None for anything else."""
        return integer(self.text(name) or "")

    def field(self, name: str, key: str) -> str | None:
        """What follows `key` on its line of a file like /proc/self/status; None where there is no such line."""
        for line in (self.text(name) or "").splitlines():
            if line.startswith(key):
                return line[len(key) :].strip(" \t:") or None
        return None

    def cpus(self, name: str) -> tuple[int, ...] | None:
        """The file as a list of CPUs; () where it is empty, None where it is not there or no such list."""
        try:
            text = self.path(name).read_text("utf-8", "replace").strip()
            return parse_cpu_list(text) if text and text != "(null)" else ()
        except (OSError, ValueError, ConfigError):
            return None

    def allowed(self) -> tuple[int, ...] | None:
        """The CPUs that this process may run on."""
        try:
            return parse_cpu_list(self.field("/proc/self/status", "Cpus_allowed_list") or "")
        except ConfigError:
            return None
