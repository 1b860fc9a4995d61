"""The pacer of loads that react: who is due when, who waits for a slot; the compiled loop against its plain oracle."""

from __future__ import annotations

import errno as codes
import shutil
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import zmq
from fakes import FakeClock

from harness.common.clock import monotonic_ns
from harness.common.collector import CONTROL_WORDS, Int64Array
from harness.common.plan_file import LoadPlan
from harness.common.sockets import (
    endpoint,
    make_context,
    make_socket_folder,
    pull_socket,
    push_socket,
    wait_until_connected,
)
from harness.common.stamps import SendResult
from submitter_proc.frames import PackedRun
from submitter_proc.gated import ENDED, GatedPacer, GatedPythonPacer, Gates, gates_of
from submitter_proc.gated_compiled import GatedCompiledPacer, compile_gated
from submitter_proc.pacer import INTENDED, RESULT, SEND, SENT, SLOT, PaceEnd, PythonPacer, Waiting, zmq_sender

pytestmark = pytest.mark.timeout(20)

T0 = 1_000_000
SPIN = Waiting(relative=False, margin_ns=2**61)  # every wait is a spin, but for the one without an end
TICK = 10


def plan_of(offsets: Sequence[int], after: Sequence[int] | None = None, think: Sequence[int] | None = None) -> LoadPlan:
    n = len(offsets)
    return LoadPlan(
        np.array(offsets, np.int64), np.ones(n, np.int32), prompt_ids=np.zeros(n, np.int32),
        prompt_starts=np.arange(n + 1, dtype=np.int64), after=None if after is None else np.array(after, np.int32),
        think_ns=None if after is None else np.array([0] * n if think is None else think, np.int64),
    )  # fmt: skip


def packed_of(plan: LoadPlan) -> PackedRun:
    n = plan.num_requests
    frames = np.repeat(np.arange(n, dtype=np.int32).view(np.uint8).reshape(n, 4), 1, axis=0).reshape(-1)
    starts = np.arange(n + 1, dtype=np.int64) * 4  # frame i is the number i
    return PackedRun(frames, starts, plan.offsets_ns, np.zeros((n, 8), np.int64))


class Engine:
    """Serves each request for `service` ns of the fake clock that it drives, all at once; some never end."""

    def __init__(self, plan: LoadPlan, service: int, cap: int = 0, outcomes: dict[int, int] | None = None) -> None:
        self.run, self.heard = packed_of(plan), np.zeros((plan.num_requests, 8), np.int64)
        self.gates = gates_of(plan, plan.num_requests, self.heard, cap)
        self.control: Int64Array = np.zeros(512, np.int64)
        self.clock = FakeClock(T0 - 500, tick=TICK)
        self.service, self.outcomes, self.never = service, outcomes or {}, set[int]()
        self.order: list[int] = []
        self._ends: dict[int, int] = {}
        self._turns = 0

    def send(self, frame: memoryview) -> int:
        row = int(np.frombuffer(frame, np.int32)[0])
        self.order.append(row)
        outcome = self.outcomes.get(row, 0)
        if outcome == 0 and row not in self.never:
            self._ends[row] = self.clock.now + self.service
        return outcome

    def read(self) -> int:
        """The clock; what has ended by then is written as the receiver writes it: the row, then the count."""
        now = self.clock()
        for row in [row for row, end in self._ends.items() if end <= now]:
            self.heard[row, ENDED] = self._ends.pop(row)
            self.control[CONTROL_WORDS["finished"]] += 1
        self._turns += 1
        if self._turns == 20_000:
            self.control[CONTROL_WORDS["stop"]] = 1
        return now

    def pace(self) -> PaceEnd:
        return GatedPythonPacer(self.send, self.control, self.read).run(self.run, self.gates, T0, SPIN)

    def column(self, cell: int) -> list[int]:
        return self.run.stamps[:, cell].tolist()

    @property
    def ended(self) -> list[int]:
        return self.heard[:, ENDED].tolist()


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake clock passes by being read."""
    monkeypatch.setattr("submitter_proc.gated.time.sleep", lambda seconds: None)


def test_without_gates_it_is_the_open_loop_to_the_stamp() -> None:
    """The open loop's pacer is the oracle; a look at the ends costs no reading while there are none."""
    engine, plan = Engine(plan_of([0, 1_000, 2_500, 2_500]), 10**9), plan_of([0, 1_000, 2_500, 2_500])
    run = packed_of(plan)
    clock = FakeClock(T0 - 500, tick=TICK)
    PythonPacer(lambda frame: 0, np.zeros(512, np.int64), clock).run(run, T0, SPIN)
    assert engine.pace() == PaceEnd(4, 0)
    for cell in (INTENDED, SLOT, RESULT):
        assert engine.column(cell) == run.stamps[:, cell].tolist()
    assert np.abs(engine.run.stamps[:, SEND] - run.stamps[:, SEND]).max() <= 2 * TICK


