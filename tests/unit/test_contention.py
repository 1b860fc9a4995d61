"""From rings to what one run saw: made by hand, so that every figure is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.common.collector import RINGS, Int64Array
from harness.common.errors import RunError
from harness.common.probes.ring import EXACT, PERIOD, SHORTEST, SLEEPS, RingRows
from harness.host.sampler import CGROUP, name_cells
from harness.measures.contention import ENGINE, FIRST_SUBMITTER, SessionProbes, process_name
from harness.measures.contention_json import contention_json
from harness.report.strict_json import strict_dumps

BEGIN, END = 1_000_000_000, 3_000_000_000
STEP_LOOP, WORKER, PACER = 70, 71, 90


def ring(*rows: tuple[int, ...], lost: int = 0, **head: int) -> RingRows:
    cells = np.zeros((len(rows), 8), dtype=np.int64)
    for i, row in enumerate(rows):
        cells[i, : len(row)] = row
    first = np.zeros(8, dtype=np.int64)
    first[[EXACT, SHORTEST, SLEEPS, PERIOD]] = [
        head.get(name, default) for name, default in (("exact", 1), ("shortest", 0), ("sleeps", 0), ("period", 0))
    ]
    return RingRows(cells, lost, first)


def thread(at: int, process: int, tid: int, cpu: int, delay: int, switches: int, name: bytes) -> tuple[int, ...]:
    return at, process << 32 | tid, cpu, delay, switches, switches, *name_cells(name)


def session(**rings: RingRows) -> SessionProbes:
    return SessionProbes({name: rings.get(name, ring()) for name in RINGS})


def test_pauses_that_overlap_the_run_are_its_own_and_run_queue_delay_is_taken_out() -> None:
    gil = ring((BEGIN - 50, 40, 0), (BEGIN - 10, 40, 0), (BEGIN + 5, 100, 30), (END - 1, 9, 20), (END, 9, 0), lost=3)
    pauses = session(gil=gil).of_run(BEGIN, END).gil
    assert pauses.start_ns.tolist() == [BEGIN - 10, BEGIN + 5, END - 1]
    assert pauses.duration_ns.tolist() == [40, 70, 0]
    assert pauses.run_delay_ns.tolist() == [0, 30, 9]
    assert pauses.exact and pauses.lost == 3


def test_timer_error_of_the_control_is_taken_out_of_what_the_plain_twin_measured() -> None:
    control = ring(shortest=1_060, sleeps=9, period=1_000)
    rows = ((BEGIN, 100, 0), (BEGIN + 200, 50, 0))
    plain = session(gil=ring(*rows, exact=0), hiccups=control).of_run(BEGIN, END).gil
    assert plain.duration_ns.tolist() == [40, 0] and not plain.exact
    exact = session(gil=ring(*rows), hiccups=control).of_run(BEGIN, END).gil
    assert exact.duration_ns.tolist() == [100, 50]


def test_a_collection_s_generation_is_no_run_queue_delay() -> None:
    pauses = session(gc_engine=ring((BEGIN + 1, 500, 2, 40))).of_run(BEGIN, END).gc_engine
    assert pauses.duration_ns.tolist() == [500] and pauses.run_delay_ns.tolist() == [0]


def two_runs() -> RingRows:
    """Marks before and after two runs; samples between, which count no switches."""
    second = END + 1_000_000_000
    return ring(
        thread(BEGIN - 100, ENGINE, STEP_LOOP, 10, 1, 5, b"step-loop"),
        thread(BEGIN - 90, FIRST_SUBMITTER, PACER, 20, 2, 6, b"pacer"),
        thread(BEGIN + 10, ENGINE, STEP_LOOP, 15, 2, -1, b"step-loop"),
        thread(END + 100, ENGINE, STEP_LOOP, 110, 31, 9, b"step-loop"),
        thread(END + 110, ENGINE, WORKER, 7, 1, 1, b"python"),
        thread(END + 120, FIRST_SUBMITTER, PACER, 25, 2, 6, b"pacer"),
        thread(second - 100, ENGINE, STEP_LOOP, 110, 31, 9, b"step-loop"),
        thread(second + 900, ENGINE, STEP_LOOP, 300, 40, -1, b"step-loop"),
    )


def test_a_thread_s_use_is_the_difference_of_the_marks_around_the_run() -> None:
    threads = {use.tid: use for use in session(threads=two_runs()).of_run(BEGIN, END).threads}
    loop = threads[STEP_LOOP]
    assert (loop.process, loop.name, loop.cpu_ns, loop.run_delay_ns) == ("engine", "step-loop", 100, 30)
    assert (loop.voluntary, loop.involuntary, loop.wall_ns) == (4, 4, END - BEGIN + 200)
    assert (threads[PACER].process, threads[PACER].cpu_ns, threads[PACER].involuntary) == ("submitter", 5, 0)


def test_a_thread_that_began_in_the_run_counts_from_zero() -> None:
    threads = {use.tid: use for use in session(threads=two_runs()).of_run(BEGIN, END).threads}
    assert (threads[WORKER].cpu_ns, threads[WORKER].voluntary) == (7, 1)


def test_a_thread_that_died_in_the_run_keeps_what_was_seen_but_no_switches() -> None:
    second = END + 1_000_000_000
    loop = next(use for use in session(threads=two_runs()).of_run(second, second + 2_000).threads)
    assert (loop.tid, loop.cpu_ns, loop.run_delay_ns) == (STEP_LOOP, 190, 9)
    assert loop.voluntary is None and loop.involuntary is None


def test_a_thread_whose_first_mark_was_overwritten_is_left_out() -> None:
    rows = two_runs()
    cut = RingRows(rows.rows[2:], 2, rows.head)
    assert {use.tid for use in session(threads=cut).of_run(BEGIN, END).threads} == set()


def test_cpus_steal_and_throttling_are_differences_and_others_is_what_is_not_ours() -> None:
    cpus = ring(
        (BEGIN - 100, 3, 1_000, 0, 5, 10), (BEGIN - 100, CGROUP, 4, 50),
        (END + 100, 3, 1_900, 7, 6, 30), (END + 100, CGROUP, 6, 90),
    )  # fmt: skip
    probes = session(cpus=cpus, threads=two_runs()).of_run(BEGIN, END)
    (cpu,) = probes.cpus
    assert (cpu.cpu, cpu.busy_ns, cpu.idle_ns, cpu.irq_ns, cpu.steal_ns) == (3, 900, 7, 1, 20)
    assert (probes.throttled_periods, probes.throttled_ns) == (2, 40)
    assert probes.others_ns == 900 - (100 + 5 + 7)
    assert probes.steal_share == 20 / (END - BEGIN + 200)


def test_a_session_without_samples_says_that_it_does_not_know() -> None:
    probes = session().of_run(BEGIN, END)
    assert probes.steal_share is None and probes.others_ns is None and probes.throttled_ns is None
    figures = contention_json(probes)
    assert figures is not None and figures["gil_wait"]["count"] == 0 and figures["gil_wait"]["p99"] is None
    strict_dumps(figures)
    assert contention_json(None) is None


def test_probes_survive_their_file(tmp_path: Path) -> None:
    whole = session(threads=two_runs(), gil=ring((BEGIN, 5, 1), lost=4, exact=0))
    whole.save(tmp_path / "probes.npz")
    again = SessionProbes.load(tmp_path / "probes.npz")
    for name in RINGS:
        assert np.array_equal(again.rings[name].rows, whole.rings[name].rows)
        assert np.array_equal(again.rings[name].head, whole.rings[name].head)
        assert again.rings[name].lost == whole.rings[name].lost


def _arrays(**changed: Int64Array) -> dict[str, Int64Array]:
    good: dict[str, Int64Array] = {}
    for name in RINGS:
        good.update({name: np.zeros((0, 8), np.int64), f"{name}_head": np.zeros(8, np.int64)})
        good[f"{name}_lost"] = np.asarray(0)
    return {**good, **changed}


@pytest.mark.parametrize(
    "changed",
    [
        {"gil": np.zeros((3, 7), np.int64)},
        {"gil": np.zeros((3, 8), np.float64)},
        {"gil": np.zeros(3, np.int64)},
        {"cpus_head": np.zeros(2, np.int64)},
        {"threads_lost": np.zeros(3, np.int64)},
    ],
)
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, changed: dict[str, Int64Array]) -> None:
    np.savez(tmp_path / "good.npz", **_arrays())
    SessionProbes.load(tmp_path / "good.npz")
    np.savez(tmp_path / "probes.npz", **_arrays(**changed))
    with pytest.raises(RunError, match=r"cannot read the probes in .*probes\.npz"):
        SessionProbes.load(tmp_path / "probes.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04junk", b"\x93NUMPY"])
def test_a_file_that_is_no_archive_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "probes.npz").write_bytes(content)
    with pytest.raises(RunError, match=r"probes\.npz"):
        SessionProbes.load(tmp_path / "probes.npz")


def test_submitters_are_told_apart() -> None:
    assert [process_name(number) for number in range(4)] == ["engine", "harness", "submitter", "submitter 2"]
