"""Plan files that once hung the start, filled the memory, or ran and were reported as a bug of isorate's own."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from harness.common.errors import ConfigError
from harness.common.limits import MAX_NEW_TOKENS, MAX_REQUESTS
from harness.common.plan_file import LoadPlan, load_plan


def saved(path: Path, text: bytes = b"ab", new_tokens: int = 4) -> Path:
    LoadPlan(
        np.zeros(1, np.int64), np.array([new_tokens], np.int32),
        texts=np.frombuffer(text, np.uint8), text_starts=np.array([0, len(text)], np.int64),
    ).save(path)  # fmt: skip
    return path


def test_text_that_is_not_utf8_is_bad_input_and_not_a_lost_request(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the text of request 0 is not valid UTF-8"):
        load_plan(saved(tmp_path / "plan.npz", text=b"a\xff"))


def test_more_new_tokens_than_the_flag_allows_reserve_no_collector(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_new_tokens of a request exceeds"):
        load_plan(saved(tmp_path / "plan.npz", new_tokens=MAX_NEW_TOKENS + 1))


def test_as_many_new_tokens_as_the_flag_allows_are_a_plan(tmp_path: Path) -> None:
    assert load_plan(saved(tmp_path / "plan.npz", new_tokens=MAX_NEW_TOKENS)).max_new_tokens[0] == MAX_NEW_TOKENS


def test_an_array_that_would_unpack_to_too_much_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = saved(tmp_path / "plan.npz")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("extra.npy", bytes(8 * (MAX_REQUESTS + 1) + 5000))
    with pytest.raises(ConfigError, match=r"array 'extra\.npy' would take 80005008 bytes"):
        load_plan(path)


def test_a_pipe_is_no_plan_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "plan.npz")
    with pytest.raises(ConfigError, match="not a file"):
        load_plan(tmp_path / "plan.npz")
