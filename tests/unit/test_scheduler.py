from __future__ import annotations

import pytest
from fake_kv import Engine, expected_output, make_engine, plain_request
from fakes import FakeClock

from engine_proc.backends.base import Failure
from engine_proc.scheduling.batch import Batch, Chunk
from engine_proc.scheduling.block_pool import BlockPool
from engine_proc.scheduling.scheduler import Policy, Scheduler
from engine_proc.scheduling.sequence import Sequence
from harness.common.errors import ConfigError
from harness.common.stamps import Reason
from helpers import run_python

POLICIES = ("decode_first", "prefill_first")


def spans(batch: Batch) -> list[tuple[int, int, int]]:
    """Row, first token, number of tokens of each chunk."""
    return [(chunk.sequence.row, chunk.start, chunk.length) for chunk in batch.chunks]


def rows(batch: Batch) -> list[int]:
    return [chunk.sequence.row for chunk in batch.chunks]


def add(engine: Engine, *requests: tuple[int, int, int]) -> None:
    """Each request: row, prompt tokens, new tokens. No two prompts begin alike."""
    for row, prompt, new_tokens in requests:
        engine.scheduler.add(plain_request(row, [1000 + row] * prompt, new_tokens))


# Admission.


@pytest.mark.parametrize("policy", POLICIES)
def test_admission_is_in_order_of_arrival_up_to_both_batch_sizes(policy: Policy) -> None:
    engine = make_engine(max_batch=3, prefill_batch=2, policy=policy)
    add(engine, *((row, 4, 9) for row in (5, 3, 9, 1)))
    assert engine.step().admitted == [5, 3]
    assert engine.step().admitted == [9]
    assert engine.scheduler.num_running == 3 and engine.scheduler.num_waiting == 1
    engine.scheduler.abort(3)
    assert engine.step().admitted == [1]
    assert list(engine.scheduler._running) == [5, 9, 1]


def test_admission_leaves_a_block_for_each_that_will_grow() -> None:
    engine = make_engine(blocks=6, max_batch=4)
    add(engine, (0, 8, 9), (1, 8, 9))  # two blocks each now, four each in the end
    assert engine.step().admitted == [0, 1]
    engine = make_engine(blocks=5, max_batch=4)
    add(engine, (0, 8, 9), (1, 8, 9))
    assert engine.step().admitted == [0]
    engine = make_engine(blocks=4, max_batch=4)
    add(engine, (0, 8, 1), (1, 8, 1))  # neither grows: both fit to the last block
    assert engine.step().admitted == [0, 1]


def test_no_work_is_an_empty_step() -> None:
    engine = make_engine()
    assert not engine.scheduler.has_work()
    assert engine.step() == ([], [], [], [], 0, 0)
    add(engine, (0, 4, 2))
    assert engine.scheduler.has_work()
    engine.run()
    assert not engine.scheduler.has_work()


# Policies and budget.


def test_decode_first_mixes_every_decode_row_with_prefill() -> None:
    engine = make_engine(budget=10)
    add(engine, (0, 4, 9), (1, 4, 9))
    engine.step()
    add(engine, (2, 20, 9))
    batch = engine.step()
    assert spans(batch) == [(0, 4, 1), (1, 4, 1), (2, 0, 8)]
    assert [chunk.is_decode for chunk in batch.chunks] == [True, True, False]
    assert (batch.decode_rows, batch.prefill_tokens) == (2, 8)


def test_prefill_first_never_mixes_and_decodes_wait() -> None:
    engine = make_engine(budget=10, policy="prefill_first")
    add(engine, (0, 4, 9), (1, 4, 9))
    engine.step()
    add(engine, (2, 15, 9))
    assert [spans(engine.step()) for _ in range(3)] == [[(2, 0, 10)], [(2, 10, 5)], [(0, 4, 1), (1, 4, 1), (2, 15, 1)]]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("budget", [1, 3, 4, 5, 64])
def test_chunks_cover_a_prompt_once_and_only_the_last_samples(policy: Policy, budget: int) -> None:
    engine = make_engine(policy=policy, budget=budget)
    add(engine, (0, 13, 1))
    chunks = [chunk for batch in engine.run() for chunk in batch.chunks]
    assert [chunk.start for chunk in chunks] == list(range(0, 13, budget))
    assert sum(chunk.length for chunk in chunks) == 13
    assert max(chunk.length for chunk in chunks) == min(budget, 13)


def test_the_last_chunk_samples_by_what_was_known_when_it_was_formed() -> None:
    engine = make_engine(budget=4)
    add(engine, (0, 6, 2))
    first, second = engine.step(), engine.step()
    assert [first.chunks[0].samples, second.chunks[0].samples] == [False, True]  # though its output has grown since
    sequence = Sequence(plain_request(0, 6))
    assert Chunk(sequence, 2, 4).samples and not Chunk(sequence, 2, 3).samples


