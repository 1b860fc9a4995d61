"""Loops without the GIL: kept on disk, read back without numba, and refused in words where it is missing."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness.common.nogil import at
from helpers import ROOT

pytestmark = pytest.mark.timeout(120)

_ALL = """
import sys
from harness.common.probes.gil import compile_probe
from harness.common.probes.hiccup import compile_hiccups
from harness.common.wire import compile_receive
from submitter_proc.gated_compiled import compile_gated
from submitter_proc.pacer_compiled import compile_pace

loops = [make() for make in (compile_probe, compile_hiccups, compile_receive, compile_gated, compile_pace)]
print((loops.count(None), "numba" in sys.modules))
"""
_WITHOUT_NUMBA = """
import importlib.metadata, sys
def version(name):
    raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.version = version
sys.modules["numba"] = None
from harness.common.nogil import NogilUnavailableError
from harness.common.probes.hiccup import compile_hiccups
from submitter_proc.pacer_compiled import compile_pace

assert compile_hiccups() is None
try:
    compile_pace()
except NogilUnavailableError as error:
    print(error)
"""


def python(program: str, cache: Path) -> str:
    """What `program` prints in a process whose user cache lies in `cache`."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100, check=True,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
    )  # fmt: skip
    return done.stdout


def test_a_process_that_finds_its_loops_on_the_disk_does_not_import_numba(tmp_path: Path) -> None:
    assert ast.literal_eval(python(_ALL, tmp_path)) == (0, True)
    assert ast.literal_eval(python(_ALL, tmp_path)) == (0, False)


def test_where_numba_is_missing_the_error_names_it(tmp_path: Path) -> None:
    assert python(_WITHOUT_NUMBA, tmp_path).startswith("numba cannot be imported: ")


def test_an_array_with_gaps_has_no_address_for_a_loop() -> None:
    array = np.zeros((4, 4), dtype=np.int64)
    assert at(array) == array.ctypes.data
    with pytest.raises(ValueError, match="gaps"):
        at(array[:, 1])
