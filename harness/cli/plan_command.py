"""`isorate plan`: build a load and describe it, without running anything; `--out` keeps it as a plan file."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.common.collector import collector_bytes
from harness.common.errors import ConfigError, RunError
from harness.common.plan_file import LoadPlan
from harness.common.protocol import request_overhead_bytes
from harness.config.run_config import RunConfig
from harness.measures.arrival_check import WINDOWS_NS, dispersion
from harness.plan.build import describe
from harness.plan.complete import complete, texts_of
from harness.plan.drafting import make_draft
from harness.plan.model_helper import Helper, HelperTokenizer, run_helper
from harness.plan.seeds import Dimension, seed_of
from harness.plan.traces.timing import timing_of
from harness.session.child_specs import sampling_of
from harness.session.layout import collector_shape, lay_out

FIRST_ROWS = 5
#: The harness and the submitter hold the plan each.
PLAN_COPIES = 2
PERCENTILES = (50, 90, 99)


def plan_load(config: RunConfig, as_json: bool, helper: Helper = run_helper) -> int:
    """Build, describe and (with `config.out`) save the load. Raises ConfigError before anything is written."""
    if config.out is not None and config.out.exists():
        raise ConfigError(f"--out {config.out}: there is such a file already")
    link = HelperTokenizer(config.engine, config.model, helper)
    made = complete(make_draft(config), config.pretok, seed_of(config, Dimension.PROMPTS), link)
    plan = made.plan
    lengths = None if plan.prompt_starts is None else np.diff(plan.prompt_starts)
    if lengths is None:
        lengths = np.array([len(ids) for ids in link.tokenize(texts_of(plan))], dtype=np.int64)
    described = {**describe(plan, config), **made.notes, **_describe(plan, lengths, config)}
    if config.out is not None:
        _save(plan, config.out)
        described["out"] = str(config.out)
    if as_json:
        print(json.dumps(described, allow_nan=False, ensure_ascii=True))
    else:
        from harness.report.plan_lines import print_plan

        print_plan(described, made.lines)
    return 0


def _describe(plan: LoadPlan, lengths: npt.NDArray[np.int64], config: RunConfig) -> dict[str, Any]:
    """What is said of every plan, whatever made it; times in the unit of the name, sizes in bytes."""
    overhead = request_overhead_bytes(sampling_of(config))
    payload = plan.prompt_starts if plan.prompt_starts is not None else plan.text_starts
    assert payload is not None
    frames = int(payload[-1]) * (4 if plan.pretokenized else 1) + overhead * plan.num_requests
    arrays = sum(getattr(plan, field.name).nbytes for field in fields(plan) if getattr(plan, field.name) is not None)
    spans = lay_out(plan, config.warmup_runs, config.warmup_requests, config.repeat_runs)
    collector = collector_bytes(collector_shape(plan, spans))
    return {
        "payload": "token ids" if plan.pretokenized else "texts",
        "arrivals": {
            **timing_of(plan.offsets_ns).to_json(),
            "dispersion": {name: dispersion(plan.offsets_ns, window) for name, window in WINDOWS_NS.items()},
        },
        "prompt_tokens": int(lengths.sum()),
        "prompt_lengths": _spread(lengths),
        "output_lengths": _spread(np.maximum(plan.max_new_tokens, 0).astype(np.int64)),
        "largest_frame_bytes": plan.largest_payload_bytes() + overhead,
        "memory_bytes": {"plan": PLAN_COPIES * arrays, "frames": frames, "collector": collector,
                         "total": PLAN_COPIES * arrays + frames + collector},
        "first_rows": [_row(plan, lengths, i) for i in range(min(FIRST_ROWS, plan.num_requests))],
    }  # fmt: skip


def _row(plan: LoadPlan, lengths: npt.NDArray[np.int64], i: int) -> dict[str, Any]:
    """Request i; in a gated plan with the request whose end it waits for (None: none) and its think time."""
    row: dict[str, Any] = {
        "request": i,
        "offset_ns": int(plan.offsets_ns[i]),
        "prompt_tokens": int(lengths[i]),
        "max_new_tokens": int(plan.max_new_tokens[i]),
    }
    if plan.gated and plan.after is not None and plan.think_ns is not None:
        row["after"] = int(plan.after[i]) if plan.after[i] >= 0 else None
        row["think_ns"] = int(plan.think_ns[i])
    return row


def _spread(values: npt.NDArray[np.int64]) -> dict[str, float | int]:
    """Total, mean, extremes and percentiles (numpy's linear ones)."""
    named = {f"p{q}": float(np.percentile(values, q)) for q in PERCENTILES}
    return {
        "total": int(values.sum()),
        "mean": float(values.mean()),
        "min": int(values.min()),
        **named,
        "max": int(values.max()),
    }


def _save(plan: LoadPlan, path: Path) -> None:
    """Write the whole file or none. Raises ConfigError for a place that cannot be written, RunError for a full disk."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.touch(exist_ok=False)
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror or error}") from None
    try:
        plan.save(part)
        part.replace(path)
    except OSError as error:
        raise RunError(f"--out {path}: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
