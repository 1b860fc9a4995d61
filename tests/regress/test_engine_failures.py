"""Failures that public trackers report for engines of this kind, as far as scheduler and block pool can have them.

Each docstring names the row of `research/failures.md`. The fake model keeps at every position a hash of all tokens up
to it and refuses to compute over anything else, so "the same tokens" here means that every K and V was right.
"""

from __future__ import annotations

import random

import pytest
from fake_kv import Engine, expected_output, make_engine, plain_request

from engine_proc.backends.base import Failure
from engine_proc.scheduling.batch import Batch
from engine_proc.scheduling.scheduler import Policy
from harness.common.errors import ConfigError
from harness.common.stamps import Reason

POLICIES = ("decode_first", "prefill_first")
BLOCK = 4


def run_one(engine: Engine, row: int, prompt: list[int], new_tokens: int) -> list[int]:
    engine.scheduler.add(plain_request(row, prompt, new_tokens))
    engine.run()
    return engine.outputs[row]


def run_all(engine: Engine, prompts: list[list[int]], new_tokens: int) -> None:
    """All at once; every output is what the model gives for the prompt alone."""
    for row, prompt in enumerate(prompts):
        engine.scheduler.add(plain_request(row, prompt, new_tokens))
    engine.run()
    assert engine.outputs == {row: expected_output(prompt, new_tokens) for row, prompt in enumerate(prompts)}
    assert_all_free(engine)


def assert_all_free(engine: Engine) -> None:
    assert engine.pool.num_used == 0
    assert len(engine.pool._blank) + len(engine.pool._evictable) == engine.pool.capacity
    engine.scheduler.check_integrity()


def run_overlapped(engine: Engine, most_steps: int = 2_000) -> int:
    """Each step is formed before the tokens of the one before it are known; how many steps that took."""
    flying: Batch | None = None
    steps = 0
    while engine.scheduler.has_work() or flying:
        ahead = engine.scheduler.schedule()
        engine.batches.append(ahead)
        if flying:
            tokens = engine.model.forward(flying.chunks)
            sampled = [chunk.sequence for chunk in flying.chunks if chunk.samples]
            for sequence, token in zip(sampled, tokens, strict=True):
                if not sequence.ended:
                    engine.take(sequence, token)
            engine.scheduler.commit(flying)
        engine.scheduler.check_integrity()
        flying = ahead if ahead.chunks else None
        steps += 1
        assert steps <= most_steps, "no end in sight"
    return steps


@pytest.mark.parametrize(("tokens", "blocks"), [(12, 3), (13, 4), (16, 4), (17, 5)])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_larger_than_the_pool_fails_at_once_and_blocks_nobody(
    tokens: int, blocks: int, policy: Policy
) -> None:
    """Row 7: it waited for ever, and everyone behind it; an exact fit was refused."""
    engine = make_engine(4, BLOCK, policy=policy)
    engine.scheduler.add(plain_request(0, tokens - 5, 6))  # the sixth new token needs no slot
    engine.scheduler.add(plain_request(1, 4, 2))
    failed = [Failure(0, Reason.TOO_LARGE_FOR_CACHE, blocks, 4)] if blocks > 4 else []
    assert engine.step().failed == failed
    engine.run()
    assert sorted(engine.outputs) == ([1] if failed else [0, 1])
    assert_all_free(engine)


