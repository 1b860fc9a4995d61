"""What nvidia-smi says of the GPUs: names, driver, clocks and limits."""

from __future__ import annotations

import subprocess

_FIELDS = ("name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "persistence_mode")
_PATIENCE_S = 10.0


def gpu_facts() -> list[dict[str, str]] | str:
    """One entry a GPU, text as nvidia-smi has it; "unknown" where there is no nvidia-smi that answers."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    return [dict(zip(_FIELDS, row, strict=False)) for row in rows]
