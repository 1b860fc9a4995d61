"""What the supervisor knows of a session beside the stamps: stored as session.json, read back by `recover`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from harness.common.errors import RunError
from harness.report.strict_json import strict_dumps

SESSION_FILE = "session.json"


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A JSON-able description of a session; everything but `run_id` may be missing in a session that died early.

    command: argv as a list. placement: {"engine": [cpu, ...], "submitter": [...], "harness": [...], "asked": bool} as
    read back from /proc. pacer: {"name", "wait", "margin_ns", "calibration", ...}. wire: "compiled" | "python" | "none"
    (one process, `--topology inproc`).
    isolation: by process, [held, line] of each --rt, --mlock and --hold-cpu-latency that was asked for.
    engine: the backend's own description. plan: {"sha256", "num_requests", "nominal_rate" (None for a burst),
    "schedule" ("absolute" | "relative" | "burst"), "prompt_tokens"}. end_detail: one line, e.g. "exit code -9".
    stderr_tails: last lines of a child's stderr by process name. floor: of this host's null engine, as `selftest` found
    it: {"ttft_p50_ns", "ttft_p99_ns", "when", "version"}, empty where it has not.
    limits: `harness.checks.limits.Limits.to_json`.
    """

    run_id: str
    command: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    placement: Mapping[str, Any] = field(default_factory=dict)
    pacer: Mapping[str, Any] = field(default_factory=dict)
    wire: str = "compiled"
    isolation: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    end_detail: str = ""
    stderr_tails: Mapping[str, str] = field(default_factory=dict)
    floor: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)

    @property
    def command_line(self) -> str:
        """The command as one would type it."""
        return shlex.join(self.command)

    @property
    def schedule(self) -> str:
        return str(self.plan.get("schedule", "absolute"))

    @property
    def wire_measured(self) -> bool:
        return self.wire == "compiled"

    @property
    def topology(self) -> str:
        return str(self.config.get("topology", "separate"))

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        values: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SessionInfo:
        """Read what `to_json` gave; unknown fields are left out. Raises KeyError or TypeError for something else."""
        known = {item.name: data[item.name] for item in fields(cls) if item.name in data}
        return cls(**{**known, "run_id": str(data["run_id"]), "command": tuple(data.get("command", ()))})

    def save(self, path: Path) -> None:
        """Write session.json. Raises OSError."""
        path.write_text(strict_dumps(self.to_json()), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> SessionInfo:
        """Read session.json. Raises RunError naming the file and what is wrong with it."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls.from_json(data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"cannot read the session's description {path}: {error}") from error
