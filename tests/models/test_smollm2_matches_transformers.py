"""SmolLM2 against transformers in every configuration; see tests/matching.py.

Its weights are real: its outputs depend on every block of the cache. Its float32 products alone lead further from the
truth than the bar (transformers' too), so the truth is `generate` in float64 and the bar is held with exact products;
the packed ones are held to what transformers' float32 makes of the same prompts.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from matching import COVERING, NUM_PROMPTS, Case, make_case, name_of, run
from tiny_gpt2 import one_thread

from benchmarks.equality_cases import (
    RATIO,
    SERVED,
    TOLERANCE,
    TRANSFORMERS,
    Setting,
    compare_references,
    references,
)
from engine_proc.models.hf import as_transformers

pytest.importorskip("transformers")
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def smollm2() -> Case:
    return make_case("builtin:smollm2", torch.float64)


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
