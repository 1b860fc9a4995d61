"""transformers' continuous batching behind our protocol: its tokens, our events, and the hazards read in its code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from tiny_gpt2 import NO_EOS, TINY, Driver, one_thread, request, save_model, tiny_weights

from engine_proc.backends import transformers_model
from engine_proc.backends.base import EngineRequest
from engine_proc.backends.transformers_cb import TransformersBackend
from engine_proc.backends.transformers_model import TransformersModel, load_transformers_model
from harness.common.clock import monotonic_ns
from harness.common.errors import ConfigError
from harness.common.protocol import Sampling
from harness.common.specs import EngineOptions
from harness.common.stamps import FinishReason, Reason

pytestmark = pytest.mark.timeout(120)

EOS = 5
PROMPTS = [[1, 2, 3], [4] * 20, [7, 8, 9, 10, 11], list(range(40)), [3], [1, 2, 3, 4, 5, 6, 7, 8] * 4]
NEW = 12


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TransformersModel:
    folder = save_model(tmp_path_factory.mktemp("tiny"), eos_token_id=EOS)
    return load_transformers_model(folder, "cpu", "float32")


def backend_of(model: TransformersModel, batch: int = 16, **options: object) -> TransformersBackend:
    return TransformersBackend(model, batch, EngineOptions(**options), monotonic_ns)  # type: ignore[arg-type]


def greedy(model: TransformersModel, prompt: Sequence[int], new_tokens: int = NEW) -> list[int]:
    """What transformers' own generate gives."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        model.module.set_attn_implementation("sdpa")
        out = model.module.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, min_new_tokens=new_tokens,
            do_sample=False, pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
    return out[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def expected(model: TransformersModel) -> list[list[int]]:
    with one_thread():
        return [greedy(model, prompt) for prompt in PROMPTS]


def all_requests(new_tokens: int = NEW) -> list[EngineRequest]:
    return [request(row, prompt, new_tokens) for row, prompt in enumerate(PROMPTS)]


def free_blocks(backend: TransformersBackend) -> int:
    return backend._cache.num_blocks - backend._blocks_used()


@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize(
    "options",
    [{}, {"prefix_cache": False}, {"prefill_max_tokens": 7}, {"policy": "decode_first"}, {"block_size": 4}],
    ids=lambda options: "-".join(options) or "default",
)
def test_its_tokens_are_those_of_generate(
    model: TransformersModel, expected: list[list[int]], batch: int, options: dict[str, object]
) -> None:
    driver = Driver(backend_of(model, batch, **options))
    assert driver.run(all_requests()) == dict(enumerate(expected))
    assert set(driver.finish.values()) == {FinishReason.LENGTH}
    assert max(step.decode_rows + step.prefill_rows for step in driver.steps) == min(batch, len(PROMPTS))


def test_every_row_is_admitted_once_and_gets_every_token_once(model: TransformersModel) -> None:
    driver = Driver(backend_of(model, 3))
    driver.run(all_requests())
    assert sorted(row for step in driver.steps for row in step.admitted) == list(range(len(PROMPTS)))
    assert {row: len(tokens) for row, tokens in driver.tokens.items()} == dict.fromkeys(range(len(PROMPTS)), NEW)
    assert sum(step.prefill_tokens for step in driver.steps) == sum(map(len, PROMPTS))


def test_stamps_of_a_step_are_in_order_and_rows_wait_before_their_first_batch(model: TransformersModel) -> None:
    driver = Driver(backend_of(model, 1))
    driver.run(all_requests())
    assert all(0 < step.batch_ns <= step.tokens_ns for step in driver.steps)
    first = {row: i for i, step in enumerate(driver.steps) for row in step.admitted}
    assert sorted(first, key=first.__getitem__) == list(range(len(PROMPTS)))


def test_end_of_text_ends_the_row_that_wants_to_stop_there(
    model: TransformersModel, expected: list[list[int]]
) -> None:
    prompt, tokens = next((p, t) for p, t in zip(PROMPTS, expected, strict=True) if len(set(t)) > 1)
    eos = next(token for token in tokens if token != tokens[0])
    stops = TransformersModel(model.module, "m", "w", model.device, model.max_positions, model.vocab_size, (eos,))
    driver = Driver(backend_of(stops))
    done = driver.run([request(0, prompt, NEW, Sampling()), request(1, prompt, NEW, NO_EOS)])
    assert done[0] == tokens[: tokens.index(eos) + 1] and driver.finish[0] is FinishReason.EOS
    assert done[1] == tokens and driver.finish[1] is FinishReason.LENGTH


# The prefix cache


def test_a_prompt_that_was_there_before_is_taken_from_the_cache_and_gives_the_same_tokens(
    model: TransformersModel, expected: list[list[int]]
) -> None:
    driver = Driver(backend_of(model, block_size=4))
    driver.run([request(0, PROMPTS[3], NEW)])
    driver.run([request(1, PROMPTS[3], NEW)])
    assert driver.tokens[0] == driver.tokens[1] == expected[3]
    assert [cached for step in driver.steps for cached in step.cached_tokens] == [(1, 36)], "36 of 40: one is computed"


def test_a_reset_forgets_every_prompt(model: TransformersModel) -> None:
    backend = backend_of(model, block_size=4)
    driver = Driver(backend)
    driver.run([request(0, PROMPTS[3], NEW)])
    backend.reset_prefix_cache()
    driver.run([request(1, PROMPTS[3], NEW)])
    assert [step.cached_tokens for step in driver.steps if step.cached_tokens] == []


def test_warm_up_leaves_nothing_behind(model: TransformersModel) -> None:
    backend = backend_of(model, block_size=4)
    backend.warm_up()
    assert not backend.has_work()
    assert backend._blocks_used() == 0
    driver = Driver(backend)
    driver.run([request(0, [0] * 32, 3)])
    assert [step.cached_tokens for step in driver.steps if step.cached_tokens] == []


# Room: too large, and too many


def test_a_request_larger_than_the_cache_fails_at_once_with_the_numbers_and_others_are_served(
    model: TransformersModel, expected: list[list[int]]
) -> None:
    backend = backend_of(model, kv_blocks=8, block_size=4, prefix_cache=False)
    capacity = backend._max_cached_tokens
    driver = Driver(backend)
    driver.run([request(0, [1] * capacity, 2), request(1, PROMPTS[0], NEW)])
    failed = [failure for step in driver.steps for failure in step.failed]
    assert failed == [(0, Reason.TOO_LARGE_FOR_CACHE, capacity // 4 + 1, capacity // 4)]
    assert driver.tokens == {1: expected[0]}


def test_a_request_that_just_fits_the_cache_is_served(model: TransformersModel) -> None:
    backend = backend_of(model, kv_blocks=8, block_size=4)
    driver = Driver(backend)
    driver.run([request(0, [1] * (backend._max_cached_tokens - 3), 4)])
    assert len(driver.tokens[0]) == 4


def crowded(model: TransformersModel, **options: object) -> TransformersBackend:
    """Room for one of the long requests and part of another."""
    return backend_of(model, 4, kv_blocks=14, block_size=4, **options)


def test_rows_that_it_evicts_keep_their_tokens_and_their_stamps(model: TransformersModel) -> None:
    prompts = [[row + 1] * 16 for row in range(4)]
    driver = Driver(crowded(model))
    done = driver.run([request(row, prompt, 24) for row, prompt in enumerate(prompts)])
    assert sum(step.preemptions for step in driver.steps) > 0, "the pool was to be too small"
    assert done == {row: greedy(model, prompt, 24) for row, prompt in enumerate(prompts)}
    admitted = [row for step in driver.steps for row in step.admitted]
    again = [row for step in driver.steps for row, ns in step.preempted if ns > 0]
    assert sorted(admitted) == [0, 1, 2, 3], "first admissions only"
    assert len(again) == sum(step.preemptions for step in driver.steps)


# Aborts


@pytest.mark.parametrize("steps", range(6))
def test_an_abort_at_any_step_gives_all_blocks_back_and_leaves_the_others_alone(
    model: TransformersModel, expected: list[list[int]], steps: int
) -> None:
    backend = backend_of(model, 3, prefill_max_tokens=7, prefix_cache=False)
    driver = Driver(backend)
    for item in all_requests():
        backend.add(item)
    for _ in range(steps):
        driver.step()
    assert backend.abort(3) and not backend.abort(3)
    held = len(driver.tokens.get(3, []))
    driver.run([])
    assert len(driver.tokens.get(3, [])) == held, "no token after the abort"
    assert {row: tokens for row, tokens in driver.tokens.items() if row != 3} == {
        row: tokens for row, tokens in enumerate(expected) if row != 3
    }
    assert backend._blocks_used() == 0 and free_blocks(backend) == backend._cache.num_blocks


def test_an_unknown_or_finished_row_cannot_be_aborted(model: TransformersModel) -> None:
    backend = backend_of(model)
    Driver(backend).run([request(0, [1], 1)])
    assert not backend.abort(0) and not backend.abort(99)


def test_those_that_were_evicted_are_served_although_the_one_they_wait_for_is_aborted(model: TransformersModel) -> None:
    """After an eviction it admits nobody before a request has finished; if the last one is aborted, none ever does."""
    backend = crowded(model, prefix_cache=False)
    driver = Driver(backend)
    for row in range(4):
        backend.add(request(row, [row + 1] * 16, 24))
    while not any(step.preemptions for step in driver.steps):
        driver.step()
    running = [row for row, evicted_ns in backend._running.items() if not evicted_ns]
    for row in running:
        assert backend.abort(row)
    driver.run([])
    assert set(driver.finish) == set(range(4)) - set(running)


# What it cannot do


def test_a_request_that_draws_is_failed_alone(model: TransformersModel, expected: list[list[int]]) -> None:
    driver = Driver(backend_of(model))
    driver.run([request(0, [1], 3, Sampling(temperature=1.0)), request(1, PROMPTS[0], NEW)])
    assert [failure[:2] for step in driver.steps for failure in step.failed] == [(0, Reason.BACKEND_ERROR)]
    assert driver.tokens == {1: expected[0]}


def test_a_cache_beyond_the_memory_is_refused(model: TransformersModel) -> None:
    with pytest.raises(ConfigError, match="--engine transformers"):
        backend_of(model, kv_blocks=2**31 - 1)


def test_another_version_of_transformers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_model.transformers, "__version__", "5.99.0")
    with pytest.raises(ConfigError, match=r"needs transformers 5\.24, 5\.99\.0 is there"):
        load_transformers_model("builtin:gpt2", "cpu", "float32")


def test_a_model_that_it_cannot_load_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(ConfigError, match="no-such-model") as caught:
        load_transformers_model(str(tmp_path), "cpu", "float32")
    assert "\n" not in str(caught.value)


def test_pickle_weights_are_refused(tmp_path: Path) -> None:
    save_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    weights = {f"transformer.{name}": tensor for name, tensor in tiny_weights(TINY).items()}
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="cannot load"):
        load_transformers_model(str(tmp_path), "cpu", "float32")


# What the report and ingress are told


def test_it_says_what_it_is(model: TransformersModel) -> None:
    said = backend_of(model, block_size=8, kv_blocks=100).describe()
    assert str(said["engine"]).startswith("transformers 5.24")
    assert (said["architecture"], said["dtype"], said["block_size"]) == ("GPT2LMHeadModel", "float32", 8)
    assert (said["paged_attn"], said["cuda_graph"], said["nvtx"], said["prefix_cache"]) == (True, False, False, True)


def test_its_limits_are_the_model_s(model: TransformersModel) -> None:
    assert backend_of(model).capacity() == (TINY.max_positions, TINY.vocab_size, (EOS,))


def test_a_prompt_of_the_longest_length_is_served(model: TransformersModel) -> None:
    driver = Driver(backend_of(model))
    driver.run([request(0, [1] * (TINY.max_positions - 2), 2)])
    assert len(driver.tokens[0]) == 2


def test_closing_drops_model_and_cache(model: TransformersModel) -> None:
    backend = backend_of(model)
    backend.close()
    assert not hasattr(backend, "_processor")