@pytest.mark.parametrize("name", ["blocks", "block_size", "max_batch", "prefill_batch", "budget"])
def test_a_bound_of_zero_is_refused_with_its_name(name: str) -> None:
    """Row 10: it became a silent deadlock at the first request."""
    says = {"blocks": "num_blocks", "max_batch": "max_batch_size", "prefill_batch": "prefill_max_batch_size",
            "budget": "max_tokens_per_step"}.get(name, name)  # fmt: skip
    with pytest.raises(ConfigError, match=says):
        make_engine(**{name: 0})
    least: dict[str, int] = {"blocks": 8, "block_size": 1, "max_batch": 1, "prefill_batch": 1, "budget": 1}
    run_all(make_engine(**least), [[1, 2, 0], [2, 1]], new_tokens=3)  # the least of each works


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("new_tokens", [13, 14, 200])
def test_a_sequence_that_would_outgrow_the_pool_alone_is_an_error_not_a_loop(policy: Policy, new_tokens: int) -> None:
    """Row 11: KV exhausted in decode ended the engine; retrying computed into the same wall for ever."""
    engine = make_engine(4, BLOCK, policy=policy)
    engine.scheduler.add(plain_request(0, 4, new_tokens))
    assert len(engine.run(most_steps=20)) <= 14
    assert (0 in engine.outputs) == (new_tokens <= 13)
    assert [failure.row for failure in engine.failed] == ([] if new_tokens <= 13 else [0])
    assert engine.preemptions == 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("chunked", [True, False])
def test_a_preempted_sequence_that_hits_the_prefix_cache_computes_what_the_hit_leaves(
    policy: Policy, chunked: bool
) -> None:
    """Row 12: its tokens were counted before the hit was looked up."""
    rng = random.Random(12)
    common = [rng.randrange(3) for _ in range(11)]
    prompts = [common[: rng.randrange(12)] + [rng.randrange(3) for _ in range(rng.randrange(1, 6))] for _ in range(128)]
    engine = make_engine(16, BLOCK, max_batch=8, policy=policy, chunked=chunked, budget=16)
    run_all(engine, prompts, new_tokens=11)
    assert engine.preemptions > 10 and engine.pool.hit_tokens > 100
    again = {row for batch in engine.batches for row, _ in batch.readmitted}
    chunks = [chunk for batch in engine.batches for chunk in batch.chunks if chunk.sequence.row in again]
    assert any(chunk.start and not chunk.is_decode for chunk in chunks), "no readmission found anything in the cache"


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("length", range(BLOCK * 2 - 2, BLOCK * 4 + 2))
def test_a_preemption_at_any_length_around_a_block_boundary_loses_no_token(length: int, prefix_cache: bool) -> None:
    """Row 13: the recompute dropped a token, or took the sequence for a new one."""
    engine = make_engine(64, BLOCK, prefix_cache=prefix_cache, max_batch=2)
    engine.scheduler.add(plain_request(0, [1] * 5, 24))
    while len(engine.scheduler._running.get(0, engine).token_ids if engine.batches else []) < length:  # type: ignore
        engine.step()
    sequence = engine.scheduler._running[0]
    output = list(sequence.output_ids)
    engine.scheduler._preempt(sequence)
    batch = engine.step()
    assert sequence.output_ids[: len(output)] == output and len(sequence.output_ids) == len(output) + 1
    assert [row for row, _ in batch.readmitted] == [0] and not batch.admitted
    assert sum(chunk.length for chunk in batch.chunks) == length - (length - 1) // BLOCK * BLOCK * prefix_cache
    engine.run()
    assert engine.outputs[0] == expected_output([1] * 5, 24)


@pytest.mark.parametrize("blocks", [1, 2, 5])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_fully_cached_prompt_of_whole_blocks_still_computes_a_token(blocks: int, policy: Policy) -> None:
    """Row 14: zero query tokens went to the kernel."""
    prompt = [2, 1, 0, 2] * blocks
    engine = make_engine(16, BLOCK, policy=policy)
    first = run_one(engine, 0, prompt, 5)
    before = engine.model.computed_tokens
    assert run_one(engine, 1, prompt, 5) == first == expected_output(prompt, 5)
    assert engine.cached == {0: 0, 1: (blocks - 1) * BLOCK}
    assert engine.model.computed_tokens - before == BLOCK + 4


