"""`--payload index`: a row number and a mapped plan give the engine the very request that an inline frame holds."""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest
from unit.test_frames import MAX_NEW, OFFSETS, ROWS, SAMPLING, text_plan, token_plan

from engine_proc.intake.plan_source import PlanSource
from harness.common.errors import ConfigError, FrameError
from harness.common.plan_file import LoadPlan, load_plan
from harness.common.plan_map import map_plan
from harness.common.protocol import (
    INDEX,
    INDEX_FRAME_BYTES,
    SMALL_FRAME_BYTES,
    VERSION,
    IndexFrame,
    pack_abort,
    pack_indices,
    unpack_request,
)
from harness.common.sockets import endpoint, make_context, make_socket_folder, pull_socket, push_socket
from submitter_proc.frames import Shard, pack_run

pytestmark = pytest.mark.timeout(20)
PLANS = [token_plan(), text_plan()]
#: A warm-up run of two requests, then two runs of all.
RUNS = [{"first_row": 0, "rows": 2}, {"first_row": 2, "rows": ROWS}, {"first_row": 2 + ROWS, "rows": ROWS}]


def saved(plan: LoadPlan, folder: Path) -> Path:
    path = folder / "plan.npz"
    plan.save(path)
    return path


def gated_plan() -> LoadPlan:
    plan = text_plan()
    after = np.arange(ROWS, dtype=np.int32) - 1
    return LoadPlan(OFFSETS, MAX_NEW, None, None, plan.texts, plan.text_starts, after, OFFSETS)


@pytest.mark.parametrize("plan", [*PLANS, gated_plan()])
def test_a_mapped_plan_is_the_plan_that_was_saved(plan: LoadPlan, tmp_path: Path) -> None:
    path = saved(plan, tmp_path)
    mapped = map_plan(path)
    assert mapped.sha256() == plan.sha256()
    assert [mapped.payload(i) for i in range(ROWS)] == [plan.payload(i) for i in range(ROWS)]


def test_a_mapped_plan_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        map_plan(saved(token_plan(), tmp_path)).offsets_ns[0] = 1


def test_a_compressed_plan_is_loaded_but_not_mapped(tmp_path: Path) -> None:
    path = tmp_path / "plan.npz"
    plan = replace(token_plan(), max_new_tokens=MAX_NEW % 100)
    np.savez_compressed(path, offsets_ns=plan.offsets_ns, max_new_tokens=plan.max_new_tokens,
                        prompt_ids=plan.prompt_ids, prompt_starts=plan.prompt_starts)  # fmt: skip
    assert load_plan(path).sha256() == plan.sha256()
    with pytest.raises(ConfigError, match="compressed"):
        map_plan(path)


def test_what_is_no_plan_is_not_mapped(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"PK\3\4 no zip")
    with zipfile.ZipFile(tmp_path / "other", "w") as archive:
        archive.writestr("notes.txt", "not an array")
    for name in ("junk", "other", "missing"):
        with pytest.raises(ConfigError, match=f"{name}: cannot map the plan"):
            map_plan(tmp_path / name)


@pytest.mark.parametrize("plan", PLANS)
def test_a_row_number_gives_the_request_of_the_inline_frame(plan: LoadPlan, tmp_path: Path) -> None:
    source = PlanSource(map_plan(saved(plan, tmp_path)), RUNS, SAMPLING)
    block = np.zeros((2 * ROWS + 2, 8), dtype=np.int64)
    seen = 0
    for run in RUNS:
        inline = pack_run(plan, SAMPLING, run["first_row"], run["rows"], block)
        indexed = pack_run(plan, SAMPLING, run["first_row"], run["rows"], block, indexed=True)
        assert np.array_equal(indexed.offsets_ns, inline.offsets_ns)
        for i in range(run["rows"]):
            number = unpack_request(indexed.frames[indexed.starts[i] : indexed.starts[i + 1]].tobytes(), 100)
            whole = unpack_request(inline.frames[inline.starts[i] : inline.starts[i + 1]].tobytes(), 100)
            assert isinstance(number, IndexFrame)
            assert source.request(number.row) == whole
            seen += 1
    assert seen == 2 * ROWS + 2


def test_shards_of_an_indexed_run_number_the_rows_of_the_run() -> None:
    block = np.zeros((100, 8), dtype=np.int64)
    shards = [pack_run(token_plan(), SAMPLING, 50, ROWS, block, Shard(k, 2), indexed=True) for k in range(2)]
    rows = [
        unpack_request(run.frames[run.starts[i] : run.starts[i + 1]].tobytes(), 100).row
        for run in shards
        for i in range(run.num_requests)
    ]
    assert rows == [50, 52, 54, 51, 53]


def test_an_index_frame_has_eight_bytes_for_every_row() -> None:
    rows = np.array([0, 1, 127, 128, 2**31 - 1, 2**32 - 1], dtype=np.int64)
    frames = pack_indices(rows)
    assert frames.shape == (6, INDEX_FRAME_BYTES)
    assert [unpack_request(frame.tobytes(), 2**32) for frame in frames] == [IndexFrame(row) for row in rows.tolist()]


@pytest.mark.parametrize("row", [0, 127, 128, 65_536, 2**32 - 1])
def test_an_index_frame_is_msgpack_whatever_length_its_number_has(row: int) -> None:
    """Frames of our own are read without msgpack; a client's own encoder may write the number as short as it can."""
    assert msgpack.unpackb(pack_indices(np.array([row]))[0].tobytes()) == [VERSION, INDEX, row]
    assert unpack_request(msgpack.packb([VERSION, INDEX, row]), 2**32) == IndexFrame(row)


@pytest.mark.parametrize("place", range(4))
def test_eight_bytes_that_are_no_index_frame_are_judged_as_ever(place: int) -> None:
    frame = bytearray(pack_indices(np.array([5]))[0].tobytes())
    frame[place] ^= 0x40
    with pytest.raises(FrameError):
        unpack_request(bytes(frame), 2**32)


def test_an_index_frame_of_a_row_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FrameError, match="row 5"):
        unpack_request(pack_indices(np.array([5]))[0].tobytes(), 5)


def test_abort_frames_fit_into_what_an_indexed_session_s_engine_receives() -> None:
    assert len(pack_abort(2**32 - 1)) <= SMALL_FRAME_BYTES and INDEX_FRAME_BYTES <= SMALL_FRAME_BYTES


def test_a_socket_for_small_frames_still_lets_a_peer_connect() -> None:
    """libzmq counts its handshake's commands against MAXMSGSIZE: with 16 bytes every peer would be dropped."""
    folder = make_socket_folder()
    context = make_context()
    pull = pull_socket(context, endpoint(folder, "data"), SMALL_FRAME_BYTES)
    push = push_socket(context, endpoint(folder, "data"))
    try:
        assert push.poll(5000, 2)
        push.send(b"12345678")
        assert pull.poll(5000) and pull.recv() == b"12345678"
    finally:
        push.close(linger=0)
        pull.close(linger=0)
        context.term()
        shutil.rmtree(folder)
