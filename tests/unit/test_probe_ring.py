"""A probe's ring keeps the newest rows in their order, and counts each row that it no longer has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.common.collector import RINGS, Collector, CollectorShape
from harness.common.probes.ring import RingWriter, read_ring


def make(tmp_path: Path, rows: int) -> Collector:
    shape = CollectorShape(2, 1, 1, gil=rows, pauses=rows, hiccups=rows, threads=rows, cpus=rows)
    return Collector.create(tmp_path / "c.bin", shape, {}, (os.getpid(), 1))


@pytest.mark.parametrize(("written", "kept"), [(0, []), (3, [0, 1, 2]), (4, [0, 1, 2, 3]), (11, [7, 8, 9, 10])])
def test_the_newest_rows_are_kept_in_order_and_the_others_counted(
    tmp_path: Path, written: int, kept: list[int]
) -> None:
    ring = make(tmp_path, 4).rings["gil"]
    writer = RingWriter(ring)
    for number in range(written):
        writer.write(number, -number)
    rows, lost, _ = read_ring(ring)
    assert rows[:, :2].tolist() == [[number, -number] for number in kept]
    assert lost == written - len(kept)


def test_a_ring_without_rows_counts_all_of_them(tmp_path: Path) -> None:
    ring = make(tmp_path, 0).rings["gc_engine"]
    RingWriter(ring).write(1, 2)
    assert len(read_ring(ring).rows) == 0 and read_ring(ring).lost == 1


def test_rings_are_apart_and_survive_a_second_mapping(tmp_path: Path) -> None:
    mine = make(tmp_path, 3)
    for number, name in enumerate(RINGS):
        RingWriter(mine.rings[name]).write(number + 1)
    other = Collector.attach(mine.path, writable=False)
    assert other.shape == mine.shape
    assert [read_ring(other.rings[name]).rows[:, 0].tolist() for name in RINGS] == [[n + 1] for n in range(len(RINGS))]


def test_a_damaged_count_reads_as_empty(tmp_path: Path) -> None:
    ring = make(tmp_path, 3).rings["cpus"]
    ring[0, 0] = -5
    assert len(read_ring(ring).rows) == 0
