from __future__ import annotations

import subprocess
import sys

import pytest

from engine_proc.backends.base import EngineRequest
from engine_proc.scheduler import Scheduler, Sequence
from engine_proc.slot_pool import SlotPool
from harness.common.protocol import Sampling
from harness.common.stamps import Reason
from helpers import child_env


def plain_request(row: int, prompt: int = 4, new_tokens: int = 4) -> EngineRequest:
    return EngineRequest(row, [0] * prompt, new_tokens, Sampling())


def make(max_batch: int = 4, prefill_batch: int = 2, blocks: int = 4) -> tuple[Scheduler, SlotPool]:
    pool = SlotPool(max_batch, block_tokens=16, blocks_per_sequence=blocks)
    return Scheduler(pool, max_batch, prefill_batch), pool


def rows(sequences: list[Sequence]) -> list[int]:
    return [sequence.row for sequence in sequences]


def test_prefill_goes_first_in_order_of_arrival_up_to_its_batch_size() -> None:
    scheduler, _ = make()
    for row in (5, 3, 9):
        scheduler.add(plain_request(row))
    assert rows(scheduler.schedule().prefill) == [5, 3]
    assert rows(scheduler.schedule().prefill) == [9]
    batch = scheduler.schedule()
    assert rows(batch.decode) == [5, 3, 9]
    assert not batch.prefill


def test_no_more_than_max_batch_size_run_and_the_rest_wait_through_decodes() -> None:
    scheduler, _ = make(max_batch=3, prefill_batch=2)
    for row in range(5):
        scheduler.add(plain_request(row))
    assert rows(scheduler.schedule().prefill) == [0, 1]
    assert rows(scheduler.schedule().prefill) == [2]
    decode = scheduler.schedule().decode
    assert rows(decode) == [0, 1, 2]
    scheduler.finish(decode[1])
    assert rows(scheduler.schedule().prefill) == [3]
    assert rows(scheduler.schedule().decode) == [0, 2, 3]
    assert scheduler.num_waiting == 1


def test_freed_slots_are_handed_out_lowest_first() -> None:
    scheduler, _ = make(max_batch=4, prefill_batch=4)
    for row in range(4):
        scheduler.add(plain_request(row))
    running = scheduler.schedule().prefill
    assert [sequence.slot for sequence in running] == [0, 1, 2, 3]
    scheduler.finish(running[2])
    scheduler.finish(running[0])
    for row in (7, 8):
        scheduler.add(plain_request(row))
    assert [sequence.slot for sequence in scheduler.schedule().prefill] == [0, 2]


def test_abort_while_waiting_leaves_the_order_of_the_others() -> None:
    scheduler, pool = make(prefill_batch=4)
    for row in range(3):
        scheduler.add(plain_request(row))
    assert scheduler.abort(1)
    assert rows(scheduler.schedule().prefill) == [0, 2]
    assert pool.num_used == 2


def test_abort_while_running_frees_the_slot_once() -> None:
    scheduler, pool = make()
    scheduler.add(plain_request(0))
    scheduler.schedule()
    assert pool.num_used == 1
    assert scheduler.abort(0)
    assert pool.num_used == 0
    assert not scheduler.abort(0)
    assert not scheduler.has_work()


def test_abort_of_an_unknown_or_finished_row_says_so() -> None:
    scheduler, _ = make()
    assert not scheduler.abort(3)
    scheduler.add(plain_request(3))
    scheduler.finish(scheduler.schedule().prefill[0])
    assert not scheduler.abort(3)


def test_a_row_may_come_again_after_its_end_but_not_before() -> None:
    scheduler, _ = make()
    scheduler.add(plain_request(1))
    with pytest.raises(ValueError, match="row 1"):
        scheduler.add(plain_request(1))
    sequence = scheduler.schedule().prefill[0]
    with pytest.raises(ValueError, match="row 1"):
        scheduler.add(plain_request(1))
    scheduler.finish(sequence)
    scheduler.add(plain_request(1))
    assert rows(scheduler.schedule().prefill) == [1]


@pytest.mark.parametrize(("tokens", "fits"), [(63, True), (64, True), (65, False)])
def test_a_request_larger_than_the_pool_fails_at_once_and_blocks_nobody(tokens: int, fits: bool) -> None:
    scheduler, _ = make(prefill_batch=4, blocks=4)
    scheduler.add(plain_request(0, prompt=tokens - 1, new_tokens=1))
    scheduler.add(plain_request(1))
    batch = scheduler.schedule()
    assert rows(batch.prefill) == ([0, 1] if fits else [1])
    assert [(f.row, f.reason, f.a, f.b) for f in batch.failed] == (
        [] if fits else [(0, Reason.TOO_LARGE_FOR_CACHE, 5, 4)]
    )


def test_a_lone_request_that_is_too_large_leaves_no_work_behind() -> None:
    scheduler, pool = make(blocks=1)
    scheduler.add(plain_request(0, prompt=100))
    batch = scheduler.schedule()
    assert len(batch.failed) == 1
    assert not batch.prefill and not batch.decode
    assert not scheduler.has_work()
    assert pool.num_used == 0


def test_blocks_used_follow_the_tokens_of_what_runs() -> None:
    scheduler, _ = make()
    scheduler.add(plain_request(0, prompt=16, new_tokens=5))
    assert scheduler.kv_blocks_used() == 0
    sequence = scheduler.schedule().prefill[0]
    assert scheduler.kv_blocks_used() == 1
    sequence.output_ids.append(1)
    assert scheduler.kv_blocks_used() == 2
    scheduler.finish(sequence)
    assert scheduler.kv_blocks_used() == 0


def test_scheduler_and_pool_import_no_torch() -> None:
    code = "import sys, engine_proc.scheduler, engine_proc.slot_pool; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=child_env(), check=True)
    assert done.stdout.strip() == "False"
