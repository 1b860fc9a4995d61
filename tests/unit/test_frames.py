"""Packed frames: what stands in memory before t0 is exactly what the plan says."""

from __future__ import annotations

import numpy as np
import pytest

from harness.common.plan_file import LoadPlan
from harness.common.protocol import TEXT, TOKENS, RequestFrame, Sampling, request_overhead_bytes, unpack_request
from submitter_proc.frames import PackedRun, pack_run

ROWS = 5
SAMPLING = Sampling(0.7, 40, 0.9, seed=1000, stop_on_eos=False, min_p=0.1, stop_ids=(5,), stop=("a", "b"))
OFFSETS = np.arange(ROWS, dtype=np.int64) * 10
MAX_NEW = np.array([4, 0, 7, 1, 2**31 - 1], dtype=np.int32)


def token_plan() -> LoadPlan:
    starts = np.array([0, 2, 2, 5, 6, 9], dtype=np.int64)
    ids = np.array([1, 50256, 3, 4, 2**31 - 1, 6, 7, 0, 9], dtype=np.int32)
    return LoadPlan(OFFSETS, MAX_NEW, prompt_ids=ids, prompt_starts=starts)


def text_plan() -> LoadPlan:
    texts = ["a", "", "grüß 👋", "x" * 300, "\0"]
    data = [text.encode() for text in texts]
    starts = np.cumsum([0, *map(len, data)], dtype=np.int64)
    return LoadPlan(OFFSETS, MAX_NEW, texts=np.frombuffer(b"".join(data), dtype=np.uint8), text_starts=starts)


def decoded(run: PackedRun, num_rows: int = 100) -> list[RequestFrame]:
    data, starts = run.frames.tobytes(), run.starts.tolist()
    return [unpack_request(data[starts[i] : starts[i + 1]], num_rows) for i in range(run.num_requests)]


def pack(plan: LoadPlan, first_row: int = 0, rows: int = ROWS) -> PackedRun:
    return pack_run(plan, SAMPLING, first_row, rows, np.zeros((50, 8), dtype=np.int64))


@pytest.mark.parametrize(("plan", "kind"), [(token_plan(), TOKENS), (text_plan(), TEXT)])
def test_frames_decode_to_the_rows_of_the_plan(plan: LoadPlan, kind: int) -> None:
    frames = decoded(pack(plan, first_row=20))
    assert [frame.kind for frame in frames] == [kind] * ROWS
    assert [frame.row for frame in frames] == [20, 21, 22, 23, 24]
    assert [frame.max_new_tokens for frame in frames] == MAX_NEW.tolist()
    assert [frame.payload for frame in frames] == [plan.payload(i) for i in range(ROWS)]


def test_each_request_draws_with_a_seed_of_its_own() -> None:
    frames = decoded(pack(text_plan(), first_row=20))
    assert [frame.sampling for frame in frames] == [SAMPLING._replace(seed=1000 + i) for i in range(ROWS)]


def test_runs_of_one_plan_draw_with_the_same_seeds() -> None:
    first, second = decoded(pack(text_plan())), decoded(pack(text_plan(), first_row=ROWS))
    assert [frame.sampling for frame in first] == [frame.sampling for frame in second]


def test_a_warm_up_run_is_the_beginning_of_the_plan() -> None:
    plan = token_plan()
    run = pack(plan, rows=2)
    assert run.num_requests == 2 and run.offsets_ns.tolist() == [0, 10]
    assert [frame.payload for frame in decoded(run)] == [plan.payload(0), plan.payload(1)]


def test_stamps_are_the_rows_of_this_run_in_the_collector() -> None:
    block = np.zeros((50, 8), dtype=np.int64)
    run = pack_run(token_plan(), SAMPLING, 20, ROWS, block)
    run.stamps[:, 0] = 7
    assert block[:, 0].nonzero()[0].tolist() == [20, 21, 22, 23, 24]


@pytest.mark.parametrize("plan", [token_plan(), text_plan()])
def test_no_frame_exceeds_the_size_that_the_sockets_are_told(plan: LoadPlan) -> None:
    run = pack_run(plan, SAMPLING._replace(seed=2**63), 2**31 - ROWS, ROWS, np.zeros((0, 8), dtype=np.int64))
    assert np.diff(run.starts).max() <= plan.largest_payload_bytes() + request_overhead_bytes(SAMPLING)


def test_an_empty_run_packs_to_nothing() -> None:
    run = pack(token_plan(), rows=0)
    assert run.num_requests == 0 and len(run.frames) == 0
