"""GPT-2 against transformers in every configuration; see tests/matching.py. Float32 products are within the bar."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from matching import COVERING, NUM_PROMPTS, Case, make_case, name_of, run
from tiny_gpt2 import one_thread, save_model, tiny_weights

from benchmarks.equality_cases import COMBINED, SERVED, TOLERANCE, TRANSFORMERS, Setting
from engine_proc.models.gpt2 import GPT2Config

pytest.importorskip("transformers")
pytestmark = pytest.mark.timeout(600)

SMALL = GPT2Config(hidden=192, layers=4, heads=3, inner=768)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


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


@pytest.mark.parametrize(("number", "setting"), list(enumerate(COMBINED)), ids=name_of)
def test_small_gpt2_matches_generate_in_combined_settings(small: Case, number: int, setting: Setting) -> None:
    assert run(small, setting, range(8 * number, 8 * number + 8)).worst <= TOLERANCE


@pytest.mark.parametrize("setting", [SERVED, TRANSFORMERS], ids=name_of)
def test_builtin_gpt2_matches_generate_on_all_prompts(gpt2: Case, setting: Setting) -> None:
    assert run(gpt2, setting, range(NUM_PROMPTS)).worst <= TOLERANCE


@pytest.mark.parametrize(("share", "setting"), COVERING, ids=name_of)
def test_builtin_gpt2_matches_generate_in_every_setting(gpt2: Case, share: range, setting: Setting) -> None:
    assert run(gpt2, setting, share).worst <= TOLERANCE


def test_the_settings_have_all_prompts_among_them() -> None:
    assert sorted(i for share, _ in COVERING for i in share) == list(range(NUM_PROMPTS))
