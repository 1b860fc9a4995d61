"""From a draft to the plan that is sent: lengths that fit the context, payloads by the engine's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.common.errors import ConfigError
from harness.common.limits import MAX_NEW_TOKENS
from harness.common.plan_file import LoadPlan
from harness.plan.build import frozen, tokenized_plan, with_texts
from harness.plan.draft import Draft, Int32Array, TokenizerLink
from harness.plan.text_prompts import text_prompts
from harness.plan.token_prompts import token_prompts


@dataclass(frozen=True, slots=True)
class CompletedPlan:
    """plan: what is sent. notes: for the summary, JSON-able. lines: what the user should know, one each."""

    plan: LoadPlan
    notes: dict[str, Any]
    lines: list[str]


@dataclass(slots=True)
class _Work:
    """The draft on its way. lens: int32[N] tokens of each prompt, None where nobody needed them yet."""

    draft: Draft
    link: TokenizerLink
    new_tokens: Int32Array
    lens: Int32Array | None
    notes: dict[str, Any]
    lines: list[str]


def complete(draft: Draft, pretok: bool, prompt_seed: int, link: TokenizerLink) -> CompletedPlan:
    """Do what the draft still needs; one that needs nothing comes back as it is, and `link` is not asked.

    Raises ConfigError for lengths that the context cannot hold, texts that cannot be made, and payloads too large.
    """
    shape = draft.shape
    work = _Work(
        draft, link, draft.plan.max_new_tokens, None if shape is None else shape.input_lens, dict(draft.notes),
        list(draft.lines),
    )  # fmt: skip
    if draft.replies is not None:
        _count_replies(work, draft.replies)
    if shape is not None or draft.output_flexible:
        _fit_context(work)
    plan = replace(draft.plan, max_new_tokens=work.new_tokens)
    if shape is not None and work.lens is not None:
        shape = replace(shape, input_lens=work.lens)
        if draft.source is None:
            prompts = token_prompts(shape, link.vocabulary(), prompt_seed)
            plan = replace(plan, prompt_ids=prompts.ids, prompt_starts=prompts.starts)
        else:
            plan = with_texts(plan, text_prompts(shape, draft.source, link, prompt_seed))
    if pretok and not plan.pretokenized:
        plan = tokenized_plan(plan, ids_of(texts_of(plan), link))
    return CompletedPlan(frozen(plan), work.notes, work.lines)


def reply_lengths(replies: Sequence[str | int], link: TokenizerLink) -> Int32Array:
    """int32[N] of at least 1: a number is the length itself, of a text its tokens without the special ones."""
    texts = [reply for reply in replies if isinstance(reply, str)]
    special = np.array(link.vocabulary().special_ids if texts else (), dtype=np.int32)
    counts = iter([int(np.count_nonzero(~np.isin(ids, special))) for ids in ids_of(texts, link)])
    lengths = [next(counts) if isinstance(reply, str) else reply for reply in replies]
    return np.asarray(np.clip(np.array(lengths, dtype=np.int64), 1, MAX_NEW_TOKENS), dtype=np.int32)


def texts_of(plan: LoadPlan) -> list[str]:
    """The texts of a raw plan, in order."""
    return [plan.payload(i).decode() for i in range(plan.num_requests)]


def ids_of(texts: Sequence[str], link: TokenizerLink) -> list[Int32Array]:
    """Token ids of each text; equal texts are tokenized once."""
    distinct = list(dict.fromkeys(texts))
    known = dict(zip(distinct, link.tokenize(distinct), strict=True)) if distinct else {}
    return [known[text] for text in texts]


def _count_replies(work: _Work, replies: Sequence[str | int]) -> None:
    lengths = reply_lengths(replies, work.link)
    bound = work.draft.plan.max_new_tokens  # the collector has room for so many
    beyond = int(np.count_nonzero(lengths > bound))
    if beyond:
        work.lines.append(f"{beyond} outputs were shortened: their recorded texts have more tokens than bytes")
    work.new_tokens = np.minimum(lengths, bound)
    work.notes["output_lengths"] = {
        "asked": "dataset",
        "mean": float(work.new_tokens.mean()),
        "min": int(work.new_tokens.min()),
        "max": int(work.new_tokens.max()),
    }


def _fit_context(work: _Work) -> None:
    """Prompt + output <= context: drawn prompts are shortened first, then drawn outputs; each is counted."""
    draft, context = work.draft, work.link.vocabulary().max_model_len
    if work.lens is None:
        work.lens = np.array([len(ids) for ids in ids_of(texts_of(draft.plan), work.link)], dtype=np.int32)
    lens, new = work.lens, work.new_tokens
    if draft.shape is not None and draft.input_flexible:
        if draft.output_flexible:
            new = np.minimum(new, context - 1).astype(np.int32)
        floor = 1 if draft.source is None else draft.shape.block_tokens + 1  # a text's shared head stays whole
        lens = np.clip(context - new, np.minimum(floor, lens), lens).astype(np.int32)
    if draft.output_flexible:
        new = np.clip(context - lens, 1, new).astype(np.int32)
    for word, before, after in (("input", work.lens, lens), ("output", work.new_tokens, new)):
        shortened = int(np.count_nonzero(before != after))
        if shortened:
            work.notes[f"{word}_lengths_cut_to_context"] = shortened
            work.lines.append(f"{shortened} of {len(after)} {word} lengths were shortened to fit the context of "
                              f"{context} tokens")  # fmt: skip
    beyond = np.flatnonzero(lens.astype(np.int64) + new > context)
    if len(beyond) and draft.shape is not None and draft.strict:
        i = int(beyond[0])
        raise ConfigError(
            f"request {i}: {lens[i]} tokens of prompt and {new[i]} of output exceed the context of {context} tokens"
        )
    if len(beyond):
        work.lines.append(f"{len(beyond)} of {len(lens)} requests exceed the context of {context} tokens: the engine "
                          "will reject them")  # fmt: skip
    work.lens, work.new_tokens = lens, new
