"""The native engine against transformers' GPT-2 with the same weights: logits at every step, and the tokens."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tiny_gpt2 import Driver, hf_config, one_thread, request, save_model, tiny_weights
from torch import Tensor

from engine_proc.backends.native import NativeBackend
from engine_proc.models.builtin import random_weights
from engine_proc.models.gpt2 import GPT2Config
from engine_proc.tokenize import load_tokenizer

transformers = pytest.importorskip("transformers")

QUESTIONS = Path(__file__).parents[2].parent / "shared" / "data" / "spec_bench" / "question.jsonl"
NUM_PROMPTS, NEW_TOKENS = 20, 32
TOLERANCE = 1e-4
SMALL = GPT2Config(hidden=192, layers=4, heads=3, inner=768)


class Reference(NamedTuple):
    """What `generate` gave for one prompt: its tokens, and the logits [NEW_TOKENS, vocab] that chose them."""

    tokens: list[int]
    logits: Tensor


class Difference(NamedTuple):
    """What comparing one batch size found."""

    worst: float
    compared: int
    near_ties: int
    wrong: list[str]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    if not QUESTIONS.is_file():
        pytest.skip("the prompts of shared/data/spec_bench are not here")
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()[:NUM_PROMPTS]
    ids = load_tokenizer("builtin:gpt2").encode_batch([json.loads(line)["turns"][0] for line in lines])
    assert len(ids) == NUM_PROMPTS
    return ids


def references(
    config: GPT2Config, weights: dict[str, Tensor], prompts: list[list[int]], batch_size: int
) -> list[Reference]:
    """Greedy float32 `generate`; prompts of one batch are padded on the left, as transformers wants it."""
    fields: dict[str, Any] = hf_config(config)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**fields)).eval()
    named = {f"transformer.{name}": weight for name, weight in weights.items()}
    model.load_state_dict({**named, "lm_head.weight": weights["wte.weight"]})
    found = []
    for start in range(0, len(prompts), batch_size):
        part = prompts[start : start + batch_size]
        width = max(map(len, part))
        out = model.generate(
            torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in part]),
            attention_mask=torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in part]),
            do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None, pad_token_id=0, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        logits = torch.stack(out.logits, dim=1)
        assert logits.shape[:2] == (len(part), NEW_TOKENS)
        found += [Reference(tokens, row) for tokens, row in zip(out.sequences[:, width:].tolist(), logits, strict=True)]
    return found


def run_native(
    model: str, batch_size: int, prompts: list[list[int]]
) -> tuple[dict[int, list[int]], dict[int, list[Tensor]]]:
    """Tokens and logits by row."""
    logits: dict[int, list[Tensor]] = {}

    def observe(rows: list[int], step: Tensor) -> None:
        for row, values in zip(rows, step, strict=True):
            logits.setdefault(row, []).append(values.clone())

    backend = NativeBackend(model, "cpu", "float32", batch_size, batch_size, time.monotonic_ns, logits_observer=observe)
    driver = Driver(backend)
    tokens = driver.run([request(row, prompt, NEW_TOKENS) for row, prompt in enumerate(prompts)])
    assert max(step.decode_rows for step in driver.steps) == min(batch_size, len(prompts))
    backend.close()
    return tokens, logits


def compare(expected: list[Reference], tokens: dict[int, list[int]], logits: dict[int, list[Tensor]]) -> Difference:
    """Logits at every step up to a divergence; another token counts as a near tie where the best two are that near."""
    worst, compared, near_ties, wrong = 0.0, 0, 0, []
    for row, reference in enumerate(expected):
        for step in range(NEW_TOKENS):
            worst = max(worst, (logits[row][step] - reference.logits[step]).abs().max().item())
            compared += 1
            if tokens[row][step] != reference.tokens[step]:
                best, second = reference.logits[step].topk(2).values.tolist()
                if best - second < TOLERANCE:
                    near_ties += 1
                else:
                    wrong.append(f"prompt {row} step {step}: {tokens[row][step]}, not {reference.tokens[step]}")
                break
    return Difference(worst, compared, near_ties, wrong)


def check(difference: Difference) -> None:
    print(f"worst logit difference {difference.worst:.1e}, {difference.near_ties} near ties")  # pytest -rP shows it
    assert difference.wrong == []
    assert difference.worst <= TOLERANCE
    # A tie ends the comparison of its prompt; with many of them the test would say little.
    assert difference.compared >= 0.9 * NUM_PROMPTS * NEW_TOKENS


class Case(NamedTuple):
    model: str
    expected: list[Reference]


@pytest.fixture(scope="module")
def small(prompts: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Four layers with OpenAI's vocabulary, from a folder; weights so large that attention decides the tokens."""
    weights = tiny_weights(SMALL, std=0.08)
    expected = references(SMALL, weights, prompts, 1)
    assert len({tuple(reference.tokens) for reference in expected}) == NUM_PROMPTS
    return Case(save_model(tmp_path_factory.mktemp("small"), SMALL, weights), expected)


@pytest.mark.parametrize("batch_size", [1, 16])
def test_small_gpt2_matches_generate_at_every_step(small: Case, prompts: list[list[int]], batch_size: int) -> None:
    check(compare(small.expected, *run_native(small.model, batch_size, prompts)))


@pytest.fixture(scope="module")
def builtin(prompts: list[list[int]]) -> Case:
    return Case("builtin:gpt2", references(GPT2Config(), random_weights(GPT2Config()), prompts, NUM_PROMPTS))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 16])
def test_builtin_gpt2_matches_generate_at_every_step(builtin: Case, prompts: list[list[int]], batch_size: int) -> None:
    check(compare(builtin.expected, *run_native(builtin.model, batch_size, prompts)))
