"""Failures that public trackers report of engines' caches, chunks, overlap and graphs, with a real model behind them.

Row numbers are those of shared/research/failures.md; the scheduler's own share of the rows is in
test_engine_failures.py. The model's weights are large, so that every token depends on every K and V before it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from tiny_gpt2 import NO_EOS, TINY, Driver, one_thread, request, save_model
from torch import Tensor

from engine_proc.backends.base import EngineRequest
from engine_proc.backends.native import NativeBackend
from engine_proc.runner.graphs import CapturedDecode
from engine_proc.scheduling.batch import Chunk
from engine_proc.scheduling.sequence import Sequence as Running
from harness.common.protocol import Sampling

BLOCK = 8
NEW = 10
#: So many new tokens that a sequence outgrows the block that its admission leaves free for it.
LONG = 3 * BLOCK


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("tiny"))


def prompt(length: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(TINY.vocab_size) for _ in range(length)]


class Engine:
    """A native backend that keeps every logit and checks its block pool after each step."""

    def __init__(self, model: str, batch: int = 8, **options: Any) -> None:
        self.logits: dict[int, list[Tensor]] = {}
        options = {"block_size": BLOCK, **options}
        self.backend = NativeBackend(
            model, "cpu", "float32", batch, batch, itertools.count(1).__next__, logits_observer=self._observe, **options
        )
        self.driver = Driver(self.backend)
        self._rows = itertools.count()

    def run(self, texts: Sequence[list[int]], new: int = NEW, sampling: Sampling = NO_EOS) -> list[list[int]]:
        """The tokens of each prompt."""
        rows = [next(self._rows) for _ in texts]
        done = self.driver.run([request(row, text, new, sampling) for row, text in zip(rows, texts, strict=True)])
        return [done[row] for row in rows]

    @property
    def preemptions(self) -> int:
        return sum(step.preemptions for step in self.driver.steps)

    @property
    def cached(self) -> list[int]:
        """Cached tokens of the requests that had any, in order of admission."""
        return [tokens for step in self.driver.steps for _, tokens in step.cached_tokens]

    def _observe(self, rows: list[int], step: Tensor) -> None:
        for row, values in zip(rows, step, strict=True):
            self.logits.setdefault(row, []).append(values.clone())


def alone(model: str, texts: Sequence[list[int]], new: int = NEW, **options: Any) -> list[list[int]]:
    return [Engine(model, 1, prefix_cache=False, **options).run([text], new)[0] for text in texts]


SHARED = [prompt(3 * BLOCK) + prompt(5, seed) for seed in range(1, 9)]


@pytest.mark.parametrize("options", [{}, {"prefill_max_tokens": 5, "policy": "decode_first"}], ids=["whole", "chunked"])
def test_row_12_a_preempted_sequence_that_hits_the_prefix_cache_gives_the_same_tokens(
    tiny: str, options: dict[str, Any]
) -> None:
    engine = Engine(tiny, kv_blocks=13, **options)
    assert engine.run(SHARED, LONG) == alone(tiny, SHARED, LONG)
    assert engine.preemptions > 0
    assert max(engine.cached) >= 3 * BLOCK


@pytest.mark.parametrize("length", range(2 * BLOCK - 2, 2 * BLOCK + 3))
def test_row_13_preempted_at_any_length_around_a_block_boundary_loses_no_token(tiny: str, length: int) -> None:
    texts = [prompt(length, seed) for seed in range(3)]
    engine = Engine(tiny, kv_blocks=8)
    assert engine.run(texts, LONG) == alone(tiny, texts, LONG)
    assert engine.preemptions > 0


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("paged", [True, False])
def test_row_14_a_fully_cached_prompt_of_whole_blocks_computes_at_least_one_token(
    tiny: str, blocks: int, paged: bool
) -> None:
    text = prompt(blocks * BLOCK)
    engine = Engine(tiny, paged_attn=paged)
    cold, warm = engine.run([text]), engine.run([text])
    assert cold == warm == alone(tiny, [text])
    assert engine.cached == ([(blocks - 1) * BLOCK] if blocks > 1 else [])
    assert all(step.prefill_tokens + step.decode_rows > 0 for step in engine.driver.steps)


@pytest.mark.parametrize("options", [{}, {"prefill_max_tokens": 6}], ids=["whole", "chunked"])
def test_row_15_identical_prompts_in_one_step_do_not_hit_what_is_not_computed_yet(
    tiny: str, options: dict[str, Any]
) -> None:
    text = prompt(3 * BLOCK + 2)
    engine = Engine(tiny, **options)
    expected = alone(tiny, [text])[0]
    assert engine.run([text] * 4) == [expected] * 4
    if not options:
        assert engine.cached == []  # all four were admitted before the first was committed
    assert engine.run([text]) == [expected]
    assert engine.cached[-1] == 3 * BLOCK


@pytest.mark.parametrize("shared", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_row_16_a_shared_prefix_of_any_length_around_a_block_changes_nothing(tiny: str, shared: int) -> None:
    texts = [prompt(shared) + prompt(7, seed) for seed in (1, 2)]
    engine = Engine(tiny)
    assert [engine.run([text])[0] for text in texts] == alone(tiny, texts)
    assert engine.cached == ([shared // BLOCK * BLOCK] if shared >= BLOCK else [])


@pytest.mark.parametrize("chunk", [1, BLOCK - 1, BLOCK, BLOCK + 1, 1000])
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("paged", [True, False])
def test_row_21_every_chunk_size_gives_the_logits_of_one_shot(tiny: str, chunk: int, cache: bool, paged: bool) -> None:
    text = prompt(3 * BLOCK + 3)
    whole = Engine(tiny, prefix_cache=False)
    cut = Engine(tiny, prefill_max_tokens=chunk, prefix_cache=cache, paged_attn=paged)
    assert whole.run([text, text[:5]], 3) == cut.run([text, text[:5]], 3)
    prefills = [step.prefill_tokens for step in cut.driver.steps if step.prefill_tokens]
    assert max(prefills) <= chunk and sum(prefills) == len(text) + 5
    for row in (0, 1):
        torch.testing.assert_close(torch.stack(cut.logits[row]), torch.stack(whole.logits[row]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("paged", [True, False])
def test_row_25_cold_and_warm_prefix_give_the_same_tokens_and_logits(tiny: str, paged: bool) -> None:
    texts = [prompt(length, length) for length in (BLOCK, 3 * BLOCK - 1, 3 * BLOCK + 1, 100)]
    engine = Engine(tiny, paged_attn=paged)
    cold, warm = engine.run(texts), engine.run(texts)
    assert cold == warm == alone(tiny, texts)
    assert engine.cached == [(len(text) - 1) // BLOCK * BLOCK for text in texts if len(text) > BLOCK]  # no empty test
    for row in range(4):
        torch.testing.assert_close(
            torch.stack(engine.logits[row]), torch.stack(engine.logits[row + 4]), atol=1e-4, rtol=0
        )
    engine.backend.reset_prefix_cache()
    hits = len(engine.cached)
    assert engine.run(texts) == cold
    assert len(engine.cached) == hits


def test_row_26_what_a_recompute_finds_is_no_prefix_hit(tiny: str) -> None:
    texts = [prompt(2 * BLOCK + 3, seed) for seed in range(4)]
    engine = Engine(tiny, kv_blocks=9)
    engine.run(texts, LONG)
    assert engine.preemptions > 0
    assert engine.cached == []
    assert engine.backend.pool.hit_tokens == 0


def with_graphs(engine: Engine, capture: Callable[[Callable[[], None]], Callable[[], None]]) -> CapturedDecode:
    """Decode through the fixed shapes of captured graphs, where no device can capture them."""
    parts = engine.backend._parts
    graphs = CapturedDecode(parts.model, parts.cache, torch.device("cpu"), 4, TINY.max_positions, capture)
    parts.graphs = parts.runner.graphs = graphs
    with torch.inference_mode():
        graphs.warm_up()
    return graphs


def replayed(function: Callable[[], None]) -> Callable[[], None]:
    """What capturing does to memory: the function has run before, and runs again on the same tensors."""
    function()
    return function


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_rows_36_and_37_padded_replays_over_a_pool_of_nan_are_the_eager_steps(tiny: str, rows: int) -> None:
    texts = [prompt(BLOCK * row + 5, row) for row in range(rows)]
    engine = Engine(tiny)
    engine.backend._parts.cache.fill(float("nan"))
    graphs = with_graphs(engine, replayed)
    engine.backend._parts.cache.fill(float("nan"))
    last = engine.backend._parts.cache.num_blocks - 1
    assert engine.run(texts) == alone(tiny, texts)
    assert graphs.late_captures == 0
    assert engine.backend._parts.cache.keys(0)[last].isnan().all()
    assert sum(step.late_captures for step in engine.driver.steps) == 0


def test_row_37_a_step_that_fits_no_graph_runs_without_one(tiny: str) -> None:
    texts = [prompt(5, row) for row in range(6)]
    engine = Engine(tiny)
    graphs = with_graphs(engine, replayed)
    assert engine.run(texts) == alone(tiny, texts)
    assert graphs.late_captures == 0


@pytest.mark.parametrize("policy", ["prefill_first", "decode_first"])
@pytest.mark.parametrize("tokens", [5, BLOCK, 1000])
@pytest.mark.parametrize("blocks", [9, 200])
@pytest.mark.parametrize("captured", [False, True])
def test_row_38_overlap_gives_the_tokens_of_no_overlap(
    tiny: str, policy: str, tokens: int, blocks: int, captured: bool
) -> None:
    texts = [prompt(2 * BLOCK + length, length) for length in range(6)]
    options = {"kv_blocks": blocks, "prefill_max_tokens": tokens, "policy": policy}
    engine = Engine(tiny, overlap=True, **options)
    if captured:
        with_graphs(engine, replayed)
    assert engine.run(texts, LONG) == alone(tiny, texts, LONG)
    assert (engine.preemptions > 0) == (blocks == 9)
    assert not engine.backend.has_work()
    assert engine.backend.pool.num_used == 0


def test_row_38_a_placeholder_never_reaches_the_model(tiny: str) -> None:
    engine = Engine(tiny)
    sequence = Running(EngineRequest(0, [1, -1, 2], 1, NO_EOS), block_table=[1])
    with pytest.raises(AssertionError, match="negative"), torch.inference_mode():
        engine.backend._parts.runner.forward([Chunk(sequence, 0, 3)])


@pytest.mark.parametrize("stop", [0, 1, 4])
def test_row_38_an_end_that_overlap_sees_one_step_late_costs_no_neighbour_a_token(
    tiny: str, tmp_path_factory: pytest.TempPathFactory, stop: int
) -> None:
    texts = [prompt(9, row) for row in range(3)]
    expected = alone(tiny, texts)
    model = save_model(tmp_path_factory.mktemp("eos"), eos_token_id=expected[1][stop])
    plain, overlapped = Engine(model), Engine(model, overlap=True)
    assert plain.run(texts, sampling=Sampling()) == overlapped.run(texts, sampling=Sampling())
    assert plain.driver.finish == overlapped.driver.finish
    assert overlapped.backend.pool.num_used == 0


@pytest.mark.parametrize("after_steps", range(5))
def test_row_29_an_abort_with_a_step_in_flight_frees_once_and_disturbs_nobody(tiny: str, after_steps: int) -> None:
    texts = [prompt(9, row) for row in range(3)]
    engine = Engine(tiny, overlap=True, prefill_max_tokens=6)
    for row, text in enumerate(texts):
        engine.backend.add(request(row, text, NEW))
    for _ in range(after_steps):
        engine.driver.step()
    assert engine.backend.abort(1)
    assert not engine.backend.abort(1)
    done = engine.driver.run([])
    assert [done[row] for row in (0, 2)] == [alone(tiny, texts)[row] for row in (0, 2)]
    assert len(done.get(1, [])) <= after_steps
    assert engine.backend.pool.num_used == 0


def test_row_39_greedy_and_sampled_rows_share_a_captured_step(tiny: str) -> None:
    text = prompt(9)
    samplings = [NO_EOS, Sampling(0.9, 0, 1.0, 5, False), Sampling(1.1, 7, 0.9, 6, False, min_p=0.01), NO_EOS]
    requests = [request(row, text, NEW, sampling) for row, sampling in enumerate(samplings)]
    engine = Engine(tiny, overlap=True)
    with_graphs(engine, replayed)
    together = engine.driver.run(requests)
    assert together[0] == together[3] == alone(tiny, [text])[0]
    for row in (1, 2):
        assert together[row] == Engine(tiny, 1).driver.run([requests[row]])[row]
        assert together[row] != together[0]


@pytest.mark.parametrize("batch", [2, 3, 8])
def test_row_40_greedy_output_in_float32_does_not_depend_on_the_batch(tiny: str, batch: int) -> None:
    texts = [prompt(length, length) for length in (1, 5, BLOCK, BLOCK + 1, 30, 60, 61, 90)]
    assert Engine(tiny, batch).run(texts, 20) == alone(tiny, texts, 20)
