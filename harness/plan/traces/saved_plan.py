"""plan.npz of an earlier run as a trace: its offsets and lengths. (`--plan` runs the very same load again.)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.common.errors import ConfigError
from harness.common.plan_file import load_plan
from harness.plan.traces.rows import Format, Reading, TraceRow


def rows_of_plan(path: Path) -> Iterator[TraceRow]:
    """The rows of a plan file; texts are kept, token ids count only. Raises ConfigError."""
    plan = load_plan(path)
    if plan.gated:
        raise ConfigError(f"--trace {path}: its requests wait for others to end, so that it has no times to replay "
                          "(--plan runs it)")  # fmt: skip
    lengths = None if plan.prompt_starts is None else np.diff(plan.prompt_starts).tolist()
    outputs = np.maximum(plan.max_new_tokens, 0).tolist()
    for i, (offset, output) in enumerate(zip(plan.offsets_ns.tolist(), outputs, strict=True)):
        if lengths is None:
            yield TraceRow(offset, None, output, prompt=plan.payload(i).decode())
        else:
            yield TraceRow(offset, lengths[i], output)


def _read(record: Mapping[str, Any], reading: Reading) -> Iterator[TraceRow]:
    return rows_of_plan(record["path"])


SAVED_PLAN = Format("plan", "plan.npz", "npz", "", _read, lambda head: True, 0)
