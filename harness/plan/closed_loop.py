"""The closed loop: K users, each of whom thinks after one request has ended and then sends the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from harness.common.clock import NS_PER_MS
from harness.common.errors import ConfigError
from harness.common.limits import MAX_THINK_NS
from harness.common.plan_file import Int64Array, LoadPlan
from harness.config.run_config import RunConfig
from harness.plan.seeds import Dimension, Uniforms

_THINKING = 0x7468696E6B  # the stream of the think times, beside the one of the arrivals


def users_of(config: RunConfig) -> int | None:
    """How many users a closed loop has; None for an open loop."""
    return None if config.think_time is None else config.max_concurrency or 1


def cap_of(config: RunConfig) -> int | None:
    """Most requests that an open loop may have in flight; None where nothing limits them (or their users do)."""
    return config.max_concurrency if config.think_time is None else None


def close_loop(plan: LoadPlan, config: RunConfig) -> LoadPlan:
    """The plan whose request i comes think time after the end of request i - K; an open loop's as it is.

    Raises ConfigError for think times that no plan may have.
    """
    users = users_of(config)
    if users is None or config.think_time is None:
        return plan
    rows = np.arange(plan.num_requests)
    think = _think_ns(config.think_time, config.seed, plan.num_requests)
    return replace(
        plan,
        offsets_ns=np.zeros(plan.num_requests, dtype=np.int64),
        after=np.where(rows < users, -1, rows - users).astype(np.int32),
        think_ns=np.where(rows < users, 0, think).astype(np.int64),
    )


def _think_ns(words: str, seed: int, count: int) -> Int64Array:
    """int64[count]: constant, or exponential with that mean (`exp:MS`), drawn from the seed."""
    kind, _, text = words.rpartition(":")
    drawn = np.full(count, float(text) * NS_PER_MS)
    if kind == "exp":  # the inverse of its distribution function
        drawn *= -np.log(Uniforms(seed, Dimension.ARRIVALS, _THINKING).draw(count))
    if drawn.max(initial=0) > MAX_THINK_NS:
        raise ConfigError(f"--think-time {words}: would think for more than 366 days")
    return np.rint(drawn).astype(np.int64)


def describe_gates(plan: LoadPlan, config: RunConfig) -> Mapping[str, Any]:
    """What summary.json says of a load that reacts; empty for an open loop without a cap.

    `closed_loop`: every user starts at t0, only ends bring further requests. users: requests that wait for none.
    """
    block: dict[str, Any] = {}
    cap = cap_of(config)
    if cap is not None:
        block["max_concurrency"] = cap
    if plan.gated and plan.after is not None and plan.think_ns is not None:
        roots = plan.after < 0
        block["closed_loop"] = not bool(plan.offsets_ns[roots].any())
        block["users"] = int(roots.sum())
        block["gated_requests"] = int((~roots).sum())
        block["mean_think_ms"] = float(plan.think_ns[~roots].mean()) / NS_PER_MS
    return block
