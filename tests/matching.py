"""The engine against transformers with the same weights, in every configuration: each step's logits, and tokens.

The comparison is that of benchmarks/equality.py, which runs 480 prompts through one configuration after the other; here
40 fixed ones are divided among few that have every choice among them: each costs seconds. A file a model, so that one
worker makes its references once.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from benchmarks.equality_cases import (
    NEW_TOKENS,
    QUESTIONS,
    Found,
    Products,
    Reference,
    Setting,
    load_prompts,
    references,
    run_setting,
)
from engine_proc.models.hf import as_transformers
from engine_proc.models.loader import LoadedModel, load_model

NUM_PROMPTS = 40
#: Longest prompt of the fixed ones: CI runs on two cores. Two blocks and more, so that chunks and hits are among them.
MAX_TOKENS = 36
#: Paged or not, prefix cache on, off and warm, chunks of less than a block, one, more and all, batch 16 and 1, too few
#: blocks; one prompt is enough where prompts go through one by one, or token by token. All forty are among them.
COVERING = (
    (range(13), Setting("warm cache, chunk 17", options={"prefill_max_tokens": 17}, warm=True)),
    (range(13, 26), Setting("dense twin, no prefix cache, chunk 16",
                            options={"paged_attn": False, "prefix_cache": False, "prefill_max_tokens": 16})),
    (range(26, 38), Setting("preemption, chunk 15", options={"prefill_max_tokens": 15}, small_pool=True)),
    (range(38, 39), Setting("batch 1, chunk beyond any prompt", batch=1, options={"prefill_max_tokens": 1 << 20})),
    (range(39, 40), Setting("chunk 1", options={"prefill_max_tokens": 1})),
)  # fmt: skip


class Case(NamedTuple):
    model: LoadedModel
    prompts: list[list[int]]
    expected: list[Reference]


def make_case(name: str, dtype: torch.dtype, prompts_of: str = "") -> Case:
    if not QUESTIONS.is_file():
        pytest.skip("the prompts of shared/data/spec_bench are not here")
    prompts = load_prompts(prompts_of or name, NUM_PROMPTS, MAX_TOKENS)
    assert len(prompts) == NUM_PROMPTS
    loaded = load_model(name)
    return Case(loaded, prompts, references(as_transformers(loaded, dtype), prompts, NUM_PROMPTS))


def run(case: Case, setting: Setting, share: range, products: Products = "packed") -> Found:
    """Tokens and counters are checked, the logits are the caller's."""
    prompts, expected = [case.prompts[i] for i in share], [case.expected[i] for i in share]
    found = run_setting(case.model, setting, prompts, expected, products)
    print(f"{setting.name}, {products}: worst {found.worst:.1e}, rms {found.rms:.1e}, {found.near_ties} near ties")
    assert found.wrong == []
    # A tie ends the comparison of its prompt; with many of them the test would say little.
    assert found.compared >= 0.9 * len(share) * NEW_TOKENS
    assert (found.preemptions > 0) == setting.small_pool
    if setting.warm:
        assert found.cached_tokens >= sum((len(prompt) - 1) // 16 * 16 for prompt in prompts) > 0
    return found


def name_of(value: object) -> str:
    return value.name if isinstance(value, Setting) else ""
