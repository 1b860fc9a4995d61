"""The pacer: deadlines, outcomes of the send call, the stop word; and the compiled loop against its plain oracle."""

from __future__ import annotations

import errno as codes
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import zmq
from fakes import FakeClock

from harness.common.clock import monotonic_ns
from harness.common.collector import CONTROL_WORDS, Int64Array
from harness.common.sockets import (
    endpoint,
    make_context,
    make_socket_folder,
    pull_socket,
    push_socket,
    wait_until_connected,
)
from harness.common.stamps import SendResult
from helpers import wait_until
from submitter_proc.frames import PackedRun
from submitter_proc.pacer import ERRNO, INTENDED, RESULT, SEND, SENT, PaceEnd, Pacer, PythonPacer, Waiting, zmq_sender
from submitter_proc.pacer_compiled import CompiledPacer, compile_pace

pytestmark = pytest.mark.timeout(20)

T0 = 1_000_000
#: A margin that makes every wait a spin on the fake clock: nothing sleeps.
SPIN = 10**12
ABSOLUTE, RELATIVE = Waiting(relative=False, margin_ns=SPIN), Waiting(relative=True, margin_ns=SPIN)


def packed(offsets: Sequence[int], frames: Sequence[bytes] | None = None) -> PackedRun:
    frames = [f"frame {i}".encode() * (i % 3 + 1) for i in range(len(offsets))] if frames is None else frames
    starts = np.zeros(len(frames) + 1, dtype=np.int64)
    np.cumsum([len(frame) for frame in frames], out=starts[1:])
    return PackedRun(
        np.frombuffer(b"".join(frames), dtype=np.uint8),
        starts,
        np.array(offsets, dtype=np.int64),
        np.zeros((len(offsets), 8), dtype=np.int64),
    )


class FakeSender:
    """Plays back errnos (0 once they are used up); each call takes `cost` ns on the fake clock."""

    def __init__(self, clock: FakeClock, outcomes: Sequence[int] = (), cost: int = 0) -> None:
        self.frames: list[bytes] = []
        self.clock = clock
        self.cost = cost
        self.outcomes = list(outcomes)

    def __call__(self, frame: memoryview) -> int:
        self.frames.append(bytes(frame))
        self.clock.now += self.cost
        return self.outcomes.pop(0) if self.outcomes else 0


@dataclass
class Paced:
    end: PaceEnd
    run: PackedRun
    sender: FakeSender
    clock: FakeClock
    control: Int64Array

    def column(self, cell: int) -> list[int]:
        return self.run.stamps[:, cell].tolist()

    def word(self, name: str) -> int:
        return int(self.control[CONTROL_WORDS[name]])


def pace(offsets: Sequence[int], waiting: Waiting, outcomes: Sequence[int] = (), cost: int = 0) -> Paced:
    clock = FakeClock(T0 - 500, tick=10)
    sender = FakeSender(clock, outcomes, cost)
    control = np.zeros(512, dtype=np.int64)
    run = packed(offsets)
    return Paced(PythonPacer(sender, control, clock).run(run, T0, waiting), run, sender, clock, control)


def test_absolute_deadlines_are_t0_plus_offset() -> None:
    paced = pace([0, 1_000, 2_500], ABSOLUTE)
    assert paced.column(INTENDED) == [T0, T0 + 1_000, T0 + 2_500]
    assert paced.end == PaceEnd(3, 0)


def test_a_late_send_never_rebases_the_absolute_plan() -> None:
    paced = pace([0, 1_000, 2_000, 50_000], ABSOLUTE, cost=7_000)
    assert paced.column(INTENDED) == [T0, T0 + 1_000, T0 + 2_000, T0 + 50_000]
    assert paced.column(SEND)[1] > T0 + 7_000
    assert paced.column(SEND)[3] < T0 + 50_020, "once the plan gives it time, the pacer has caught up"


def test_a_late_pacer_sends_now() -> None:
    paced = pace([0, 0, 0], ABSOLUTE, cost=7_000)
    sent, send = paced.column(SENT), paced.column(SEND)
    assert [send[i + 1] - sent[i] for i in range(2)] == [10, 10], "one clock reading between two sends"


def test_relative_deadline_is_the_end_of_the_previous_send_plus_the_gap() -> None:
    paced = pace([0, 1_000, 2_500], RELATIVE, cost=7_000)
    sent = paced.column(SENT)
    assert paced.column(INTENDED)[1:] == [sent[0] + 1_000, sent[1] + 1_500]


def test_relative_schedule_goes_on_from_a_refused_send() -> None:
    paced = pace([0, 1_000], RELATIVE, outcomes=[codes.EAGAIN], cost=7_000)
    assert paced.column(RESULT) == [SendResult.REFUSED, SendResult.SENT]
    assert paced.column(INTENDED)[1] == paced.column(SENT)[0] + 1_000


@pytest.mark.parametrize("waiting", [ABSOLUTE, RELATIVE])
def test_the_first_deadline_is_t0_plus_its_offset(waiting: Waiting) -> None:
    assert pace([700, 900], waiting).column(INTENDED)[0] == T0 + 700


