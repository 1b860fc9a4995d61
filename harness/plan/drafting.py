"""From a `RunConfig` to a draft: what is known of a load before a process was started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from harness.common.errors import ConfigError
from harness.common.limits import MAX_REQUESTS
from harness.common.plan_file import LoadPlan
from harness.config.length_text import MAX_LENGTH, parse_length
from harness.config.prompt_flags import kind_of, outputs_recorded
from harness.config.run_config import RunConfig
from harness.plan.build import bare_plan, build_offsets, counted, frozen, load_plan_for, text_plan, with_texts
from harness.plan.datasets import read_dataset
from harness.plan.draft import Draft, Int32Array, PromptShape, TextSource
from harness.plan.files import decode_lines, read_bytes
from harness.plan.lengths import Lengths, draw_lengths
from harness.plan.seeds import Dimension, generator, seed_of
from harness.plan.sessions import Sessions, make_sessions
from harness.plan.traces.load import trace_draft

#: Tokens that a tokenizer may give beyond one a byte of text.
SPARE_TOKENS = 16
#: Each side's place is the number of its stream of lengths.
SIDES = ("input", "output")


def make_draft(config: RunConfig) -> Draft:
    """The load as far as it can be told without the engine's tokenizer. Raises ConfigError."""
    if config.plan is not None:
        return Draft(load_plan_for(config))
    if config.trace is not None:
        return trace_draft(config)
    if kind_of(config) == "dataset":
        draft = _dataset_draft(config)
    else:
        draft = Draft(text_plan(config)) if config.input_len is None else _prompts_to_make(config)
    if config.output_len is None or outputs_recorded(config):
        return draft
    return _with_output_lengths(draft, config, config.output_len)


def _prompts_to_make(config: RunConfig) -> Draft:
    """Prompts of given lengths, whose payloads only the engine's vocabulary or tokenizer can make."""
    count = counted(config).num_requests
    assert config.input_len is not None and count is not None
    lengths, notes = _draw(config, config.input_len, count, "input")
    lens = lengths.values
    shape = PromptShape(lens)
    if config.prefix_len is not None:
        groups = config.prefix_groups or 1
        notes += (("prefix", {"groups": groups, "tokens": config.prefix_len}),)
        shape = PromptShape(
            (lens + config.prefix_len).astype(np.int32),
            block_ids=np.arange(count, dtype=np.int64) % groups,
            block_starts=np.arange(count + 1, dtype=np.int64),
            block_tokens=config.prefix_len,
        )
    kind = kind_of(config)
    drawn = kind in ("random", "corpus")
    return Draft(
        bare_plan(config, count),
        shape=shape,
        source=None if kind == "random" else _source(config, kind),
        input_flexible=not parse_length(config.input_len).fixed,
        notes=(("prompts", {"kind": kind, "seed": seed_of(config, Dimension.PROMPTS) if drawn else None}), *notes),
    )


def _dataset_draft(config: RunConfig) -> Draft:
    """One request a turn of the dataset's conversations. Raises ConfigError."""
    assert config.dataset is not None
    where = f"--dataset {config.dataset}"
    data = read_dataset(config.dataset, config.dataset_format, config.prompt_field, config.output_field)
    recorded = outputs_recorded(config)
    sessions = make_sessions(
        data.conversations,
        turns=None if config.turns == "all" else int(config.turns),
        count=config.num_requests,
        most=None if counted(config) is config else len(build_offsets(config, config.num_requests)),
        think_ms=config.session_think_ms,
        recorded=recorded,
    )
    if not sessions.requests:
        raise ConfigError(f"{where}: no record holds an output, so that nothing says how long outputs are")
    if len(sessions.requests) > MAX_REQUESTS:
        raise ConfigError(f"{where}: more than {MAX_REQUESTS} requests; ask for fewer (--num-requests)")
    plan = _with_sessions(bare_plan(config, sessions.num_sessions), sessions)
    plan = frozen(with_texts(plan, [request.prompt for request in sessions.requests]))
    notes = {"kind": "dataset", "format": data.format, "records": len(data.conversations), "skipped": data.skipped,
             "sessions": sessions.num_sessions, "turns": config.turns, "unanswered": sessions.unanswered}  # fmt: skip
    lines = []
    if data.skipped:
        lines.append(f"{where}: {data.skipped} records were skipped, in which no user says a word")
    if sessions.unanswered:
        lines.append(f"{where}: {sessions.unanswered} turns were left out, for which no output was recorded")
    draft = Draft(plan, notes=(("prompts", notes),), lines=tuple(lines))
    return _with_replies(draft, sessions) if recorded else draft


def _with_sessions(plan: LoadPlan, sessions: Sessions) -> LoadPlan:
    """From a row a session to a row a turn; the offset of a later turn is its session's, and only keeps order.

    In a closed loop every session has one turn, and its users' think times gate it.
    """
    return replace(
        plan,
        offsets_ns=plan.offsets_ns[sessions.session],
        max_new_tokens=plan.max_new_tokens[sessions.session],
        after=sessions.after if plan.after is None else plan.after,
        think_ns=sessions.think_ns if plan.think_ns is None else plan.think_ns,
    )


def _with_replies(draft: Draft, sessions: Sessions) -> Draft:
    """Outputs as long as the replies: at most a token a byte until the tokenizer has counted."""
    replies = tuple(request.reply for request in sessions.requests if request.reply is not None)
    bounds = [len(reply.encode()) + SPARE_TOKENS if isinstance(reply, str) else reply for reply in replies]
    bound = np.clip(np.array(bounds, dtype=np.int64), 1, MAX_LENGTH).astype(np.int32)
    return replace(draft, plan=frozen(replace(draft.plan, max_new_tokens=bound)), replies=replies, output_flexible=True)


def _source(config: RunConfig, kind: str) -> TextSource:
    """The text that prompts are cut from. Raises ConfigError for a corpus that cannot be used."""
    if kind == "repeat":
        text, where, joint = config.prompt, "--prompt", " "
    else:
        assert config.corpus is not None
        where, joint = f"--corpus {config.corpus}", "\n"
        text = "\n".join(decode_lines(read_bytes(config.corpus, "--corpus"), where))
    if not text.strip():
        raise ConfigError(f"{where}: there is no text to cut prompts from")
    return TextSource(text, joint, draw=kind != "repeat")


def _with_output_lengths(draft: Draft, config: RunConfig, text: str) -> Draft:
    lengths, notes = _draw(config, text, draft.num_requests, "output")
    plan = frozen(replace(draft.plan, max_new_tokens=lengths.values))
    return replace(draft, plan=plan, output_flexible=not parse_length(text).fixed, notes=(*draft.notes, *notes))


def _draw(config: RunConfig, text: str, count: int, word: str) -> tuple[Lengths, tuple[tuple[str, object], ...]]:
    """Lengths of one side, and what to note of them."""
    seed = seed_of(config, Dimension.LENGTHS)
    random = generator(seed, Dimension.LENGTHS, SIDES.index(word))
    lengths = draw_lengths(parse_length(text), count, random, f"--{word}-len")
    return lengths, ((f"{word}_lengths", _summary(text, seed, lengths)),)


def _summary(text: str, seed: int, lengths: Lengths) -> dict[str, Any]:
    values: Int32Array = lengths.values
    return {
        "asked": text,
        "seed": seed,
        "mean": float(values.mean()),
        "min": int(values.min()),
        "max": int(values.max()),
        "raised_to_min": lengths.raised,
        "cut_to_max": lengths.capped,
    }