@pytest.mark.parametrize("policy", POLICIES)
def test_without_chunks_a_prompt_is_computed_whole_however_long(policy: Policy) -> None:
    engine = make_engine(policy=policy, chunked=False, budget=8)
    add(engine, (0, 4, 9))
    engine.step()
    add(engine, (1, 30, 9), (2, 4, 9), (3, 5, 9))
    batch = engine.step()
    assert (1, 0, 30) in spans(batch) and 2 not in rows(batch)
    assert (0 in rows(batch)) == (policy == "decode_first")
    batch = engine.step()
    assert (2, 0, 4) in spans(batch) and 3 not in rows(batch)


@pytest.mark.parametrize(("budget", "left"), [(1, 1), (3, 3), (4, 4), (5, 4), (6, 4), (8, 4), (20, 16)])
def test_as_many_decode_rows_as_the_budget_has_tokens_leave_up_to_a_block_for_prefill(budget: int, left: int) -> None:
    engine = make_engine(max_batch=5, budget=budget, chunked=False)
    add(engine, *((row, 1, 30) for row in range(4)))
    while engine.scheduler.num_waiting:
        engine.step()
    engine.scheduler._chunked = True
    add(engine, (4, 40, 2))
    batch = engine.step()
    assert (batch.decode_rows, batch.prefill_tokens) == (4, left)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_long_prompt_takes_half_a_step_while_others_come_and_all_of_it_while_none_do(policy: Policy) -> None:
    engine = make_engine(policy=policy, budget=16)
    add(engine, (0, 70, 1))
    assert spans(engine.step()) == [(0, 0, 16)]
    add(engine, (1, 12, 1))
    assert spans(engine.step()) == [(0, 16, 8), (1, 0, 8)]
    assert spans(engine.step()) == [(0, 24, 12), (1, 8, 4)]  # what the newcomer leaves goes back
    assert spans(engine.step()) == [(0, 36, 16)]