def test_a_refused_send_is_recorded_and_the_run_goes_on() -> None:
    paced = pace([0, 10, 20], ABSOLUTE, outcomes=[0, codes.EAGAIN, 0])
    assert paced.column(RESULT) == [SendResult.SENT, SendResult.REFUSED, SendResult.SENT]
    assert paced.column(ERRNO) == [0, codes.EAGAIN, 0]
    assert (paced.word("sent"), paced.word("refused"), paced.word("send_errors")) == (2, 1, 0)
    assert paced.end == PaceEnd(3, 0)


def test_an_interrupted_send_is_tried_once_more() -> None:
    paced = pace([0, 10], ABSOLUTE, outcomes=[codes.EINTR, 0])
    assert paced.sender.frames[0] == paced.sender.frames[1] and len(paced.sender.frames) == 3
    assert paced.column(RESULT) == [SendResult.SENT, SendResult.SENT]


def test_a_send_interrupted_twice_is_an_error_not_an_endless_loop() -> None:
    paced = pace([0, 10], ABSOLUTE, outcomes=[codes.EINTR, codes.EINTR])
    assert paced.end == PaceEnd(1, codes.EINTR) and len(paced.sender.frames) == 2


def test_another_errno_ends_the_run_and_leaves_later_rows_unsent() -> None:
    paced = pace([0, 10, 20], ABSOLUTE, outcomes=[0, codes.ENOTSOCK])
    assert paced.end == PaceEnd(2, codes.ENOTSOCK)
    assert paced.column(RESULT) == [SendResult.SENT, SendResult.ERROR, SendResult.NOT_SENT]
    assert paced.column(ERRNO) == [0, codes.ENOTSOCK, 0]
    assert paced.word("send_errors") == 1
    assert not paced.run.stamps[2].any()


def test_t_send_is_the_reading_that_ended_the_wait() -> None:
    paced = pace([0, 1_003, 2_007], ABSOLUTE, cost=40)
    for deadline, send in zip(paced.column(INTENDED), paced.column(SEND), strict=True):
        at = paced.clock.readings.index(send)
        assert send >= deadline > paced.clock.readings[at - 1]


def test_stamps_of_a_row_stand_before_its_send_call() -> None:
    run = packed([0, 10])
    clock = FakeClock(T0, tick=10)
    seen: list[list[int]] = []

    def send(frame: memoryview) -> int:
        seen.append(run.stamps[len(seen), [INTENDED, SEND]].tolist())
        return 0

    PythonPacer(send, np.zeros(512, dtype=np.int64), clock).run(run, T0, ABSOLUTE)
    assert len(seen) == 2
    assert seen == run.stamps[:, [INTENDED, SEND]].tolist()


def test_every_frame_is_sent_once_and_in_order() -> None:
    paced = pace([0, 10, 20, 30], ABSOLUTE)
    data, starts = paced.run.frames.tobytes(), paced.run.starts.tolist()
    assert paced.sender.frames == [data[starts[i] : starts[i + 1]] for i in range(4)]


def test_the_stop_word_ends_the_run_between_two_sends() -> None:
    clock, control, run = FakeClock(T0, tick=10), np.zeros(512, dtype=np.int64), packed([0, 10, 20])

    def send(frame: memoryview) -> int:
        control[CONTROL_WORDS["stop"]] = int(control[CONTROL_WORDS["sent"]] == 1)  # in the second call
        return 0

    assert PythonPacer(send, control, clock).run(run, T0, ABSOLUTE) == PaceEnd(2, 0)
    assert run.stamps[:, RESULT].tolist() == [SendResult.SENT, SendResult.SENT, SendResult.NOT_SENT]
    assert not run.stamps[2].any()


def test_the_stop_word_ends_a_long_sleep_within_a_slice() -> None:
    control, run, readings = np.zeros(512, dtype=np.int64), packed([3_600 * 10**9]), 0

    def clock() -> int:
        nonlocal readings
        readings += 1
        control[CONTROL_WORDS["stop"]] = int(readings == 3)
        return T0

    sender = FakeSender(FakeClock())
    assert PythonPacer(sender, control, clock).run(run, T0, Waiting(False, 0)) == PaceEnd(0, 0)
    assert readings == 3 and sender.frames == []


def test_the_spin_is_counted() -> None:
    paced = pace([0, 1_000], ABSOLUTE)
    assert paced.word("spin_ns") >= 1_000


@pytest.mark.parametrize(("runs_ns", "counted"), [(0, False), (20_000, True), (3_000_000, False)])
def test_a_yield_that_let_the_io_thread_run_is_counted_and_a_hog_s_slice_is_not(
    monkeypatch: pytest.MonkeyPatch, runs_ns: int, counted: bool
) -> None:
    clock = FakeClock(T0 - 1_000_000, tick=100)

    def others_run() -> None:
        clock.now += runs_ns

    monkeypatch.setattr("os.sched_yield", others_run)
    control = np.zeros(512, dtype=np.int64)
    run = packed([0, 500_000])
    PythonPacer(FakeSender(clock), control, clock).run(run, T0, ABSOLUTE)
    yielded = int(control[CONTROL_WORDS["yield_ns"]])
    assert (yielded >= runs_ns) if counted else (yielded == 0)
    assert not counted or yielded <= int(control[CONTROL_WORDS["spin_ns"]])


