"""The engine against transformers with the same weights, in every configuration: each step's logits, and tokens.

The comparison is that of benchmarks/equality.py, which runs 480 prompts through one configuration after the other; here
40 fixed ones are divided among few that have every choice among them: each costs seconds. SmolLM2's weights are real:
its outputs depend on every block of the cache. Its float32 products alone lead further from the truth than the bar
(transformers' too), so the truth is `generate` in float64 and the bar is held with exact products; the packed ones are
held to what transformers' float32 makes of the same prompts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from tiny_gpt2 import one_thread, save_model, tiny_weights

from benchmarks.equality_cases import (
    COMBINED,
    NEW_TOKENS,
    QUESTIONS,
    RATIO,
    SERVED,
    TOLERANCE,
    TRANSFORMERS,
    Found,
    Products,
    Reference,
    Setting,
    compare_references,
    load_prompts,
    references,
    run_setting,
)
from engine_proc.models.gpt2 import GPT2Config
from engine_proc.models.hf import as_transformers
from engine_proc.models.loader import LoadedModel, load_model

pytest.importorskip("transformers")
# One worker: the references are made once.
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("references")]

NUM_PROMPTS = 40
#: Longest prompt of the fixed ones: CI runs on two cores. Two blocks and more, so that chunks and hits are among them.
MAX_TOKENS = 36
SMALL = GPT2Config(hidden=192, layers=4, heads=3, inner=768)
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


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


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


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Four layers with OpenAI's vocabulary, from a folder; weights so large that attention decides the tokens."""
    folder = save_model(tmp_path_factory.mktemp("small"), SMALL, tiny_weights(SMALL, std=0.08))
    case = make_case(folder, torch.float32, "builtin:gpt2")
    assert len({tuple(reference.tokens) for reference in case.expected}) >= NUM_PROMPTS - 2
    return case


@pytest.fixture(scope="module")
def gpt2() -> Case:
    return make_case("builtin:gpt2", torch.float32)


@pytest.fixture(scope="module")
def smollm2() -> Case:
    return make_case("builtin:smollm2", torch.float64)


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


@pytest.mark.parametrize(("number", "setting"), list(enumerate(COMBINED)), ids=name_of)
def test_small_gpt2_matches_generate_in_combined_settings(small: Case, number: int, setting: Setting) -> None:
    assert run(small, setting, range(8 * number, 8 * number + 8)).worst <= TOLERANCE


@pytest.mark.parametrize("setting", [SERVED, TRANSFORMERS], ids=name_of)
def test_builtin_gpt2_matches_generate_on_all_prompts(gpt2: Case, setting: Setting) -> None:
    assert run(gpt2, setting, range(NUM_PROMPTS)).worst <= TOLERANCE


@pytest.mark.parametrize(("share", "setting"), COVERING, ids=name_of)
def test_builtin_gpt2_matches_generate_in_every_setting(gpt2: Case, share: range, setting: Setting) -> None:
    assert run(gpt2, setting, share).worst <= TOLERANCE


def test_smollm2_as_it_serves_is_as_near_to_the_truth_as_float32_is(smollm2: Case) -> None:
    """And `--engine transformers` gives its tokens."""
    module = as_transformers(smollm2.model)
    float32 = compare_references(smollm2.expected, references(module, smollm2.prompts, NUM_PROMPTS))
    print(f"generate in float32 itself: worst {float32.worst:.1e}, rms {float32.rms:.1e}")
    assert float32.wrong == []
    assert run(smollm2, SERVED, range(NUM_PROMPTS)).rms <= RATIO * float32.rms
    assert run(smollm2, TRANSFORMERS, range(8)).rms <= RATIO * float32.rms


@pytest.mark.parametrize(("share", "setting"), COVERING, ids=name_of)
def test_smollm2_with_exact_products_matches_the_truth_in_every_setting(
    smollm2: Case, share: range, setting: Setting
) -> None:
    assert run(smollm2, setting, share, "exact").worst <= TOLERANCE


def test_the_settings_have_all_prompts_among_them() -> None:
    assert sorted(i for share, _ in COVERING for i in share) == list(range(NUM_PROMPTS))
