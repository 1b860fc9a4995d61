"""The collector: what one process writes another reads, no two writers share a cache line, no file stays half made."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

import numpy as np
import pytest
from fakes import make_collector

from harness.common.collector import (
    CONTROL_WORDS,
    MAX_RUNS,
    RUN_T0_CELL,
    Collector,
    CollectorShape,
    collector_bytes,
    read_header,
)
from harness.common.errors import CollectorError, ConfigError
from harness.common.stamps import ENGINE_COLUMNS, RECEIVER_COLUMNS, SUBMITTER_COLUMNS

SHM = Path("/dev/shm")
BLOCKS = ("submitter", "engine", "receiver", "steps", "tokens", "control")
#: Writers of control words, by the first word of each.
WRITERS = ("stop", "sent", "ingress", "steps", "wire_messages", "results", "receiver_messages", "late_aborts")


def test_an_attached_collector_sees_what_is_written_and_writes_back(tmp_path: Path) -> None:
    mine = make_collector(tmp_path, rows=3, steps=5, tokens=7, meta={"run_id": "x", "runs": [1]})
    other = Collector.attach(mine.path)
    assert other.shape == CollectorShape(3, 5, 7) and other.meta == {"run_id": "x", "runs": [1]}
    for number, name in enumerate(BLOCKS):
        cells, seen = getattr(mine, name), getattr(other, name)
        assert cells.shape == seen.shape and not seen.any()
        cells.flat[cells.size - 1] = number + 1
        assert seen.flat[seen.size - 1] == number + 1
        seen.flat[0] = -5
        assert cells.flat[0] == -5
    other.set_word("sent", 9)
    assert mine.word("sent") == 9


def test_a_column_is_a_view_of_its_cells(tmp_path: Path) -> None:
    collector = make_collector(tmp_path)
    for number, name in enumerate((*SUBMITTER_COLUMNS, *ENGINE_COLUMNS, *RECEIVER_COLUMNS)):
        collector.column(name)[3] = number + 1
    rows = np.concatenate(
        [
            collector.submitter[3, : len(SUBMITTER_COLUMNS)],
            collector.engine[3, : len(ENGINE_COLUMNS)],
            collector.receiver[3, : len(RECEIVER_COLUMNS)],
        ]
    )
    assert rows.tolist() == list(range(1, len(rows) + 1))
    with pytest.raises(KeyError):
        collector.column("t_nothing")


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    reader = Collector.attach(make_collector(tmp_path).path, writable=False)
    with pytest.raises(ValueError, match="read-only"):
        reader.control[0] = 1


def test_blocks_of_different_writers_share_no_cache_line(tmp_path: Path) -> None:
    """Also for shapes whose blocks end in the middle of a line."""
    collector = make_collector(tmp_path, rows=3, steps=1, tokens=13)
    lines: dict[int, str] = {}
    for name in BLOCKS:
        cells = getattr(collector, name)
        start = cells.__array_interface__["data"][0]
        for line in range(start // 64, (start + cells.nbytes - 1) // 64 + 1):
            assert lines.setdefault(line, name) == name
    assert len(lines) > 3 * len(BLOCKS)


def test_every_block_begins_a_page(tmp_path: Path) -> None:
    """Also an empty block takes one, so that the next begins a cache line of its own."""
    collector = make_collector(tmp_path, rows=3, steps=0, tokens=13)
    assert [getattr(collector, name).__array_interface__["data"][0] % 4096 for name in BLOCKS] == [0] * len(BLOCKS)


def test_blocks_lie_inside_the_file(tmp_path: Path) -> None:
    collector = make_collector(tmp_path, rows=3, steps=1, tokens=13)
    starts = [getattr(collector, name).__array_interface__["data"][0] for name in BLOCKS]
    ends = [start + getattr(collector, name).nbytes for start, name in zip(starts, BLOCKS, strict=True)]
    base = min(starts) - 64 * 1024
    assert max(ends) - base <= os.stat(collector.path).st_size == collector_bytes(collector.shape)


def test_control_words_of_different_writers_share_no_cache_line() -> None:
    first_cells = sorted(CONTROL_WORDS[word] for word in WRITERS)
    assert all(cell % 8 == 0 for cell in first_cells)
    assert len(set(CONTROL_WORDS.values())) == len(CONTROL_WORDS)
    owners = {word: max(cell for cell in first_cells if cell <= at) for word, at in CONTROL_WORDS.items()}
    assert all(CONTROL_WORDS[word] < owner + 8 for word, owner in owners.items())
    assert max(CONTROL_WORDS.values()) < RUN_T0_CELL


def test_the_start_of_every_run_has_a_cell(tmp_path: Path) -> None:
    collector = make_collector(tmp_path)
    collector.control[RUN_T0_CELL + MAX_RUNS - 1] = 1
    assert RUN_T0_CELL % 8 == 0


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = make_collector(tmp_path).path
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_every_byte_is_reserved(tmp_path: Path) -> None:
    """A sparse file would die of SIGBUS in the middle of a run."""
    path = make_collector(tmp_path, rows=1000).path
    assert path.stat().st_blocks * 512 >= path.stat().st_size == collector_bytes(CollectorShape(1000, 8, 32))


def test_an_existing_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "c.bin").write_bytes(b"precious")
    with pytest.raises(ConfigError, match=r"c\.bin"):
        make_collector(tmp_path)
    assert (tmp_path / "c.bin").read_bytes() == b"precious"


def test_a_link_is_refused_and_its_target_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "c.bin").symlink_to(tmp_path / "target")
    with pytest.raises(ConfigError):
        make_collector(tmp_path)
    assert (tmp_path / "target").read_bytes() == b"precious"


@pytest.mark.parametrize("rows", [1 << 50, 1 << 57, 1 << 63, 1 << 70])
def test_no_room_names_the_bytes_and_leaves_no_file(tmp_path: Path, rows: int) -> None:
    """Beyond what a disk holds, beyond an offset, beyond an int64."""
    nbytes = collector_bytes(CollectorShape(rows, 8, 32))
    with pytest.raises(ConfigError, match=str(nbytes)):
        make_collector(tmp_path, rows=rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not SHM.is_dir(), reason="no /dev/shm here")
def test_more_than_the_memory_file_system_holds_is_refused_before_it_is_touched() -> None:
    """A sparse file of that size can be made there; a write to it would die of SIGBUS."""
    space = os.statvfs(SHM)
    rows = 2 * space.f_blocks * space.f_frsize // 64
    shape = CollectorShape(rows, 1, 1)
    path = SHM / f"isorate-test-{os.getpid()}"
    with pytest.raises(ConfigError, match=f"{collector_bytes(shape)} bytes are needed in /dev/shm"):
        Collector.create(path, shape, {}, (os.getpid(), 1))
    assert not path.exists()


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        make_collector(tmp_path / "nowhere")


def test_a_description_that_does_not_fit_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exceeds"):
        make_collector(tmp_path, meta={"x": "y" * 70_000})
    assert list(tmp_path.iterdir()) == []


def test_the_header_says_whose_it_is(tmp_path: Path) -> None:
    header = read_header(make_collector(tmp_path, meta={"a": 1}).path)
    assert (header.owner_pid, header.owner_start, header.uid) == (os.getpid(), 1, os.getuid())
    assert header.meta == {"a": 1}


def patched(path: Path, offset: int, data: bytes) -> Path:
    raw = bytearray(path.read_bytes())
    raw[offset : offset + len(data)] = data
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize(
    ("offset", "data", "message"),
    [
        (0, b"NOTOURS\0", "is not an isorate collector"),
        (8, struct.pack("<q", 99), "version 99"),
        (16, struct.pack("<q", 1 << 40), "cut short or damaged"),
        (24, struct.pack("<q", 9_000), "cut short or damaged"),
        (24, struct.pack("<q", -1), "cut short or damaged"),
        (112, struct.pack("<q", 3), "damaged description"),
        (112, struct.pack("<q", -1), "damaged description"),
        (120, b"\xff\xff", "damaged description"),
        (120, b"[1, 2,3]", "damaged description"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, offset: int, data: bytes, message: str) -> None:
    path = make_collector(tmp_path, meta={"a": 1}).path
    Collector.attach(path)  # it was good
    with pytest.raises(CollectorError, match=message):
        Collector.attach(patched(path, offset, data))


@pytest.mark.parametrize("size", [0, 8, 79, 80, 5000, -1])
def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, size: int) -> None:
    path = make_collector(tmp_path).path
    os.truncate(path, size if size >= 0 else path.stat().st_size - 1)
    with pytest.raises(CollectorError):
        Collector.attach(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CollectorError, match="No such file"):
        Collector.attach(tmp_path / "nowhere")


def test_close_leaves_the_file_and_what_a_caller_still_holds(tmp_path: Path) -> None:
    collector = make_collector(tmp_path)
    collector.set_word("sent", 3)
    held = collector.control
    collector.close()
    assert held[CONTROL_WORDS["sent"]] == 3
    assert Collector.attach(tmp_path / "c.bin").word("sent") == 3