# The real thing: both pacers over ZeroMQ.


@dataclass
class Line:
    """A connected pair of sockets over ipc."""

    push: zmq.Socket[bytes]
    pull: zmq.Socket[bytes]


@pytest.fixture
def line() -> Iterator[Line]:
    folder, context = make_socket_folder(), make_context()
    pull = pull_socket(context, endpoint(folder, "data"), 1 << 16)
    push = push_socket(context, endpoint(folder, "data"))
    try:
        assert wait_until_connected(push, 5)
        yield Line(push, pull)
    finally:
        context.destroy(linger=0)
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def loop() -> Any:
    return compile_pace()


@pytest.fixture(params=["python", "compiled"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pacer_of(kind: str, loop: Any, socket: zmq.Socket[bytes], control: Int64Array) -> Pacer:
    if kind == "compiled":
        return CompiledPacer(loop, socket, control)
    return PythonPacer(zmq_sender(socket), control, monotonic_ns)


def bursts(n: int) -> PackedRun:
    """Offsets with bursts and gaps, frames of many lengths."""
    return packed([i // 8 * 300_000 for i in range(n)], [bytes([i % 251]) * (1 + i * 37 % 900) for i in range(n)])


@pytest.mark.parametrize("margin_ns", [0, 50_000])
@pytest.mark.parametrize("relative", [False, True])
def test_both_pacers_send_the_very_same_frames_in_order(
    kind: str, loop: Any, line: Line, relative: bool, margin_ns: int
) -> None:
    run, control = bursts(200), np.zeros(512, dtype=np.int64)
    t0 = monotonic_ns() + 1_000_000
    assert pacer_of(kind, loop, line.push, control).run(run, t0, Waiting(relative, margin_ns)) == PaceEnd(200, 0)
    data, starts = run.frames.tobytes(), run.starts.tolist()
    assert [line.pull.recv() for _ in range(200)] == [data[starts[i] : starts[i + 1]] for i in range(200)]
    intended, send, sent = (run.stamps[:, cell] for cell in (INTENDED, SEND, SENT))
    assert (intended <= send).all() and (send <= sent).all()
    assert (sent[:-1] <= send[1:]).all()
    gaps = np.diff(run.offsets_ns)
    expected = np.concatenate([[t0], sent[:-1] + gaps]) if relative else t0 + run.offsets_ns
    assert intended.tolist() == expected.tolist()
    assert (run.stamps[:, RESULT] == SendResult.SENT).all()
    assert control[CONTROL_WORDS["sent"]] == 200


def test_a_peer_that_is_gone_refuses_every_row_and_blocks_nothing(kind: str, loop: Any, line: Line) -> None:
    line.pull.close(linger=0)
    wait_until(lambda: not line.push.poll(0, zmq.POLLOUT), what="the push socket to see that its peer is gone")
    run, control = packed([0] * 50), np.zeros(512, dtype=np.int64)
    assert pacer_of(kind, loop, line.push, control).run(run, monotonic_ns(), Waiting(False, 0)) == PaceEnd(50, 0)
    assert run.stamps[:, RESULT].tolist() == [SendResult.REFUSED] * 50
    assert run.stamps[:, ERRNO].tolist() == [codes.EAGAIN] * 50
    assert (run.stamps[:, SEND] <= run.stamps[:, SENT]).all() and (run.stamps[:, SEND] > 0).all()
    assert (control[CONTROL_WORDS["refused"]], control[CONTROL_WORDS["sent"]]) == (50, 0)


def test_a_socket_that_cannot_send_ends_the_run(kind: str, loop: Any, line: Line) -> None:
    run, control = packed([0, 0, 0]), np.zeros(512, dtype=np.int64)
    end = pacer_of(kind, loop, line.pull, control).run(run, monotonic_ns(), Waiting(False, 0))
    assert end == PaceEnd(1, zmq.ENOTSUP)
    assert run.stamps[:, RESULT].tolist() == [SendResult.ERROR, SendResult.NOT_SENT, SendResult.NOT_SENT]
    assert run.stamps[0, ERRNO] == zmq.ENOTSUP
    assert control[CONTROL_WORDS["send_errors"]] == 1


def test_a_set_stop_word_sends_nothing(kind: str, loop: Any, line: Line) -> None:
    run, control = packed([0, 3_600 * 10**9]), np.zeros(512, dtype=np.int64)
    control[CONTROL_WORDS["stop"]] = 1
    end = pacer_of(kind, loop, line.push, control).run(run, monotonic_ns(), Waiting(False, 0))
    assert end == PaceEnd(0, 0)
    assert not run.stamps.any()


def test_an_empty_run_ends_at_once(kind: str, loop: Any, line: Line) -> None:
    run, control = packed([]), np.zeros(512, dtype=np.int64)
    assert pacer_of(kind, loop, line.push, control).run(run, 0, Waiting(False, 0)) == PaceEnd(0, 0)
