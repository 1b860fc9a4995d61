"""The submitter as a thread of the engine's process: the published clock, and add_request as one call."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import FakeClock, make_collector
from made_session import make_session

from engine_proc.backends.base import Capacity, EngineRequest
from engine_proc.inproc import SLICE_NS, InprocSubmitter, Load, prepare_run
from engine_proc.intake.admission import Admission
from engine_proc.intake.inbox import Inbox
from harness.common import control as words
from harness.common.control import ControlChannel
from harness.common.errors import ConfigError
from harness.common.plan_file import LoadPlan
from harness.common.protocol import Sampling
from harness.common.stamps import INPROC_LEDGER, STAMPS, SendResult
from harness.config.run_config import RunConfig
from harness.config.topology import check_topology_plan, place
from harness.host.cores import default_placement, joined
from harness.measures.ledger import audit_run, part_values, ttft_values
from harness.measures.records import read_session

pytestmark = pytest.mark.timeout(20)

GAP, T0, ENCODE = 1_000_000, 10_000_000, 300_000


class Setup:
    """A submitter of `n` requests over fakes: encoding takes ENCODE ns, every sleep is exact and remembered."""

    def __init__(self, folder: Path, n: int = 3, pretok: bool = False, relative: bool = False, gap: int = GAP) -> None:
        self.clock = FakeClock(now=T0 - GAP)
        self.collector = make_collector(folder, rows=n)
        self.sleeps: list[int] = []
        self.inbox, self.crashes = Inbox(), list[BaseException]()
        ours, theirs = socket.socketpair()
        self.harness, channel = ControlChannel(ours), ControlChannel(theirs)
        admission = Admission(
            self.collector, self.inbox, self, Capacity(100, 1000), 0, self.clock, self.crashes.append
        )  # fmt: skip
        self.load = Load(plan_of(n, pretok, gap), Sampling(seed=7), relative)
        self.settled = self.stop_at_sleep = 0
        self.submitter = InprocSubmitter(
            channel, self.load, admission, self.collector, self.clock, self.settle, self.crashes.append, self.sleep
        )

    def encode(self, text: str) -> list[int]:
        self.clock.now += ENCODE
        return [len(text)]

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(round(seconds * 1e9))
        self.clock.now += self.sleeps[-1]
        if len(self.sleeps) == self.stop_at_sleep:
            self.collector.set_word("stop", 1)

    def settle(self) -> None:
        self.settled += 1

    def pace(self) -> int:
        return self.submitter.pace(prepare_run(self.load, 0, len(self.load.plan.offsets_ns)), T0)

    def column(self, name: str) -> list[int]:
        return [int(value) for value in self.collector.column(name)]


def plan_of(n: int, pretok: bool, gap: int = GAP, **more: Any) -> LoadPlan:
    offsets, new = np.arange(n, dtype=np.int64) * gap, np.full(n, 2, dtype=np.int32)
    starts = np.arange(n + 1, dtype=np.int64)
    if pretok:
        return LoadPlan(offsets, new, prompt_ids=np.arange(n, dtype=np.int32), prompt_starts=starts, **more)
    return LoadPlan(offsets, new, texts=np.full(n, ord("a"), dtype=np.uint8), text_starts=starts, **more)


def test_a_request_arrives_at_the_instant_of_its_send_and_is_tokenized_within_the_call(tmp_path: Path) -> None:
    made = Setup(tmp_path)
    assert made.pace() == 3
    send, sent = made.column("t_send"), made.column("t_sent")
    assert send == made.column("t_wire") == made.column("t_ingress") == made.column("t_tokenize_start")
    assert [b - a for a, b in zip(send, made.column("t_tokenized"), strict=True)] == [ENCODE] * 3
    assert [b - a for a, b in zip(send, sent, strict=True)] == [ENCODE] * 3
    assert made.column("send_result") == [SendResult.SENT] * 3
    assert made.column("t_slot") == made.column("t_intended")
    counters = [made.collector.word(name) for name in ("sent", "wire_messages", "ingress")]
    assert counters == [3, 3, 3]


def test_a_tokenized_request_costs_no_tokenizing(tmp_path: Path) -> None:
    made = Setup(tmp_path, pretok=True)
    assert made.pace() == 3
    assert made.column("t_tokenized") == made.column("t_send") == made.column("t_sent")
    items = made.inbox.take_all()
    assert items == [EngineRequest(i, [i], 2, Sampling(seed=7 + i)) for i in range(3)]


def test_the_absolute_clock_sleeps_to_t0_and_the_offset(tmp_path: Path) -> None:
    made = Setup(tmp_path)
    made.pace()
    assert made.column("t_intended") == made.column("t_send") == [T0, T0 + GAP, T0 + 2 * GAP]
    assert made.sleeps == [GAP, GAP - ENCODE, GAP - ENCODE]


def test_the_relative_clock_sleeps_the_interval_after_each_call(tmp_path: Path) -> None:
    made = Setup(tmp_path, relative=True)
    made.pace()
    assert made.column("t_send") == [T0, T0 + GAP + ENCODE, T0 + 2 * (GAP + ENCODE)]
    assert made.column("t_intended") == made.column("t_send")
    assert made.sleeps == [GAP, GAP, GAP]


def test_a_late_request_is_sent_at_once_and_keeps_its_intended_time(tmp_path: Path) -> None:
    made = Setup(tmp_path, gap=ENCODE // 3)
    made.pace()
    assert made.column("t_intended") == [T0 + i * (ENCODE // 3) for i in range(3)]
    assert made.column("t_send") == [T0 + i * ENCODE for i in range(3)]


@pytest.mark.parametrize("relative", [False, True])
def test_the_stop_word_ends_a_long_sleep_within_a_slice(tmp_path: Path, relative: bool) -> None:
    made = Setup(tmp_path, relative=relative, gap=1000 * SLICE_NS)
    made.stop_at_sleep = 5
    assert made.pace() == 1
    assert max(made.sleeps) <= SLICE_NS and len(made.sleeps) == 5
    assert made.column("t_intended")[1:] == [0, 0]


def test_the_thread_answers_as_a_submitter_process_does(tmp_path: Path) -> None:
    made = Setup(tmp_path)
    made.submitter.open()
    made.submitter.begin()
    made.harness.send(words.ARM, first_row=0, rows=3)
    assert made.harness.expect(words.ARMED, 10).body == {}
    assert made.settled == 1
    made.harness.send(words.START, t0_ns=T0)
    assert made.harness.expect(words.RUN_SENT, 10).body == {"handled": 3, "errno": 0}
    made.collector.set_word("stop", 1)
    made.harness.send(words.DETOKENIZE, rows=[])
    left = made.submitter.close()
    assert made.crashes == []
    message = left or made.submitter._channel.receive(5)  # whoever took it, it is there for the engine
    assert message is not None and message.kind == words.DETOKENIZE


def test_a_message_that_it_does_not_know_is_told_to_the_step_loop(tmp_path: Path) -> None:
    made = Setup(tmp_path)
    made.submitter.begin()
    made.harness.send(words.TOKENIZE, texts=[])
    made.submitter.close()
    assert ["TOKENIZE" in str(crash) for crash in made.crashes] == [True]


# Its ledger


def test_the_parts_of_one_process_sum_to_ttft_and_the_stamps_must_coincide(tmp_path: Path) -> None:
    made = make_session(tmp_path, config={"topology": "inproc"})
    for name in ("t_wire", "t_ingress"):
        made.collector.column(name)[:] = made.collector.column("t_send")
    record = read_session(made.collector, made.plan).runs[0]
    assert audit_run(record, INPROC_LEDGER, relative=False).count == 0
    parts = [part_values(record, part) for part in INPROC_LEDGER.parts]
    assert np.array_equal(np.sum(parts, axis=0), ttft_values(record))
    made.add("t_wire", 3, 5)
    made.add("t_ingress", 3, 5)
    broken = audit_run(read_session(made.collector, made.plan).runs[0], INPROC_LEDGER, relative=False)
    assert [(one.request, one.part) for one in broken.examples] == [(3, "t_send -> t_wire")]


def test_the_ledger_of_one_process_has_every_stamp_in_its_chains() -> None:
    assert {stamp for chain in INPROC_LEDGER.chains for stamp in chain} == set(STAMPS)
    assert [part.name for part in INPROC_LEDGER.parts if part.name in ("transit", "ingress_wait")] == []


# What cannot be had with it


@pytest.mark.parametrize(
    ("name", "value"),
    [("pacer", "python"), ("wait", "sleep"), ("rt", True), ("submitter_cores", "0"), ("submitters", 1),
     ("payload", "inline"), ("ingress", "thread"), ("abort_after_ms", 5), ("max_concurrency", 2), ("think_time", "5")],
)  # fmt: skip
def test_a_flag_without_a_meaning_in_one_process_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^--{name.replace('_', '-')} means nothing with --topology inproc"):
        RunConfig(topology="inproc", **{name: value})
    RunConfig(**{name: value})


def test_a_gated_plan_is_refused_in_one_process() -> None:
    gates = {"after": np.array([-1, 0], dtype=np.int64), "think_ns": np.zeros(2, dtype=np.int64)}
    gated = plan_of(2, pretok=True, **gates)
    with pytest.raises(ConfigError, match=r"^--topology inproc cannot run this plan"):
        check_topology_plan("inproc", gated)
    check_topology_plan("separate", gated)
    check_topology_plan("inproc", plan_of(2, pretok=True))


def test_one_process_has_the_cores_of_both_and_computes_with_the_engines_threads() -> None:
    apart = default_placement([0, 1, 2, 3])
    together = joined(apart)
    assert set(together.engine) == set(apart.engine) | set(apart.submitter)
    assert (together.harness, together.shards) == (apart.harness, ())
    assert together.engine_threads == len(apart.engine)
    assert "threads of one process" in together.note


def test_cores_asked_for_are_those_of_the_whole_process() -> None:
    core = min(os.sched_getaffinity(0))
    asked = place(RunConfig(topology="inproc", engine_cores=str(core)), [core, core + 1])
    assert (asked.engine, asked.engine_threads) == ((core,), 1)
