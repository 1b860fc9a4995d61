"""From a `RunConfig` to the immutable load plan: texts, offsets, and the plan file that repeats a load."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from harness.common.errors import ConfigError
from harness.common.plan_file import LoadPlan, load_plan
from harness.config.run_config import RunConfig
from harness.plan import arrivals
from harness.plan.arrival_spec import ArrivalSpec
from harness.plan.closed_loop import close_loop, describe_gates
from harness.plan.files import MAX_TEXT_BYTES
from harness.plan.pack_texts import pack_texts
from harness.plan.processes import schedule_of
from harness.plan.prompts import construct, read_prompts

Int64Array = npt.NDArray[np.int64]
T = TypeVar("T")


def build_texts(config: RunConfig) -> list[str]:
    """The prompt of every request, in order; more requests than prompts in the file cycle over them.

    Raises ConfigError for a prompt file that cannot be used.
    """
    if config.prompts is None:
        count = _require(config.num_requests)
        return construct(config.prompt, config.prompt_repeats, count, config.unique_prompts)
    texts = read_prompts(config.prompts).texts
    count = len(texts) if config.num_requests is None else config.num_requests
    return list(itertools.islice(itertools.cycle(texts), count))


def build_offsets(config: RunConfig, limit: int | None) -> Int64Array:
    """int64 ns after t0, sorted: at most `limit` requests (None: as many as the time allows).

    Raises ConfigError for a span that no run could have, or a plan without a request.
    """
    if config.think_time is not None:  # the ends of requests decide
        return np.zeros(_require(limit), dtype=np.int64)
    spec = ArrivalSpec.of(config)
    offsets = schedule_of(spec).offsets(limit, spec.duration_ns)
    if len(offsets) == 0:
        raise ConfigError(f"--arrival {spec.arrival}: no request is due in the time of the plan")
    return offsets


def counted(config: RunConfig) -> RunConfig:
    """The config with the number of requests that its duration or its steps allow; others as they are."""
    if config.duration_s is None and config.arrival != "steps":
        return config
    return config.model_copy(update={"num_requests": len(build_offsets(config, config.num_requests))})


def with_texts(plan: LoadPlan, texts: Sequence[str]) -> LoadPlan:
    """The same load with these UTF-8 texts, one a request. Raises ConfigError where they exceed MAX_TEXT_BYTES."""
    packed = pack_texts(texts, MAX_TEXT_BYTES)
    if packed is None:
        raise ConfigError(f"--num-requests: the prompts of {len(texts)} requests would exceed {MAX_TEXT_BYTES} bytes")
    payload, starts = packed
    return replace(plan, texts=payload, text_starts=starts)


def bare_plan(config: RunConfig, count: int) -> LoadPlan:
    """`count` requests by their times and new tokens, still without payloads. Raises ConfigError."""
    new_tokens = np.full(count, config.max_new_tokens, dtype=np.int32)
    return close_loop(LoadPlan(build_offsets(config, count), new_tokens), config)


def text_plan(config: RunConfig) -> LoadPlan:
    """The raw plan: UTF-8 texts that the engine tokenizes. Raises ConfigError."""
    config = counted(config)
    texts = build_texts(config)
    return frozen(with_texts(bare_plan(config, len(texts)), texts))


def tokenized_plan(plan: LoadPlan, ids: Sequence[Sequence[int] | npt.NDArray[np.int32]]) -> LoadPlan:
    """The same load with token ids in the place of the texts; one list of ids a request, in order."""
    if len(ids) != plan.num_requests:
        raise ValueError(f"{len(ids)} lists of token ids for {plan.num_requests} requests")
    starts = np.zeros(len(ids) + 1, dtype=np.int64)
    np.cumsum([len(one) for one in ids], out=starts[1:])
    flat = np.fromiter(itertools.chain.from_iterable(ids), dtype=np.int32, count=int(starts[-1]))
    return frozen(replace(plan, prompt_ids=flat, prompt_starts=starts, texts=None, text_starts=None))


def load_plan_for(config: RunConfig) -> LoadPlan:
    """The plan of `--plan FILE`, as it was saved. Raises ConfigError."""
    path = _require(config.plan)
    plan = load_plan(path)
    if int(plan.offsets_ns[-1]) > arrivals.MAX_SPAN_NS:
        raise ConfigError(f"--plan {path}: offsets_ns spans more than 366 days")
    if plan.pretokenized and config.tokenize_workers:
        raise ConfigError(f"--tokenize-workers does nothing with --plan {path}: it holds token ids, not texts")
    if plan.gated and config.schedule == "relative":
        raise ConfigError(f"--schedule relative cannot be had with --plan {path}: its requests wait for ends of others")
    return frozen(plan)


def describe(plan: LoadPlan, config: RunConfig) -> dict[str, object]:
    """The `plan` block of summary.json; `prompt_tokens` is None for raw texts, which only the engine can count.

    `arrival` holds the settings of the process, and is absent for a plan file or a trace.
    """
    recorded = config.plan is not None or config.trace is not None
    rate = config.rate
    if rate is None and config.submit_interval_ms:
        rate = 1000.0 / config.submit_interval_ms
    if recorded or isinstance(rate, str):
        rate = None if plan.gated else arrivals.nominal_rate(plan.offsets_ns)
    from_flags = not recorded and config.think_time is None
    known = {} if not from_flags else {"arrival": ArrivalSpec.of(config).to_json()}
    return {
        "sha256": plan.sha256(),
        "num_requests": plan.num_requests,
        "nominal_rate": rate,
        "schedule": config.schedule,
        "prompt_tokens": None if plan.prompt_ids is None else len(plan.prompt_ids),
        **known,
        **describe_gates(plan, config),
    }


def frozen(plan: LoadPlan) -> LoadPlan:
    """The same plan, its arrays marked read-only."""
    for field in fields(plan):
        array = getattr(plan, field.name)
        if array is not None:
            array.flags.writeable = False
    return plan


def _require(value: T | None) -> T:
    """A setting that `RunConfig` always fills in this case."""
    assert value is not None
    return value
