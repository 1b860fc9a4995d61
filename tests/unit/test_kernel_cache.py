"""Kernels on disk: read back by another process, never when they are not whole or not ours."""

from __future__ import annotations

import ast
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import carray, int64

from engine_proc.kernels.compile_kernel import SOURCES, compile_kernel
from harness.common.kernel_cache import Recipe, _key, cache_folder
from harness.common.nogil_numba import pointer
from helpers import ROOT

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
    kernel.call(cell.ctypes.data)
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


def test_a_change_of_source_or_question_is_another_kernel(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text("one")
    recipe = Recipe("a", "x", (source,), 1, lambda: adder(1))
    keys = [_key(each) for each in (recipe, recipe._replace(asked="y"), recipe._replace(name="b"))]
    source.write_text("two")
    assert len({*keys, _key(recipe), _key(recipe._replace(arguments=2))}) == 5


def test_every_module_of_the_engine_s_kernels_is_among_their_sources() -> None:
    written = {path for path in (ROOT / "engine_proc").rglob("*.py") if "numba import" in path.read_text()}
    assert len(written) >= 5 and written <= {*SOURCES}


#: Kernels whose inner functions have one name and, as the first of their process, one number; too long to be inlined.
_TWINS = """
import sys
import numpy as np
from numba import carray, int64, njit
from engine_proc.kernels.compile_kernel import compile_kernel
from harness.common.nogil_numba import pointer

def make(number):
    names = {"number": number}
    exec("def inner(x):" + "".join(f"\\n    x = x * (number + {i}) ^ (x >> {i % 7})" for i in range(100))
         + "\\n    return x", names)
    inner = njit(names["inner"])

    def kernel(address):
        cells = carray(pointer(int64(address)), (2,), np.int64)
        cells[0] = inner(cells[0])
        cells[1] = inner(cells[1] + cells[0])

    return kernel

def result(number):
    kernel = compile_kernel(make(number), str(number))
    cells = np.ones(2, np.int64)
    kernel.call(cells.ctypes.data)
    return kernel.read, cells.tolist()

print([result(int(number)) for number in sys.argv[1:]])
"""


def test_kernels_from_the_disk_are_not_linked_to_each_other(folder: Path) -> None:
    (three,), (five,) = _run_twins("3"), _run_twins("5")
    assert three[1] != five[1]
    assert _run_twins("3", "5", "7")[:2] == [(True, three[1]), (True, five[1])]
    assert _run_twins("9", "5", "3")[1:] == [(True, five[1]), (True, three[1])]


def _run_twins(*numbers: str) -> list[tuple[bool, list[int]]]:
    done = subprocess.run(
        [sys.executable, "-c", _TWINS, *numbers], cwd=ROOT, capture_output=True, text=True, timeout=50, check=True
    )
    return list(ast.literal_eval(done.stdout))


#: A kernel that calls functions by name, in a process that compiles nothing where it is on the disk.
_BY_NAME = """
import numpy as np
from numba import carray, int64
from engine_proc.kernels.compile_kernel import compile_kernel
from engine_proc.kernels.threads import thread_functions
from harness.common.nogil_numba import pointer

number, count = thread_functions()

def kernel(address):
    cells = carray(pointer(int64(address)), (2,), np.int64)
    cells[0] = number()
    cells[1] = count()

compiled = compile_kernel(kernel, "")
cells = np.full(2, 9, np.int64)
compiled.call(cells.ctypes.data)
print((compiled.read, cells.tolist()))
"""


def test_a_process_that_compiles_nothing_finds_the_functions_that_a_kernel_calls_by_name(folder: Path) -> None:
    for is_read in (False, True):
        done = subprocess.run(
            [sys.executable, "-c", _BY_NAME], cwd=ROOT, capture_output=True, text=True, timeout=50, check=True
        )
        assert ast.literal_eval(done.stdout) == (is_read, [0, 1])
