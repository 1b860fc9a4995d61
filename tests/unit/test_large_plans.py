"""What a million requests must not be done one by one: UTF-8, texts, frames; each against its plain form."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.common import utf8
from harness.common.plan_file import LoadPlan
from harness.common.processes import peak_rss_bytes
from harness.common.protocol import Sampling, pack_request
from harness.common.utf8 import first_invalid
from harness.plan import pack_texts as packing
from harness.plan.pack_texts import pack_texts
from submitter_proc import frames
from submitter_proc.frames import pack_run

TEXTS = ["", "a", "grüß", "", "👋" * 3, "z" * 50, ""]


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


PIECES = st.binary(max_size=6) | st.text(max_size=3).map(str.encode)


@given(st.lists(PIECES, max_size=12), st.sampled_from([1, 7, 1000]))
def test_the_first_text_that_is_not_utf8_is_the_one_that_does_not_decode(texts: list[bytes], chunk: int) -> None:
    starts = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    before, utf8.CHUNK_BYTES = utf8.CHUNK_BYTES, chunk
    try:
        found = first_invalid(np.frombuffer(b"".join(texts), dtype=np.uint8), starts)
    finally:
        utf8.CHUNK_BYTES = before
    assert found == next((i for i, text in enumerate(texts) if not is_utf8(text)), None)


def test_a_character_cut_in_two_by_a_boundary_is_not_utf8_although_the_whole_is() -> None:
    cut = np.frombuffer("aü".encode(), dtype=np.uint8)
    assert first_invalid(cut, np.array([0, 2, 3])) == 0
    assert first_invalid(cut, np.array([0, 1, 3])) is None


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_texts_are_packed_as_they_encode(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_CHUNK", chunk)
    packed = pack_texts(TEXTS, 10_000)
    assert packed is not None
    data, starts = packed
    assert [data[a:b].tobytes().decode() for a, b in pairwise(starts)] == TEXTS


def test_texts_beyond_the_limit_are_none() -> None:
    size = len("".join(TEXTS).encode())
    assert pack_texts(TEXTS, size) is not None and pack_texts(TEXTS, size - 1) is None


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_frames_packed_in_chunks_are_the_frames(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_CHUNK", chunk)
    packed = pack_texts(TEXTS, 10_000)
    assert packed is not None
    n = len(TEXTS)
    plan = LoadPlan(np.zeros(n, np.int64), np.arange(n, dtype=np.int32), texts=packed[0], text_starts=packed[1])
    run = pack_run(plan, Sampling(seed=3), 7, n, np.zeros((100, 8), dtype=np.int64))
    expected = [pack_request(1, 7 + i, i, Sampling(seed=3 + i), TEXTS[i].encode()) for i in range(n)]
    assert run.frames.tobytes() == b"".join(expected)
    assert np.diff(run.starts).tolist() == [len(frame) for frame in expected]


def test_the_peak_memory_of_a_process_is_what_the_kernel_says_and_of_one_that_is_gone_nothing() -> None:
    mine = peak_rss_bytes(os.getpid())
    assert mine is not None and mine > 1_000_000
    done = subprocess.Popen(["true"])
    done.wait()
    assert peak_rss_bytes(done.pid) is None