@pytest.mark.parametrize("chunked", [True, False])
def test_identical_prompts_in_one_step_do_not_hit_what_is_not_computed_yet(chunked: bool) -> None:
    """Row 15: blocks were registered when they were allocated."""
    prompt = [1, 2, 0, 1, 1, 2, 0, 0, 2]
    engine = make_engine(64, BLOCK, max_batch=8, prefill_batch=8, budget=6 if chunked else 64, chunked=chunked)
    for row in range(5):
        engine.scheduler.add(plain_request(row, prompt, 2))
    first = engine.step()
    assert len(first.admitted) == (2 if chunked else 5)
    assert all(chunk.start == 0 for chunk in first.chunks)
    engine.scheduler.add(plain_request(5, prompt, 2))
    engine.run()
    assert engine.outputs == {row: expected_output(prompt, 2) for row in range(6)}
    assert engine.cached[0] == 0 and engine.cached[5] == 8
    # In chunks, two share the first step; the others come when the first one's blocks are committed.
    assert [engine.cached[row] for row in range(1, 5)] == ([0, 8, 8, 8] if chunked else [0, 0, 0, 0])


@pytest.mark.parametrize("shared", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1])
def test_a_shared_prefix_around_the_block_size_gives_what_no_cache_gives(shared: int) -> None:
    """Row 16: a prefix of exactly one block corrupted the output."""
    engine, plain = make_engine(32, BLOCK), make_engine(32, BLOCK, prefix_cache=False)
    for row, tail in enumerate(([], [101], [102, 2, 2, 2, 2], [103, 0, 1])):
        prompt = [0, 1, 2, 1, 0, 2, 2, 1, 1, 0][:shared] + tail
        assert run_one(engine, row, prompt, 6) == run_one(plain, row, prompt, 6) == expected_output(prompt, 6)
        if len(prompt) > BLOCK and row:
            assert engine.cached[row] == min((len(prompt) - 1) // BLOCK, shared // BLOCK) * BLOCK
    assert plain.pool.hit_tokens == 0


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_overlap_in_a_tiny_pool_goes_on_and_takes_no_block_from_a_step_in_flight(prefix_cache: bool) -> None:
    """Row 17: freed blocks stayed with the step in flight, the loop saw no gain and preempted everyone."""
    rng = random.Random(17)
    prompts = [[rng.randrange(3) for _ in range(rng.randrange(1, 12))] for _ in range(40)]
    engine = make_engine(9, BLOCK, prefix_cache=prefix_cache, budget=8)
    for row, prompt in enumerate(prompts):
        engine.scheduler.add(plain_request(row, prompt, 14))
    steps = run_overlapped(engine)
    assert engine.outputs == {row: expected_output(prompt, 14) for row, prompt in enumerate(prompts)}
    assert 10 < engine.preemptions < 2 * len(prompts)
    assert max(batch.preemptions for batch in engine.batches) <= 2
    assert steps < sum(len(prompt) + 14 for prompt in prompts)
    assert_all_free(engine)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("chunked", [True, False])
def test_nobody_waits_while_nothing_runs(policy: Policy, chunked: bool) -> None:
    """Row 18: "running 0, waiting N" for ever; two requests held half of the pool each."""
    engine = make_engine(8, BLOCK, policy=policy, chunked=chunked, budget=5, prefix_cache=False)
    for row in range(6):
        engine.scheduler.add(plain_request(row, 20, 12))  # 8 blocks in the end: one at a time, if it must be
    while engine.scheduler.has_work():
        idle = not engine.scheduler.num_running
        batch = engine.step()
        assert batch.admitted or batch.readmitted or not idle
        assert len(engine.batches) < 6 * (20 + 12)
    assert len(engine.outputs) == 6


@pytest.mark.parametrize("policy", POLICIES)
def test_a_hog_prefill_cannot_starve_newcomers(policy: Policy) -> None:
    """Row 18: a long prompt in chunks ate the whole budget. Half of every step is the newcomers'."""
    engine = make_engine(2_000, BLOCK, policy=policy, budget=32, max_batch=8, prefix_cache=False)
    engine.scheduler.add(plain_request(0, 6_000, 1))
    for row in range(1, 25):
        engine.step()
        engine.scheduler.add(plain_request(row, 16, 1))
        if row > 2:
            assert row - 2 in engine.outputs, "a newcomer waited for more than two steps"
    assert 0 not in engine.outputs


@pytest.mark.parametrize("policy", POLICIES)
def test_room_that_comes_free_is_given_away_in_the_next_step(policy: Policy) -> None:
    """Row 19: "the batch is full" was remembered, and the next one waited until somebody finished."""
    engine = make_engine(64, BLOCK, policy=policy, budget=8, max_batch=4)
    for row in range(3):
        engine.scheduler.add(plain_request(row, [row] * 11, 30))
    while engine.scheduler.num_waiting or any(not chunk.is_decode for chunk in engine.step().chunks):
        engine.step()
    engine.scheduler.add(plain_request(3, [7] * 3, 30))
    assert engine.step().admitted == [3]
    engine.scheduler.add(plain_request(4, [8] * 3, 30))
    assert engine.step().admitted == []  # four run
    engine.scheduler.abort(1)
    assert engine.step().admitted == [4]


def test_preemptions_are_counted_per_request_and_bounded() -> None:
    """Row 20: a storm of them went unseen. Each admission leaves everyone a block to grow by, so they stay rare."""
    engine = make_engine(24, BLOCK, max_batch=8, prefix_cache=False)
    for row in range(48):
        engine.scheduler.add(plain_request(row, 6, 30))  # 9 blocks each in the end
    engine.run()
    readmissions = [row for batch in engine.batches for row, _ in batch.readmitted]
    assert engine.preemptions == len(readmissions) == sum(engine.preempted.values()) > 0
    assert engine.preempted == {row: readmissions.count(row) for row in range(48)}
    assert engine.preemptions <= 48 and max(engine.preempted.values()) <= 3


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("chunk", [1, BLOCK - 1, BLOCK, BLOCK + 1, 1_000])
def test_every_chunk_size_computes_each_token_once(chunk: int, policy: Policy, prefix_cache: bool) -> None:
    """Row 21: progress was not recorded, and the same chunk came for ever."""
    engine = make_engine(64, BLOCK, budget=chunk, policy=policy, prefix_cache=prefix_cache)
    prompts = [[row, *([1] * (3 + 5 * row))] for row in range(6)]
    run_all(engine, prompts, new_tokens=4)
    assert engine.preemptions == 0
    assert engine.model.computed_tokens == sum(len(prompt) + 3 for prompt in prompts) - engine.pool.hit_tokens


def test_identical_prompts_with_unequal_progress_keep_their_own_blocks() -> None:
    """Row 22: duplicate pages were freed while a table still pointed at them."""
    prompt = [1, 0, 2, 2] * 5
    engine = make_engine(64, BLOCK, budget=5)
    engine.scheduler.add(plain_request(0, prompt, 9))
    engine.step()
    engine.scheduler.add(plain_request(1, prompt, 3))  # checks its books after every step
    engine.run()
    assert engine.outputs == {0: expected_output(prompt, 9), 1: expected_output(prompt, 3)}
    assert run_one(engine, 2, prompt, 9) == engine.outputs[0]
    assert_all_free(engine)


@pytest.mark.parametrize("committed", [0, 1, 2, 3])
def test_an_abort_in_the_middle_of_a_prefill_leaves_no_wrong_prefix_behind(committed: int) -> None:
    """Row 23: chunks were inserted before they were computed, and served to everyone after the abort."""
    prompt = [1, 0, 2, 2, 1] * 4
    engine = make_engine(64, BLOCK, budget=6)
    engine.scheduler.add(plain_request(0, prompt, 5))
    for _ in range(committed):
        engine.step()
    engine.scheduler.abort(0)
    assert run_one(engine, 1, prompt, 5) == expected_output(prompt, 5)
    assert engine.cached[1] == committed * 6 // BLOCK * BLOCK


@pytest.mark.parametrize("length", [3, 4, 5, 8, 13, 16])
def test_a_warm_prefix_gives_what_a_cold_one_gave_and_was_hit(length: int) -> None:
    """Row 25: warm differed from cold, and no test looked at it; one that never hits would prove nothing."""
    prompt = [(i * i) % 3 for i in range(length)]
    engine = make_engine(64, BLOCK)
    cold = run_one(engine, 0, prompt, 9)
    assert engine.pool.hit_tokens == 0
    assert run_one(engine, 1, prompt, 9) == cold
    assert engine.pool.hit_tokens == engine.cached[1] == (length - 1) // BLOCK * BLOCK
    engine.pool.reset_prefix_cache()
    assert run_one(engine, 2, prompt, 9) == cold
    assert engine.cached[2] == engine.pool.hit_tokens == 0


def test_a_recompute_after_a_preemption_is_no_hit() -> None:
    """Row 26: it finds its own blocks again, and the hit rate went up with every preemption."""
    prompts = [[row, 1, 2, 0, 1, 2, 0] for row in range(8)]  # nothing in common
    engine = make_engine(8, BLOCK, max_batch=4)
    run_all(engine, prompts, new_tokens=12)
    again = {row for batch in engine.batches for row, _ in batch.readmitted}
    assert any(chunk.sequence.row in again and chunk.start and chunk.length > 1
               for batch in engine.batches for chunk in batch.chunks)  # fmt: skip
    assert engine.pool.hit_tokens == 0 and set(engine.cached.values()) == {0}
    assert engine.pool.query_tokens == sum(map(len, prompts))


def test_blocks_are_free_at_the_commit_and_not_before() -> None:
    """Row 28: a pool row was freed while the forward pass still read it."""
    engine = make_engine(2, BLOCK, max_batch=2)
    engine.scheduler.add(plain_request(0, 8, 1))
    engine.scheduler.add(plain_request(1, [1] * 8, 1))
    batch = engine.scheduler.schedule()
    assert engine.scheduler.abort(0)
    assert engine.pool.num_free == 0
    assert engine.scheduler.schedule().chunks == []  # row 1 would get the very blocks
    engine.model.forward(batch.chunks)
    engine.scheduler.commit(batch)
    assert engine.pool.num_free == 2
    assert engine.step().admitted == [1]


STATES = (
    "queued", "mid-chunk", "decoding", "in flight", "two in flight", "preempted", "too large", "finished", "unknown",
)  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_an_abort_in_any_state_ends_the_request_once_and_gives_all_blocks_back(state: str) -> None:
    """Rows 29 and 32: an abort in flight freed twice, or never."""
    engine = make_engine(8, BLOCK, budget=6)
    engine.scheduler.add(plain_request(0, 100 if state == "too large" else 11, 4))
    batches = []
    if state == "finished":
        engine.run()
    elif state in ("decoding", "two in flight", "preempted"):
        engine.step(), engine.step()
    elif state == "mid-chunk":
        engine.step()
    if "in flight" in state:
        batches = [engine.scheduler.schedule() for _ in range(2 if state == "two in flight" else 1)]
    if state == "preempted":
        engine.scheduler._preempt(engine.scheduler._running[0])
    row = 5 if state == "unknown" else 0
    assert engine.scheduler.abort(row) == (state not in ("finished", "unknown"))
    assert not engine.scheduler.abort(row)
    for batch in batches:
        assert engine.pool.num_used > 0
        engine.model.forward(batch.chunks)
        assert not engine.scheduler.finish(batch.chunks[0].sequence)  # its token comes late
        engine.scheduler.commit(batch)
        engine.scheduler.check_integrity()
    engine.run()
    assert not engine.failed and (0 in engine.outputs) == (state in ("finished", "unknown"))
    assert_all_free(engine)


@pytest.mark.parametrize("budget", [1, 3, 4, 5])
@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("in_flight", [True, False])
def test_an_abort_at_any_chunk_offset_frees_each_block_once(budget: int, steps: int, in_flight: bool) -> None:
    """Row 30: the unaligned tail was freed twice within one page."""
    engine = make_engine(16, BLOCK, budget=budget)
    engine.scheduler.add(plain_request(0, [1] * 22, 4))
    engine.scheduler.add(plain_request(1, [1] * 22, 4))
    for _ in range(steps):
        engine.step()
    batch = engine.scheduler.schedule() if in_flight else None
    engine.scheduler.abort(0)
    engine.scheduler.check_integrity()
    if batch is not None:
        tokens = engine.model.forward(batch.chunks)
        engine.scheduler.commit(batch)
        for chunk, token in zip([chunk for chunk in batch.chunks if chunk.samples], tokens, strict=True):
            if not chunk.sequence.ended:
                engine.take(chunk.sequence, token)
    engine.run()
    assert engine.outputs[1] == expected_output([1] * 22, 4)
    assert_all_free(engine)


@pytest.mark.parametrize("overlapped", [True, False])
def test_aborts_at_random_hurt_nobody_else_and_all_blocks_come_back(overlapped: bool) -> None:
    """Rows 31 and 32: late news of a freed request ended the engine; blocks of aborted ones were never returned."""
    rng = random.Random(31)
    engine = make_engine(14, BLOCK, max_batch=5, budget=9)
    aborted = set()
    prompts = [[rng.randrange(2) for _ in range(rng.randrange(1, 20))] for _ in range(120)]
    for row, prompt in enumerate(prompts):
        engine.scheduler.add(plain_request(row, prompt, rng.randrange(1, 15)))
    flying: list[Batch] = []
    while engine.scheduler.has_work() or flying:
        if (batch := engine.scheduler.schedule()).chunks:
            flying.append(batch)
        row = rng.randrange(140)  # also rows that ended, and rows that never were
        if rng.random() < 0.3 and engine.scheduler.abort(row):
            aborted.add(row)
        if len(flying) > overlapped or (flying and not batch.chunks):
            landed = flying.pop(0)
            tokens = engine.model.forward(landed.chunks)
            engine.scheduler.commit(landed)
            for chunk, token in zip([chunk for chunk in landed.chunks if chunk.samples], tokens, strict=True):
                if not chunk.sequence.ended:
                    engine.take(chunk.sequence, token)
        engine.scheduler.check_integrity()
    assert len(aborted) > 10 and len(engine.outputs) > 10
    assert aborted.isdisjoint(engine.outputs) and aborted | engine.outputs.keys() == set(range(120))
    assert all(output == expected_output(prompts[row], len(output)) for row, output in engine.outputs.items())
    assert_all_free(engine)


@pytest.mark.parametrize("abort_first", [True, False])
def test_an_abort_in_the_final_step_is_an_abort_or_a_completion_by_what_comes_first(abort_first: bool) -> None:
    """Row 33: the client had been told that it was aborted, the report said completed."""
    engine = make_engine(8, BLOCK)
    engine.scheduler.add(plain_request(0, 5, 1))
    batch = engine.scheduler.schedule()
    token = engine.model.forward(batch.chunks)[0]
    sequence = batch.chunks[0].sequence
    if abort_first:
        assert engine.scheduler.abort(0)
        engine.scheduler.commit(batch)
        assert sequence.ended and not engine.scheduler.finish(sequence)
    else:
        engine.scheduler.commit(batch)
        engine.take(sequence, token)
        assert not engine.scheduler.abort(0)
    assert (0 in engine.outputs) == (not abort_first)
    assert_all_free(engine)
