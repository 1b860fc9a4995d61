"""The step loop: which stamps a request gets when, what is sent of it, and what the tables hold."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes import FakeClock, make_collector

from engine_proc.backends.base import Capacity, EngineRequest, Failure, StepOutput, TokenEvent
from engine_proc.egress import MAX_EVENTS, Egress
from engine_proc.inbox import Duplicate, Inbox, InboxItem, Turned
from engine_proc.step_loop import StepLoop
from harness.common.collector import Collector
from harness.common.protocol import Complaint, ResultEvent, Sampling, unpack_results
from harness.common.stamps import STEP_COLUMNS, FinishReason, Reason, Status

pytestmark = pytest.mark.timeout(20)

NONE, LENGTH, EOS = FinishReason.NONE, FinishReason.LENGTH, FinishReason.EOS


def request(row: int) -> EngineRequest:
    return EngineRequest(row, [1, 2], 4, Sampling())


class ScriptedBackend:
    """Plays back step outputs, each taking `cost` ns; sets the stop word when the last one is through."""

    def __init__(self, collector: Collector, clock: FakeClock, outputs: Sequence[StepOutput | Exception]) -> None:
        self.added: list[EngineRequest] = []
        self.has_stepped = threading.Event()
        self._collector = collector
        self._clock = clock
        self._outputs = list(outputs)

    def capacity(self) -> Capacity:
        return Capacity(10, 2**31)

    def describe(self) -> dict[str, object]:
        return {}

    def add(self, request: EngineRequest) -> None:
        self.added.append(request)

    def abort(self, row: int) -> bool:
        return False

    def has_work(self) -> bool:
        if not self._outputs:
            self._collector.set_word("stop", 1)
        return bool(self._outputs)

    def step(self) -> StepOutput:
        self._clock.now += 1_000
        output = self._outputs.pop(0)
        if isinstance(output, Exception):
            raise output
        return output

    def close(self) -> None:
        pass


class FakeEgress:
    def __init__(self) -> None:
        self.messages: list[list[ResultEvent]] = []
        self.complaints: list[tuple[int, str]] = []

    def results(self, events: list[ResultEvent]) -> int:
        self.messages.append(list(events))
        return 1

    def complaint(self, row: int, text: str) -> int:
        self.complaints.append((row, text))
        return 1


class Looped:
    """A loop that has entered `items` and run all `outputs`."""

    def __init__(
        self,
        folder: Path,
        items: Sequence[InboxItem],
        outputs: Sequence[StepOutput | Exception] = (),
        steps: int = 8,
        tokens: int = 32,
    ) -> None:
        self.collector = make_collector(folder, steps=steps, tokens=tokens)
        self.collector.set_word("current_run", 2)
        self.clock = FakeClock(10_000, tick=1)
        self.inbox = Inbox()
        for item in items:
            self.inbox.put(item)
        self.egress = FakeEgress()
        self.backend = ScriptedBackend(self.collector, self.clock, outputs)
        self.loop = StepLoop(self.backend, self.inbox, self.egress, self.collector, self.clock)  # type: ignore[arg-type]

    def run(self) -> Looped:
        self.loop.run()
        return self

    def cell(self, name: str, row: int) -> int:
        return int(self.collector.column(name)[row])

    def step(self, number: int) -> dict[str, int]:
        return dict(zip(STEP_COLUMNS, self.collector.steps[number].tolist(), strict=False))

    def log(self) -> list[tuple[int, int]]:
        return [(int(cell) >> 32, int(cell) & 0xFFFFFFFF) for cell in self.collector.tokens]


def three_steps(row: int) -> list[StepOutput]:
    return [
        StepOutput(admitted=[row], prefill_tokens=2, kv_blocks_used=1),
        StepOutput(tokens=[TokenEvent(row, 50)], decode_rows=1),
        StepOutput(tokens=[TokenEvent(row, 51, LENGTH)], decode_rows=1),
    ]


def test_stamps_of_a_request_stand_in_the_order_of_its_life(tmp_path: Path) -> None:
    looped = Looped(tmp_path, [request(3)], three_steps(3)).run()
    assert looped.backend.added == [request(3)]
    names = ("t_queued", "t_scheduled", "t_first_token", "t_last_token")
    stamps = [looped.cell(name, 3) for name in names]
    assert stamps[0] > 10_000 and stamps == sorted(set(stamps))
    assert stamps[1] == looped.step(0)["t_start"]
    assert stamps[2] == looped.step(1)["t_tokens"]
    assert stamps[3] == looped.step(2)["t_tokens"]
    assert looped.cell("output_tokens", 3) == 2
    assert (looped.cell("engine_status", 3), looped.cell("finish_reason", 3)) == (Status.COMPLETED, LENGTH)


def test_the_backend_s_own_times_are_the_stamps(tmp_path: Path) -> None:
    output = StepOutput(admitted=[3], tokens=[TokenEvent(3, 50)], batch_ns=777, tokens_ns=888)
    looped = Looped(tmp_path, [request(3)], [output]).run()
    assert (looped.cell("t_scheduled", 3), looped.cell("t_first_token", 3)) == (777, 888)
    assert (looped.step(0)["t_batch"], looped.step(0)["t_tokens"]) == (777, 888)


def test_first_token_and_end_are_told_tokens_in_between_are_not(tmp_path: Path) -> None:
    outputs = [StepOutput(tokens=[TokenEvent(3, 50 + i, EOS if i == 3 else NONE)]) for i in range(4)]
    looped = Looped(tmp_path, [request(3)], outputs).run()
    assert looped.egress.messages == [
        [ResultEvent(3, 1, Status.NONE, NONE)],
        [ResultEvent(3, 4, Status.COMPLETED, EOS)],
    ]
    assert (looped.collector.word("egress_messages"), looped.collector.word("terminal")) == (2, 1)


def test_first_and_last_token_in_one_step_are_one_terminal_event(tmp_path: Path) -> None:
    looped = Looped(tmp_path, [request(3)], [StepOutput(admitted=[3], tokens=[TokenEvent(3, 50, LENGTH)])]).run()
    assert looped.egress.messages == [[ResultEvent(3, 1, Status.COMPLETED, LENGTH)]]
    assert looped.cell("t_first_token", 3) == looped.cell("t_last_token", 3) > 0


def test_several_tokens_of_a_row_in_one_step_are_one_first_token(tmp_path: Path) -> None:
    looped = Looped(tmp_path, [request(3)], [StepOutput(tokens=[TokenEvent(3, 50), TokenEvent(3, 51)])]).run()
    assert looped.egress.messages == [[ResultEvent(3, 1, Status.NONE, NONE)]]
    assert looped.cell("output_tokens", 3) == 2


def test_a_failed_row_keeps_its_reason_and_the_tokens_it_had(tmp_path: Path) -> None:
    outputs = [
        StepOutput(tokens=[TokenEvent(3, 50), TokenEvent(4, 60)]),
        StepOutput(failed=[Failure(3, Reason.TOO_LARGE_FOR_CACHE, 9, 8)], tokens=[TokenEvent(4, 61, LENGTH)]),
    ]
    looped = Looped(tmp_path, [request(3), request(4)], outputs).run()
    assert looped.egress.messages[1] == [
        ResultEvent(4, 2, Status.COMPLETED, LENGTH),
        ResultEvent(3, 1, Status.FAILED, NONE),
    ]
    assert looped.cell("engine_status", 3) == Status.FAILED
    assert [looped.cell(name, 3) for name in ("error_code", "error_a", "error_b")] == [Reason.TOO_LARGE_FOR_CACHE, 9, 8]
    assert looped.collector.word("terminal") == 2


def test_preemption_is_counted_and_timed_and_not_restamped(tmp_path: Path) -> None:
    again = [StepOutput(preempted=[(3, 500)], preemptions=1), StepOutput(preempted=[(3, 70)])]
    looped = Looped(tmp_path, [request(3)], [StepOutput(admitted=[3]), *again]).run()
    assert (looped.cell("preemptions", 3), looped.cell("preempted_ns", 3)) == (2, 570)
    assert looped.cell("t_scheduled", 3) == looped.step(0)["t_batch"]
    assert looped.step(1)["preemptions"] == 1


def test_what_ended_at_ingress_is_passed_on_without_the_backend(tmp_path: Path) -> None:
    empty = Turned(5, Status.COMPLETED, FinishReason.EMPTY)
    items: list[InboxItem] = [Turned(3, Status.REJECTED, NONE), request(4), empty]
    looped = Looped(tmp_path, items).run()
    assert looped.backend.added == [request(4)]
    assert looped.egress.messages == [
        [ResultEvent(3, 0, Status.REJECTED, NONE), ResultEvent(5, 0, Status.COMPLETED, FinishReason.EMPTY)]
    ]
    assert looped.cell("t_queued", 3) == 0, "a rejected row never entered the queue"
    assert looped.cell("t_queued", 5) == looped.cell("t_queued", 4) > 0
    assert looped.collector.word("terminal") == 2


def test_a_duplicate_is_complained_about_and_touches_no_row(tmp_path: Path) -> None:
    looped = Looped(tmp_path, [Duplicate(3)]).run()
    assert looped.egress.complaints == [(3, "a request with this id was already seen")]
    assert looped.egress.messages == []
    assert not looped.collector.engine.any()
    assert (looped.collector.word("egress_messages"), looped.collector.word("terminal")) == (1, 0)


def test_the_step_table_holds_every_step(tmp_path: Path) -> None:
    looped = Looped(tmp_path, [request(3)], three_steps(3)).run()
    assert looped.collector.word("steps") == 3
    steps = [looped.step(i) for i in range(3)]
    assert [step["tokens_end"] for step in steps] == [0, 1, 2]
    assert [step["prefill_tokens"] for step in steps] == [2, 0, 0]
    assert [step["decode_rows"] for step in steps] == [0, 1, 1]
    assert [step["kv_blocks_used"] for step in steps] == [1, 0, 0]
    assert [step["run"] for step in steps] == [2, 2, 2]
    for step in steps:
        assert step["t_start"] <= step["t_batch"] <= step["t_tokens"] <= step["t_end"]
        assert step["t_tokens"] - step["t_start"] > 1_000
    assert steps[0]["t_end"] <= steps[1]["t_start"]
    assert looped.step(3)["t_start"] == 0


def test_the_token_log_holds_every_token_in_order(tmp_path: Path) -> None:
    outputs = [
        StepOutput(tokens=[TokenEvent(3, 50), TokenEvent(7, 2**31 - 1)]),
        StepOutput(tokens=[TokenEvent(3, 0, LENGTH)]),
    ]
    looped = Looped(tmp_path, [request(3), request(7)], outputs).run()
    assert looped.collector.word("tokens") == 3
    assert looped.log()[:3] == [(3, 50), (7, 2**31 - 1), (3, 0)]


def test_a_full_token_log_counts_what_it_loses_and_stamps_go_on(tmp_path: Path) -> None:
    outputs = [StepOutput(tokens=[TokenEvent(3, i), TokenEvent(4, i)]) for i in range(3)]
    looped = Looped(tmp_path, [request(3), request(4)], outputs, tokens=3).run()
    assert looped.log() == [(3, 0), (4, 0), (3, 1)]
    assert (looped.collector.word("tokens"), looped.collector.word("tokens_lost")) == (3, 3)
    assert [looped.cell("output_tokens", row) for row in (3, 4)] == [3, 3]
    assert [looped.step(i)["tokens_end"] for i in range(3)] == [2, 3, 3]


def test_a_full_step_table_counts_what_it_loses_and_stamps_go_on(tmp_path: Path) -> None:
    looped = Looped(tmp_path, [request(3)], three_steps(3), steps=2).run()
    assert (looped.collector.word("steps"), looped.collector.word("steps_lost")) == (2, 1)
    assert looped.cell("engine_status", 3) == Status.COMPLETED
    assert looped.collector.word("tokens") == 2


def test_the_longest_step_and_the_last_one_are_told_to_the_harness(tmp_path: Path) -> None:
    looped = Looped(tmp_path, [request(3)], three_steps(3)).run()
    lengths = [looped.step(i)["t_end"] - looped.step(i)["t_start"] for i in range(3)]
    assert looped.collector.word("longest_step_ns") == max(lengths) > 1_000
    assert looped.collector.word("step_beat_ns") == looped.step(2)["t_end"]


def test_a_crash_of_a_helper_thread_is_raised(tmp_path: Path) -> None:
    looped = Looped(tmp_path, [request(3)], three_steps(3))
    looped.loop.fail(MemoryError("of a helper"))
    with pytest.raises(MemoryError, match="of a helper"):
        looped.run()


def test_a_crash_of_a_helper_thread_wakes_an_idle_loop(tmp_path: Path) -> None:
    looped = Looped(tmp_path, [])
    looped.backend.has_work = lambda: bool(looped.loop.fail(MemoryError("late")))  # type: ignore[method-assign, func-returns-value]
    with pytest.raises(MemoryError, match="late"):
        looped.run()


def test_a_crash_of_the_backend_is_raised_and_stamps_are_kept(tmp_path: Path) -> None:
    looped = Looped(tmp_path, [request(3)], [*three_steps(3)[:2], RuntimeError("device lost")])
    with pytest.raises(RuntimeError, match="device lost"):
        looped.run()
    assert looped.cell("t_first_token", 3) > 0
    assert looped.collector.word("steps") == 2


def test_a_set_stop_word_ends_the_loop_before_anything(tmp_path: Path) -> None:
    looped = Looped(tmp_path, [request(3)], three_steps(3))
    looped.collector.set_word("stop", 1)
    looped.run()
    assert looped.backend.added == [] and looped.collector.word("steps") == 0


# Egress: what goes over the socket.


class FakeSocket:
    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, message: bytes, flags: int) -> None:
        import zmq

        assert flags == zmq.DONTWAIT
        if len(self.sent) == 3:
            raise zmq.Again
        self.sent.append(message)


def test_many_events_go_in_messages_of_bounded_size() -> None:
    socket = FakeSocket()
    events = [ResultEvent(row, 1, Status.NONE, NONE) for row in range(2 * MAX_EVENTS + 1)]
    assert Egress(socket).results(events) == 3  # type: ignore[arg-type]
    unpacked = [unpack_results(message, len(events)) for message in socket.sent]
    assert [len(news) for news in unpacked] == [MAX_EVENTS, MAX_EVENTS, 1]
    assert [event for news in unpacked for event in news] == events


def test_the_largest_message_fits_the_frame_that_the_receiver_takes() -> None:
    from harness.session import RESULT_FRAME_BYTES

    socket = FakeSocket()
    Egress(socket).results([ResultEvent(2**40, 2**31 - 1, 7, 4)] * MAX_EVENTS)  # type: ignore[arg-type]
    assert len(socket.sent[0]) <= RESULT_FRAME_BYTES


def test_a_complaint_is_one_message() -> None:
    socket = FakeSocket()
    assert Egress(socket).complaint(3, "why") == 1  # type: ignore[arg-type]
    assert unpack_results(socket.sent[0], 8) == Complaint(3, "why")


def test_a_message_that_would_block_is_counted_not_waited_for() -> None:
    socket = FakeSocket()
    egress = Egress(socket)  # type: ignore[arg-type]
    assert [egress.complaint(row, "") for row in range(5)] == [1, 1, 1, 0, 0]
    assert egress.unsent == 2
