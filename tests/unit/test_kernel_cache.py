"""Kernels on disk: read back by another process, never when they are not whole or not ours."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from numba import carray, int64

from engine_proc import kernel_cache
from engine_proc.cpu_vectors import pointer
from engine_proc.kernel_cache import cache_folder, compile_kernel

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "isorate" / "kernels"
    return cache_folder()


def adder(number: int):  # type: ignore[no-untyped-def]
    def add(address: int) -> None:
        cell = carray(pointer(int64(address)), (1,), np.int64)
        cell[0] += number

    return add


def added(number: int) -> tuple[int, bool]:
    """What the kernel makes of 1, and whether it came from the disk."""
    kernel = compile_kernel(adder(number), str(number))
    cell = np.ones(1, np.int64)
    kernel.ctypes(cell.ctypes.data)
    return int(cell[0]), kernel.read


def kept(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_a_kernel_is_read_back_and_not_mistaken_for_another_of_the_same_source(folder: Path) -> None:
    assert added(4) == (5, False)
    assert added(7) == (8, False)
    assert added(4) == (5, True)
    assert added(7) == (8, True)
    assert len(kept(folder)) == 2


def test_what_is_damaged_or_could_be_anothers_is_compiled_anew(folder: Path) -> None:
    added(4)
    (path,) = kept(folder)
    whole = path.read_bytes()
    for damaged in (b"", whole[:40], whole[:-1], whole[:50] + bytes([whole[50] ^ 1]) + whole[51:]):
        path.write_bytes(damaged)
        assert added(4) == (5, False)
        assert path.read_bytes()[32:] and added(4) == (5, True)  # written again, whole
    path.chmod(0o666)
    assert added(4) == (5, False)
    folder.chmod(0o777)
    assert added(4) == (5, False)


def test_where_nothing_can_be_kept_it_compiles(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "isorate").write_text("in the way of the folder")
    assert added(4) == (5, False)
    assert added(4) == (5, False)


def test_nobody_else_can_write_what_is_kept(folder: Path) -> None:
    added(4)
    for path in (folder, *kept(folder)):
        about = os.stat(path)
        assert about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def test_a_change_of_source_or_question_is_another_kernel() -> None:
    keys = {kernel_cache._key("a", "x"), kernel_cache._key("a", "y"), kernel_cache._key("b", "x")}
    assert len(keys) == 3
    assert all((Path(kernel_cache.__file__).parent / f"{name}.py").exists() for name in kernel_cache._SOURCES)
