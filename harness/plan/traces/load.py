"""From `--trace` and its options to the load plan, and to the account of what became of the trace's rows."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from harness.common.clock import NS_PER_S
from harness.common.errors import ConfigError
from harness.common.limits import MAX_NEW_TOKENS, MAX_PAYLOAD_BYTES
from harness.common.plan_file import LoadPlan
from harness.config.run_config import RunConfig
from harness.plan.arrivals import MAX_SPAN_NS
from harness.plan.build import frozen
from harness.plan.draft import Draft, Int32Array, PromptShape, Vocabulary
from harness.plan.model_helper import Helper, Limits, ask_limits, ask_tokens, run_helper
from harness.plan.seeds import Dimension, seed_of
from harness.plan.token_prompts import ID_BYTES, token_prompts
from harness.plan.traces.account import facts_of, warnings_of
from harness.plan.traces.fit import Fit, FitCounts, Lengths
from harness.plan.traces.importer import Trace, TraceOptions, read_trace
from harness.plan.traces.rows import TraceRow
from harness.plan.traces.times import Stamp, round_half_even


class _Taken(NamedTuple):
    """A row that is sent: its place in the trace (from 0), its offset (ns), lengths, and its ids if it is a text."""

    place: int
    row: TraceRow
    offset_ns: int
    lengths: Lengths
    ids: Int32Array | None


def trace_draft(config: RunConfig, helper: Helper = run_helper) -> Draft:
    """Read the trace of `config` and plan it to the end: prompts are token ids, and nothing is left to complete.

    The context is asked of a helper process, since it may decide how many rows there are, which must be known before
    the engine runs. Raises ConfigError, one line.
    """
    assert config.trace is not None
    trace = read_trace(config.trace, _options(config))
    limits = _limits(config, helper)
    start, end = _window(config)
    chosen = [(i, row) for i, row in enumerate(trace.rows) if start <= row.stamp - trace.origin < end]
    chosen = chosen[: config.trace_limit]
    if not chosen:
        raise ConfigError(f"--trace-window: no row of {config.trace} lies in it; the trace spans "
                          f"{trace.timing.span_ns / NS_PER_S:g} s")  # fmt: skip
    texts = [row.prompt for _, row in chosen if row.prompt is not None]
    ids = iter(ask_tokens(config.model, texts, helper) if texts else ())
    fit = Fit(limits.max_model_len, config.lengths or "keep", config.trace_empty or "keep", FitCounts())
    speed = Fraction(config.trace_speed or 1)
    taken = []
    differing = 0
    for place, row in chosen:
        own = None if row.prompt is None else next(ids)
        length = len(own) if own is not None else row.input_tokens or 0
        differing += own is not None and row.input_tokens is not None and row.input_tokens != length
        lengths = fit.apply(Lengths(length, row.output_tokens))
        if lengths is not None:
            taken.append(_Taken(place, row, offset_of(row.stamp - trace.origin - start, speed), lengths, own))
    _check(taken, config)
    plan = _plan(taken, trace, limits.vocabulary, seed_of(config, Dimension.PROMPTS))
    account = _account(config, trace, fit, len(chosen), len(taken), differing)
    facts = () if config.quiet else facts_of(account)
    return Draft(plan, notes=(("trace", account),), lines=(*facts, *warnings_of(account)))


def offset_of(since: Stamp, speed: Fraction) -> int:
    """ns after t0 of a row that comes `since` ns after it at the recorded speed: exact, ties to even."""
    value = Fraction(since)
    return round_half_even(value.numerator * speed.denominator, value.denominator * speed.numerator)


def _options(config: RunConfig) -> TraceOptions:
    return TraceOptions(
        format=config.trace_format,
        unit=config.trace_unit,
        sort=config.sort,
        block_tokens=config.trace_block_size,
        multiplier=None if config.trace_multiplier is None else Fraction(config.trace_multiplier),
        labels=None if config.trace_labels is None else dict(config.trace_labels),
    )


def _limits(config: RunConfig, helper: Helper) -> Limits:
    """The context and vocabulary that rows must fit; --max-model-len stands in for a context."""
    known = ask_limits(config.engine, config.model, helper)
    if config.max_model_len is not None:
        return known._replace(max_model_len=config.max_model_len)
    if known.max_model_len is None and config.lengths not in (None, "keep"):
        raise ConfigError(f"--lengths {config.lengths}: the context of --engine {config.engine} is not known before it "
                          "runs; --max-model-len N says it")  # fmt: skip
    return known


def _window(config: RunConfig) -> tuple[Fraction, Fraction | float]:
    """The window in ns into the trace; without an end it is infinite."""
    if config.trace_window is None:
        return Fraction(0), float("inf")
    start, end = config.trace_window
    return Fraction(start) * NS_PER_S, float("inf") if end is None else Fraction(end) * NS_PER_S


def _check(taken: Sequence[_Taken], config: RunConfig) -> None:
    """Raises ConfigError for a load that no run could have."""
    where = f"--trace {config.trace}"
    if not taken:
        raise ConfigError(f"{where}: no row is left (--lengths {config.lengths or 'keep'}, --trace-empty "
                          f"{config.trace_empty or 'keep'})")  # fmt: skip
    if taken[-1].offset_ns > MAX_SPAN_NS:
        raise ConfigError("--trace-speed: the replay would take more than 366 days")
    worst = max(taken, key=lambda one: one.lengths.output)
    if worst.lengths.output > MAX_NEW_TOKENS:
        raise ConfigError(f"{where}: row {worst.place + 1} asks for {worst.lengths.output} output tokens, at most "
                          f"{MAX_NEW_TOKENS} can be had (--lengths scale, clip or skip)")  # fmt: skip
    nbytes = sum(one.lengths.input for one in taken) * ID_BYTES
    if nbytes > MAX_PAYLOAD_BYTES:
        raise ConfigError(f"{where}: the prompts would take {nbytes} bytes, at most {MAX_PAYLOAD_BYTES} can be sent "
                          "(--trace-limit, --trace-window)")  # fmt: skip


def _plan(taken: Sequence[_Taken], trace: Trace, vocabulary: Vocabulary, seed: int) -> LoadPlan:
    """Random ids in the rows' lengths, equal where the trace's block ids are; texts' own ids over them."""
    blocks = [one.row.hash_ids for one in taken]
    block_starts = np.zeros(len(taken) + 1, dtype=np.int64)
    np.cumsum([len(ids) for ids in blocks], out=block_starts[1:])
    shape = PromptShape(
        input_lens=np.array([one.lengths.input for one in taken], dtype=np.int32),
        block_ids=np.fromiter(chain.from_iterable(blocks), dtype=np.int64, count=int(block_starts[-1])),
        block_starts=block_starts,
        block_tokens=trace.block_tokens,
    )
    prompts = token_prompts(shape, vocabulary, seed)
    for i, one in enumerate(taken):
        if one.ids is not None:
            prompts.ids[prompts.starts[i] : prompts.starts[i + 1]] = one.ids[: one.lengths.input]
    plan = LoadPlan(
        offsets_ns=np.array([one.offset_ns for one in taken], dtype=np.int64),
        max_new_tokens=np.array([one.lengths.output for one in taken], dtype=np.int32),
        prompt_ids=prompts.ids,
        prompt_starts=prompts.starts,
    )
    return frozen(plan)


def _account(config: RunConfig, trace: Trace, fit: Fit, chosen: int, taken: int, differing: int) -> dict[str, Any]:
    """What summary.json and `plan` say of the trace."""
    counts = fit.counts
    return {
        "file": str(trace.path),
        "format": trace.format.name,
        "unit": trace.unit,
        **trace.timing.to_json(),
        "sorted": trace.was_sorted,
        "window_s": None if config.trace_window is None else [_seconds(one) for one in config.trace_window],
        "speed": str(config.trace_speed or 1),
        "chosen": chosen,
        "requests": taken,
        "context": fit.context,
        "lengths": fit.lengths,
        "beyond_context": counts.beyond_context,
        "empty": fit.empty,
        "no_prompt_tokens": counts.no_prompt,
        "no_output_tokens": counts.no_output,
        "empty_skipped": counts.empty_skipped,
        "prompt_length_differs": differing,
        "warnings": list(trace.warnings),
    }


def _seconds(value: object) -> str | None:
    return None if value is None else str(value)
