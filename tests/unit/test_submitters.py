"""Several submitters: together they send one plan, each counts on a cache line of its own and readers sum."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fakes import FakeClock, make_collector
from made_session import make_session

from harness.common.collector import CONTROL_WORDS, SUBMITTER_WORDS, Collector, submitter_line
from harness.common.control import ARMED, PONG, ControlChannel
from harness.common.errors import ChildDiedError, CollectorError, ConfigError, ProtocolError
from harness.common.limits import MAX_SUBMITTERS
from harness.common.plan_file import LoadPlan
from harness.common.protocol import Sampling
from harness.config.run_config import RunConfig
from harness.host.cores import deal_cores, default_placement
from harness.measures.records import read_session
from harness.measures.shards import shards_json
from harness.session.child_specs import submitter_spec
from harness.session.children import Child
from harness.session.events import Events
from harness.session.live import merged_pacer
from submitter_proc.frames import PackedRun, Shard, pack_run
from submitter_proc.pacer import PythonPacer, Waiting

pytestmark = pytest.mark.timeout(20)
ROWS = 11


def plan() -> LoadPlan:
    return LoadPlan(
        np.arange(ROWS, dtype=np.int64) * 10,
        np.arange(1, ROWS + 1, dtype=np.int32),
        prompt_ids=np.arange(ROWS, dtype=np.int32),
        prompt_starts=np.arange(ROWS + 1, dtype=np.int64),
    )


def pack(shard: Shard, block: np.ndarray | None = None, rows: int = ROWS) -> PackedRun:
    block = np.zeros((100, 8), dtype=np.int64) if block is None else block
    return pack_run(plan(), Sampling(seed=5), 20, rows, block, shard)


def frames(run: PackedRun) -> list[bytes]:
    return [run.frames[run.starts[i] : run.starts[i + 1]].tobytes() for i in range(run.num_requests)]


@pytest.mark.parametrize("total", [1, 2, 3, 20])
def test_the_shards_of_a_plan_are_the_frames_and_times_of_the_plan_sent_by_one(total: int) -> None:
    whole = pack(Shard())
    shards = [pack(Shard(k, total)) for k in range(total)]
    merged: list[bytes] = [b""] * ROWS
    offsets = np.zeros(ROWS, dtype=np.int64)
    for k, shard in enumerate(shards):
        merged[k::total] = frames(shard)
        offsets[k::total] = shard.offsets_ns
    assert merged == frames(whole)
    assert np.array_equal(offsets, whole.offsets_ns)


@pytest.mark.parametrize("total", [1, 2, 5, 20])
def test_the_shards_stamp_each_row_of_the_run_once_and_no_other(total: int) -> None:
    block, control = np.zeros((100, 8), dtype=np.int64), np.zeros(1024, dtype=np.int64)
    for k in range(total):
        run = pack(Shard(k, total), block)
        assert not block[20 + k : 20 + ROWS : total].any()
        pacer = PythonPacer(lambda frame: 0, control, FakeClock(10, tick=1), k)
        assert pacer.run(run, 0, Waiting(relative=False, margin_ns=10**12)).handled == run.num_requests
    assert np.flatnonzero(block[:, 3]).tolist() == list(range(20, 20 + ROWS))
    sent = [int(control[CONTROL_WORDS["sent"] + submitter_line(k)]) for k in range(total)]
    assert sent == [len(range(k, ROWS, total)) for k in range(total)]


def test_each_submitter_counts_on_a_cache_line_of_its_own_within_the_control_pages(tmp_path: Path) -> None:
    collector = make_collector(tmp_path, rows=1, steps=1, tokens=1, meta={})
    lines = [(CONTROL_WORDS[word] + submitter_line(k)) // 8 for k in range(MAX_SUBMITTERS) for word in SUBMITTER_WORDS]
    assert len(set(lines)) == MAX_SUBMITTERS and max(lines) * 8 + 7 < len(collector.control)
    others = {cell // 8 for name, cell in CONTROL_WORDS.items() if name not in SUBMITTER_WORDS}
    assert not others & set(lines)


def test_readers_see_the_sum_of_all_submitters_words(tmp_path: Path) -> None:
    collector = make_collector(tmp_path, rows=1, steps=1, tokens=1, meta={"submitters": 3})
    for k in range(3):
        collector.control[CONTROL_WORDS["sent"] + submitter_line(k)] = 10**k
    assert collector.word("sent") == 111
    assert [collector.submitter_word("sent", k) for k in range(3)] == [1, 10, 100]


@pytest.mark.parametrize("count", [0, -1, 65, "2", 1.0])
def test_a_collector_that_names_no_possible_number_of_submitters_is_damaged(tmp_path: Path, count: object) -> None:
    with pytest.raises(CollectorError, match="submitters"):
        make_collector(tmp_path, rows=1, steps=1, tokens=1, meta={"submitters": count})


@pytest.mark.parametrize(
    ("cpus", "count", "dealt"),
    [((4,), 1, ((4,),)), ((0, 1, 2, 3), 2, ((0, 1), (2, 3))), ((0, 1, 2), 2, ((0,), (1, 2))),
     ((5,), 2, ((5,), (5,))), ((0, 1), 3, ((0,), (1,), (0,)))],
)  # fmt: skip
def test_a_list_of_cores_is_dealt_out(cpus: tuple[int, ...], count: int, dealt: tuple[tuple[int, ...], ...]) -> None:
    assert deal_cores(cpus, count) == dealt


@pytest.mark.parametrize(
    ("cores", "count", "submitters", "engine", "harness"),
    [(1, 2, (0,), (0,), (0,)), (2, 2, (0,), (1,), (1,)), (3, 2, (0, 1), (2,), (2,)), (4, 2, (0, 1), (3,), (2,)),
     (8, 2, (0, 1, 2, 3), (5, 6, 7), (4,)), (8, 4, (0, 1, 2, 3), (5, 6, 7), (4,)), (4, 9, (0, 1, 2), (3,), (3,))],
)  # fmt: skip
def test_each_submitter_gets_a_core_while_the_engine_keeps_one(
    cores: int, count: int, submitters: tuple[int, ...], engine: tuple[int, ...], harness: tuple[int, ...]
) -> None:
    placement = default_placement(range(cores), siblings=lambda cpu: frozenset({cpu}), submitters=count)
    assert (placement.submitter, placement.engine, placement.harness) == (submitters, engine, harness)
    assert len(placement.shards) == count
    assert f"{count} submitters on" in placement.note
    assert ("cannot spin" in placement.note) == (len(submitters) < count)


def test_only_a_submitter_alone_on_its_core_may_spin() -> None:
    def own(cpus: int, count: int) -> list[bool]:
        placement = default_placement(range(cpus), siblings=lambda cpu: frozenset({cpu}), submitters=count)
        return [submitter_spec(RunConfig(submitters=count), placement, k).own_core for k in range(count)]

    assert own(4, 2) == [True, True]
    assert own(2, 2) == [False, False]
    assert own(4, 4) == [False, True, True, False]  # three cores for four


def test_a_relative_schedule_has_one_submitter() -> None:
    with pytest.raises(ConfigError, match=r"--submitters.*relative"):
        RunConfig(submitters=2, schedule="relative")


@pytest.mark.parametrize("count", [0, -1, 65, "two"])
def test_an_impossible_number_of_submitters_is_refused_by_flag(count: object) -> None:
    with pytest.raises(ConfigError, match="--submitters"):
        RunConfig(submitters=count)


def test_the_pacers_reports_are_one_with_the_worst_of_each() -> None:
    one = {"name": "compiled", "fallback": "", "wait": "hybrid", "margin_ns": 1, "sleep_overshoot_ns": {"max_ns": 9}}
    other = {**one, "wait": "sleep", "margin_ns": 5, "sleep_overshoot_ns": {"max_ns": 7}}
    merged = merged_pacer([one, other])
    assert (merged["name"], merged["wait"], merged["margin_ns"]) == ("compiled", "hybrid, sleep", 5)
    assert merged["sleep_overshoot_ns"] == {"max_ns": 9} and merged["shards"] == [one, other]
    assert merged_pacer([one]) == one


def test_the_lag_of_each_submitter_is_of_its_own_requests(tmp_path: Path) -> None:
    made = make_session(tmp_path, n=8)
    for row in range(1, 8, 2):
        made.add("t_intended", row, -1_000_000)
    made.clear(3, "t_send", "send_result")
    record = read_session(made.collector, made.plan).runs[0]
    even, odd = shards_json(record, 2)
    assert (even["planned"], even["sent"], odd["sent"]) == (4, 4, 3)
    assert even["submit_lag"]["max"] == 40 / 1e6 and odd["submit_lag"]["min"] == 1 + 40 / 1e6


class Peers:
    """Children as the harness sees them, and their ends of the channels."""

    def __init__(self, events: Events, folder: Path, names: list[str]) -> None:
        self.children, self.theirs = [], []
        for name in names:
            ours, theirs = socket.socketpair()
            process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            self.children.append(Child(name, process, ControlChannel(ours), os.pidfd_open(process.pid), folder / name))
            self.theirs.append(ControlChannel(theirs))
            events.watch_child(self.children[-1])


@pytest.fixture
def events() -> Iterator[Events]:
    made = Events()
    yield made
    made.close()


@pytest.fixture
def peers(events: Events, tmp_path: Path) -> Iterator[Peers]:
    made = Peers(events, tmp_path, ["submitter-0", "submitter-1"])
    yield made
    for child, theirs in zip(made.children, made.theirs, strict=True):
        theirs.close()
        assert child.process.stdin is not None
        child.process.stdin.close()
        child.end(5)


def test_a_word_of_each_is_awaited_in_any_order(events: Events, peers: Peers) -> None:
    peers.theirs[1].send(ARMED)
    peers.theirs[0].send(ARMED)
    events.expect_each(peers.children, ARMED, 5)


def test_one_that_is_silent_is_named(events: Events, peers: Peers) -> None:
    peers.theirs[0].send(ARMED)
    with pytest.raises(ChildDiedError, match="the submitter-1 gave no ARMED"):
        events.expect_each(peers.children, ARMED, 0.2)


@pytest.mark.parametrize("words", [[PONG], [ARMED, ARMED]])
def test_another_word_or_a_second_one_is_a_broken_protocol(events: Events, peers: Peers, words: list[str]) -> None:
    for word in words:
        peers.theirs[0].send(word)
    with pytest.raises(ProtocolError, match="of the submitter-0"):
        events.expect_each(peers.children, ARMED, 5)


def test_a_collector_tells_how_many_submitters_write_into_it(tmp_path: Path) -> None:
    made = make_collector(tmp_path, rows=1, steps=1, tokens=1, meta={"submitters": 5})
    assert Collector.attach(made.path, writable=False).submitters == 5