def test_prompts_that_end_in_this_step_are_not_held_back() -> None:
    engine = make_engine(budget=16)
    add(engine, (0, 12, 1), (1, 12, 1), (2, 12, 1))
    assert spans(engine.step()) == [(0, 0, 12), (1, 0, 4)]
    assert spans(engine.step()) == [(1, 4, 8), (2, 0, 8)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prompt", [1, 7, 8, 9, 24])
def test_a_newcomer_behind_one_long_prompt_has_its_token_within_a_bound(policy: Policy, prompt: int) -> None:
    engine = make_engine(blocks=400, policy=policy, budget=16)
    add(engine, (0, 1_000, 1))
    engine.step()
    add(engine, (1, prompt, 1))
    before = len(engine.batches)
    while 1 not in engine.outputs:
        engine.step()
    assert len(engine.batches) - before <= -(-prompt // 8)  # half of the budget is its own
    assert 0 not in engine.outputs


# Blocks and preemption.


def preempting_engine() -> Engine:
    """Three rows of 3 blocks of prompt in 12 blocks: the next block that one of them needs is nobody's."""
    engine = make_engine(blocks=12, max_batch=4, prefix_cache=False)
    add(engine, (0, 9, 12), (1, 9, 12), (2, 9, 12), (3, 4, 4))
    engine.step()
    assert list(engine.scheduler._running) == [0, 1, 2]
    return engine


def test_the_last_admitted_is_preempted_to_the_front_and_nobody_is_admitted_in_that_step() -> None:
    engine = preempting_engine()
    while not (batch := engine.step()).preemptions:
        pass
    assert batch.preemptions == 1
    assert rows(batch) == [0, 1]
    assert list(engine.scheduler._waiting) == [2, 3]
    assert not batch.admitted and not batch.readmitted
    sequence = engine.scheduler._waiting[2]
    assert (sequence.num_computed, sequence.block_table, sequence.preemptions) == (0, [], 1)


def test_a_readmitted_row_says_how_long_it_was_preempted_and_is_not_admitted_again() -> None:
    engine = preempting_engine()
    while not engine.step().preemptions:
        pass
    preempted_at = engine.clock.now
    engine.clock.now += 5_000
    batches = engine.run()
    readmitted = [again for batch in batches for again in batch.readmitted]
    assert readmitted[0] == (2, 5_001)  # the fake clock ticks once a reading
    assert preempted_at == engine.clock.readings[0]
    admitted = [row for batch in engine.batches for row in batch.admitted]
    assert admitted == [0, 1, 2, 3]
    assert engine.preempted[2] == sum(row == 2 for row, _ in readmitted) >= 1
    assert engine.outputs[2] == expected_output([1002] * 9, 12)


def test_running_sequences_stay_in_order_of_arrival_through_preemptions() -> None:
    engine = make_engine(blocks=14, max_batch=4, prefix_cache=False, budget=7)
    add(engine, *((row, 5 + row % 3, 22) for row in range(9)))
    while engine.scheduler.has_work():
        engine.step()
        queue = [*engine.scheduler._running, *engine.scheduler._waiting]
        assert queue == sorted(queue)
    assert engine.preemptions > 1


def test_shared_blocks_are_counted_once() -> None:
    engine = make_engine(max_batch=4)
    engine.scheduler.add(plain_request(0, [1] * 9, 8))
    engine.step()
    assert engine.scheduler.kv_blocks_used() == 3
    engine.scheduler.add(plain_request(1, [1] * 11, 8))
    engine.step()
    assert engine.scheduler.kv_blocks_used() == 4
    assert engine.scheduler._running[1].num_cached == 8


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_prefix_that_64_requests_share_is_held_once(prefix_cache: bool) -> None:
    """512 shared tokens and 16 of their own: 32 blocks in all for the former, or 32 for each without the cache."""
    engine = make_engine(
        blocks=3000, block_size=16, max_batch=64, prefill_batch=64, budget=40_000, prefix_cache=prefix_cache
    )  # fmt: skip
    shared = list(range(512))
    engine.scheduler.add(plain_request(0, shared + [1000] * 16, 9))
    engine.step()
    for row in range(1, 64):
        engine.scheduler.add(plain_request(row, shared + [1000 + row] * 16, 9))
    engine.step()
    assert engine.scheduler.num_running == 64
    own = 64 + 1  # a block of its own for each, and the first one's second output is in its next
    assert engine.scheduler.kv_blocks_used() == (32 + own if prefix_cache else 32 * 64 + own)


@pytest.mark.parametrize(("prompt", "new_tokens", "needed"), [(15, 1, 4), (16, 1, 4), (9, 8, 4), (17, 1, 5), (9, 9, 5)])
def test_the_last_token_needs_no_slot_and_one_more_than_fits_fails_at_once(
    prompt: int, new_tokens: int, needed: int
) -> None:
    engine = make_engine(blocks=4, block_size=4, max_batch=1)
    add(engine, (0, 4, 9))
    engine.step()
    add(engine, (1, 4, 1), (2, prompt, new_tokens))
    batch = engine.step()
    if needed > 4:  # at once: not when its turn comes
        assert batch.failed == [Failure(2, Reason.TOO_LARGE_FOR_CACHE, needed, 4)]
    engine.run()
    assert sorted(engine.outputs) == ([0, 1] if needed > 4 else [0, 1, 2])


def test_a_lone_request_that_is_too_large_leaves_no_work_behind() -> None:
    engine = make_engine(blocks=1)
    add(engine, (0, 100, 1))
    assert engine.scheduler.has_work()
    assert engine.step().failed == [Failure(0, Reason.TOO_LARGE_FOR_CACHE, 25, 1)]
    assert not engine.scheduler.has_work()
    add(engine, (0, 1, 1))  # the row is free again
    engine.run()


# Ends.


def test_abort_says_whether_there_was_something_to_abort() -> None:
    engine = make_engine(blocks=8, max_batch=1)
    assert not engine.scheduler.abort(7)
    add(engine, (0, 4, 4), (1, 4, 4), (2, 100, 4))
    engine.scheduler.schedule()  # 2 has failed with this one
    add(engine, (3, 100, 4))
    assert [engine.scheduler.abort(row) for row in (0, 1, 2, 3)] == [True, True, False, True]
    assert [engine.scheduler.abort(row) for row in (0, 1, 2, 3)] == [False] * 4
    assert not engine.scheduler.has_work()


def test_abort_while_waiting_leaves_the_order_of_the_others() -> None:
    engine = make_engine()
    add(engine, (0, 4, 4), (1, 4, 4), (2, 4, 4))
    assert engine.scheduler.abort(1)
    assert engine.step().admitted == [0, 2]
    assert engine.pool.num_used == 2


def test_a_row_may_come_again_after_its_end_but_not_before() -> None:
    engine = make_engine(blocks=4)
    add(engine, (1, 4, 2), (2, 100, 2))
    for row in (1, 2):
        with pytest.raises(ValueError, match=f"row {row} is already"):
            add(engine, (row, 4, 4))
    engine.step()
    with pytest.raises(ValueError, match="row 1 is already"):
        add(engine, (1, 4, 4))
    engine.run()
    add(engine, (1, 4, 4))
    assert engine.step().admitted == [1]


@pytest.mark.parametrize("finish_first", [False, True])
def test_finishing_before_the_commit_registers_as_much_as_after_it(finish_first: bool) -> None:
    engine = make_engine()
    add(engine, (0, 9, 1))
    batch = engine.scheduler.schedule()
    tokens = engine.model.forward(batch.chunks)
    if finish_first:
        engine.take(batch.chunks[0].sequence, tokens[0])
        assert engine.pool.num_used == 3  # until the commit
        engine.scheduler.commit(batch)
    else:
        engine.scheduler.commit(batch)
        engine.take(batch.chunks[0].sequence, tokens[0])
    engine.scheduler.check_integrity()
    assert engine.pool.num_used == 0
    engine.scheduler.add(plain_request(1, [1000] * 9, 1))
    engine.run()
    assert engine.cached[1] == 8


def test_a_sequence_ends_once() -> None:
    engine = make_engine()
    add(engine, (0, 4, 4))
    sequence = engine.step().chunks[0].sequence
    assert engine.scheduler.finish(sequence)
    assert not engine.scheduler.finish(sequence)
    add(engine, (0, 4, 4))  # another sequence of the same row is not touched by late news of the old one
    assert not engine.scheduler.finish(sequence)
    assert engine.scheduler.num_waiting == 1


# Overlap: a step formed while another one is in flight.


def test_the_next_step_can_be_formed_before_the_token_is_known() -> None:
    engine = make_engine()
    add(engine, (0, 6, 3))
    first = engine.scheduler.schedule()
    second = engine.scheduler.schedule()
    third = engine.scheduler.schedule()
    assert [spans(batch) for batch in (first, second, third)] == [[(0, 0, 6)], [(0, 6, 1)], [(0, 7, 1)]]
    assert all(batch.chunks[0].samples for batch in (first, second, third))
    assert engine.scheduler.schedule().chunks == []  # a fourth token was not asked for
    sequence = first.chunks[0].sequence
    for batch in (first, second, third):
        tokens = engine.model.forward(batch.chunks)
        engine.scheduler.commit(batch)
        engine.scheduler.check_integrity()
        engine.take(sequence, tokens[0])
    assert engine.outputs[0] == expected_output([1000] * 6, 3)
    assert engine.pool.num_used == 0


def test_a_step_that_would_have_to_preempt_waits_for_the_commit() -> None:
    engine = make_engine(blocks=4, max_batch=2, prefix_cache=False)
    add(engine, (0, 4, 12), (1, 4, 8))
    ahead = [engine.scheduler.schedule()]
    while (batch := engine.scheduler.schedule()).chunks:
        ahead.append(batch)
        done = ahead.pop(0)
        for chunk, token in zip(done.chunks, engine.model.forward(done.chunks), strict=True):
            engine.take(chunk.sequence, token)
        engine.scheduler.commit(done)
    assert batch == ([], [], [], [], 0, 0)
    assert engine.scheduler.num_running == 2
    for chunk, token in zip(ahead[0].chunks, engine.model.forward(ahead[0].chunks), strict=True):
        engine.take(chunk.sequence, token)
    engine.scheduler.commit(ahead[0])
    assert engine.step().preemptions == 1
    engine.run()
    assert engine.outputs == {0: expected_output([1000] * 4, 12), 1: expected_output([1001] * 4, 8)}


# The rest.


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("name", ["max_batch_size", "prefill_max_batch_size", "max_tokens_per_step"])
def test_bounds_are_named(name: str, value: int) -> None:
    bounds = {"max_batch_size": 4, "prefill_max_batch_size": 4, "max_tokens_per_step": 64, name: value}
    with pytest.raises(ConfigError, match=f"{name} is {value}; it must be at least 1"):
        Scheduler(BlockPool(8, 4), **bounds, policy="decode_first", chunked=True, clock=FakeClock())


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'fair'.*prefill_first, decode_first"):
        Scheduler(BlockPool(8, 4), 4, 4, 64, "fair", True, FakeClock())  # type: ignore[arg-type]


def test_token_ids_follow_the_output() -> None:
    sequence = Sequence(plain_request(0, [1, 2, 3], 9))
    assert sequence.token_ids == [1, 2, 3]
    sequence.output_ids += [4, 5]
    assert sequence.token_ids == [1, 2, 3, 4, 5]
    sequence.output_ids.append(6)
    assert sequence.token_ids == [1, 2, 3, 4, 5, 6]
    assert (sequence.num_tokens, sequence.num_uncomputed, sequence.request.prompt_ids) == (6, 6, [1, 2, 3])


def test_scheduler_and_pool_import_no_torch() -> None:
    modules = "engine_proc.scheduling.scheduler, engine_proc.scheduling.block_pool"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    assert run_python(code).strip() == "False"