def test_a_gated_request_is_due_a_think_time_after_the_end_of_its_predecessor() -> None:
    engine = Engine(plan_of([0, 0, 0], after=[-1, 0, 1], think=[0, 700, 50]), 5_000)
    assert engine.pace() == PaceEnd(3, 0)
    assert engine.column(INTENDED) == [T0, engine.ended[0] + 700, engine.ended[1] + 50]


def test_a_gated_request_waits_for_the_word_of_the_end_and_that_wait_is_its_slot() -> None:
    """With no think time it is due at an end that the pacer hears of later: the difference is not the pacer's lag."""
    engine = Engine(plan_of([0, 0], after=[-1, 0]), 5_000)
    engine.pace()
    due, slot, send = (engine.column(cell)[1] for cell in (INTENDED, SLOT, SEND))
    assert due == engine.ended[0] < slot <= send <= slot + TICK


def test_after_a_long_think_time_nothing_was_waited_for() -> None:
    engine = Engine(plan_of([0, 0], after=[-1, 0], think=[0, 9_000]), 5_000)
    engine.pace()
    assert engine.column(SLOT)[1] == engine.column(INTENDED)[1]


def test_a_cap_makes_a_due_request_wait_for_the_end_of_another() -> None:
    engine = Engine(plan_of([0, 100, 200]), 5_000, cap=1)
    assert engine.pace() == PaceEnd(3, 0)
    assert engine.column(INTENDED) == [T0, T0 + 100, T0 + 200], "the plan is never rebased"
    assert engine.ended[0] <= engine.column(SLOT)[1] <= engine.column(SEND)[1] <= engine.column(SLOT)[1] + 2 * TICK
    assert engine.ended[1] <= engine.column(SLOT)[2]


def test_a_request_that_finds_a_free_slot_has_waited_for_none() -> None:
    engine = Engine(plan_of([0, 50_000, 100_000]), 5_000, cap=1)
    engine.pace()
    assert engine.column(SLOT) == engine.column(INTENDED)


@pytest.mark.parametrize("cap", [1, 2, 3, 7])
def test_never_more_than_the_cap_are_in_flight(cap: int) -> None:
    engine = Engine(plan_of([0] * 20), 3_000, cap=cap)
    engine.pace()
    sends, ends = engine.column(SEND), [end for end in engine.ended if end]
    in_flight = [sum(send <= at for send in sends) - sum(end <= at for end in ends) for at in sends]
    assert max(in_flight) == cap


def test_a_refused_send_holds_no_slot_and_counts_as_an_end() -> None:
    engine = Engine(plan_of([0, 0, 0], after=[-1, 0, -1], think=[0, 40, 0]), 5_000, 1, {0: codes.EAGAIN})
    assert engine.pace() == PaceEnd(3, 0)
    assert engine.column(RESULT) == [SendResult.REFUSED, SendResult.SENT, SendResult.SENT]
    assert engine.column(INTENDED)[1] == engine.column(SENT)[0] + 40
    assert engine.column(SLOT)[2] == T0, "the slot that request 0 did not take"


def test_what_waits_for_a_request_that_never_ends_stays_unsent_and_others_go_on() -> None:
    engine = Engine(plan_of([0, 0, 0, 0], after=[-1, -1, 0, 1]), 5_000)
    engine.never = {0}
    assert engine.pace() == PaceEnd(3, 0), "the stop word ended it"
    assert engine.order == [0, 1, 3]
    assert not engine.run.stamps[2].any()


def test_due_requests_leave_in_the_order_of_their_due_times_then_rows() -> None:
    after = [-1, -1, -1, 0, 1, 2, 2, -1]
    engine = Engine(plan_of([0, 0, 0, 0, 0, 0, 0, 9_000], after, [0, 0, 0, 8_000, 300, 300, 300, 0]), 1_000)
    engine.pace()
    due = engine.column(INTENDED)
    assert engine.order == sorted(range(8), key=lambda row: (due[row], row))
    assert engine.order[:3] == [0, 1, 2] and engine.order[-1] == 3


