"""The native engine against transformers with the same weights, in every configuration: each step's logits, and tokens.

The comparison is that of benchmarks/equality.py, which runs it over 480 prompts; here 40 fixed ones, divided among the
configurations. SmolLM2's weights are real: its outputs depend on every block of the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from tiny_gpt2 import one_thread, save_model, tiny_weights

from benchmarks.equality import (
    NEW_TOKENS,
    QUESTIONS,
    SETTINGS,
    TOLERANCE,
    Found,
    Reference,
    Setting,
    load_prompts,
    run_setting,
)
from benchmarks.equality import references as generate
from engine_proc.models.gpt2 import GPT2Config
from engine_proc.models.loader import load_model

pytest.importorskip("transformers")

NUM_PROMPTS, SHARE = 40, 4
#: Longest prompt of the fixed ones: CI runs on two cores.
MAX_TOKENS = 60
SMALL = GPT2Config(hidden=192, layers=4, heads=3, inner=768)
#: A token a step: one prompt is enough of that.
SLOW = {"chunk 1": 1}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


class Case(NamedTuple):
    model: str
    prompts: list[list[int]]
    expected: list[Reference]


def make_case(model: str, names: str = "") -> Case:
    from engine_proc.models.hf import as_transformers

    if not QUESTIONS.is_file():
        pytest.skip("the prompts of shared/data/spec_bench are not here")
    prompts = load_prompts(names or model, NUM_PROMPTS, MAX_TOKENS)
    assert len(prompts) == NUM_PROMPTS
    with torch.inference_mode():
        expected = generate(as_transformers(load_model(model)), prompts, 20)
    return Case(model, prompts, expected)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Four layers with OpenAI's vocabulary, from a folder; weights so large that attention decides the tokens."""
    folder = save_model(tmp_path_factory.mktemp("small"), SMALL, tiny_weights(SMALL, std=0.08))
    case = make_case(folder, "builtin:gpt2")
    assert len({tuple(reference.tokens) for reference in case.expected}) == NUM_PROMPTS
    return case


@pytest.fixture(scope="module")
def gpt2() -> Case:
    return make_case("builtin:gpt2")


@pytest.fixture(scope="module")
def smollm2() -> Case:
    return make_case("builtin:smollm2")


def check(case: Case, setting: Setting, share: range, tolerance: float = TOLERANCE) -> Found:
    found = run_setting(case.model, setting, [case.prompts[i] for i in share], [case.expected[i] for i in share])
    print(f"{setting.name}: worst logit difference {found.worst:.1e}, {found.near_ties} near ties")  # pytest -rP
    assert found.wrong == []
    assert found.worst <= tolerance
    # A tie ends the comparison of its prompt; with many of them the test would say little.
    assert found.compared >= 0.9 * len(share) * NEW_TOKENS
    assert (found.preemptions > 0) == setting.small_pool
    if setting.warm:
        assert found.cached_tokens >= sum((len(case.prompts[i]) - 1) // 16 * 16 for i in share)
    return found


def share_of(number: int, setting: Setting) -> range:
    """Each configuration takes the next four of the forty."""
    first = number * SHARE % NUM_PROMPTS
    return range(first, first + SLOW.get(setting.name, SHARE))


@pytest.mark.parametrize(("number", "setting"), list(enumerate(SETTINGS)), ids=lambda value: getattr(value, "name", ""))
def test_small_gpt2_matches_generate_in_every_setting(small: Case, number: int, setting: Setting) -> None:
    check(small, setting, share_of(number, setting))


@pytest.mark.timeout(300)
def test_builtin_gpt2_matches_generate_on_all_prompts(gpt2: Case) -> None:
    check(gpt2, SETTINGS[0], range(NUM_PROMPTS))


#: The largest logit difference known of SmolLM2 in fp32 is 2.1e-4 (its logits are several times larger than GPT-2's,
#: which stay below 6e-6). The bar is TOLERANCE and is not met yet; beyond this ceiling something new is wrong.
SMOLLM2_KNOWN = 5e-4


def check_smollm2(case: Case, setting: Setting, share: range) -> None:
    """Everything but the logits' bar must hold; that one alone is an expected failure, and says so."""
    found = check(case, setting, share, SMOLLM2_KNOWN)
    if found.worst > TOLERANCE:
        pytest.xfail(f"SmolLM2's logits differ by {found.worst:.1e} in fp32, the bar is {TOLERANCE:.0e}")


@pytest.mark.timeout(300)
def test_smollm2_matches_generate_on_all_prompts(smollm2: Case) -> None:
    check_smollm2(smollm2, SETTINGS[0], range(NUM_PROMPTS))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(  # every third setting: all of them take minutes, benchmarks/equality.py has them
    ("number", "setting"), list(enumerate(SETTINGS))[1::3], ids=lambda value: getattr(value, "name", "")
)
def test_smollm2_matches_generate_in_every_setting(smollm2: Case, number: int, setting: Setting) -> None:
    check_smollm2(smollm2, setting, share_of(number, setting))