def test_an_error_of_the_send_call_ends_the_run() -> None:
    engine = Engine(plan_of([0, 0]), 1_000, outcomes={0: codes.ENOTSOCK})
    assert engine.pace() == PaceEnd(1, codes.ENOTSOCK)


def test_the_stop_word_ends_a_wait_for_an_end() -> None:
    engine = Engine(plan_of([0, 0], after=[-1, 0]), 10**15)
    assert engine.pace() == PaceEnd(1, 0)


# The real thing: both pacers over ZeroMQ, with an engine that ends what it gets.


@pytest.fixture(scope="module")
def loop() -> Any:
    return compile_gated()


@pytest.fixture
def line() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    folder, context = make_socket_folder(), make_context()
    pull = pull_socket(context, endpoint(folder, "data"), 1 << 16)
    push = push_socket(context, endpoint(folder, "data"))
    try:
        assert wait_until_connected(push, 5)
        yield push, pull
    finally:
        context.destroy(linger=0)
        shutil.rmtree(folder)


def serve(pull: zmq.Socket[bytes], heard: Int64Array, control: Int64Array) -> None:
    """Ends every request the moment it comes, as the receiver would say it."""
    for _ in range(len(heard)):
        row = int(np.frombuffer(pull.recv(), np.int32)[0])
        heard[row, ENDED] = monotonic_ns()
        control[CONTROL_WORDS["finished"]] += 1


@pytest.mark.parametrize("margin_ns", [0, 50_000])
@pytest.mark.parametrize("kind", ["python", "compiled"])
def test_both_pacers_keep_to_gates_and_cap(kind: str, margin_ns: int, loop: Any, line: Any, monkeypatch: Any) -> None:
    monkeypatch.undo()  # real sleeps
    push, pull = line
    rows, cap = np.arange(300), 3
    think = (rows * 7919 % 5) * 100_000
    plan = plan_of([0] * 300, np.where(rows < 5, -1, rows - 5).tolist(), np.where(rows < 5, 0, think).tolist())
    run, heard, control = packed_of(plan), np.zeros((300, 8), np.int64), np.zeros(512, np.int64)
    gates, t0 = gates_of(plan, 300, heard, cap), monotonic_ns() + 1_000_000
    pacer: GatedPacer = GatedPythonPacer(zmq_sender(push), control, monotonic_ns)
    if kind == "compiled":
        pacer = GatedCompiledPacer(loop, push, control)
    engine = threading.Thread(target=serve, args=(pull, heard, control), daemon=True)
    engine.start()
    assert pacer.run(run, gates, t0, Waiting(False, margin_ns)) == PaceEnd(300, 0)
    engine.join()
    intended, slot, send, sent = (run.stamps[:, cell] for cell in (INTENDED, SLOT, SEND, SENT))
    assert (intended <= slot).all() and (slot <= send).all() and (send <= sent).all()
    assert intended[:5].tolist() == [t0] * 5
    assert (intended[5:] == heard[:-5, ENDED] + plan.think_ns[5:]).all()  # type: ignore[index]
    ends = np.sort(heard[:, ENDED])
    assert (np.searchsorted(np.sort(send), send, "right") - np.searchsorted(ends, send, "right")).max() <= cap
    assert control[CONTROL_WORDS["sent"]] == 300


@pytest.mark.parametrize("n", [0, 1])
def test_the_compiled_loop_takes_runs_of_none_and_of_one(n: int, loop: Any, line: Any) -> None:
    plan = plan_of([0] * n)
    gates = gates_of(plan, n, np.zeros((n, 8), np.int64), 1)
    assert GatedCompiledPacer(loop, line[0], np.zeros(512, np.int64)).run(
        packed_of(plan), gates, monotonic_ns(), Waiting(False, 0)
    ) == PaceEnd(n, 0)


def test_gates_of_a_run_s_first_requests_name_none_beyond_them() -> None:
    plan = plan_of([0] * 5, after=[-1, 0, 0, 2, 1])
    gates = gates_of(plan, 3, np.zeros((3, 8), np.int64), 0)
    assert isinstance(gates, Gates)
    assert (gates.roots.tolist(), gates.children.tolist(), gates.child_starts.tolist()) == ([0], [1, 2], [0, 2, 2, 2])
