"""The step loop: which stamps a request gets when, what is sent of it, and what the tables hold."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from fakes import FakeClock, make_collector

from engine_proc.backends.base import Capacity, EngineRequest, Failure, StepOutput, TokenEvent
from engine_proc.egress import MAX_EVENTS, Egress
from engine_proc.intake.inbox import Abort, Duplicate, Inbox, InboxItem, Turned
from engine_proc.step_loop import StepLoop
from harness.common.collector import Collector
from harness.common.protocol import Complaint, ResultEvent, Sampling, unpack_results
from harness.common.stamps import STEP_COLUMNS, FinishReason, Reason, Status

pytestmark = pytest.mark.timeout(20)

NONE, LENGTH, EOS = FinishReason.NONE, FinishReason.LENGTH, FinishReason.EOS


def request(row: int, sampling: Sampling = Sampling()) -> EngineRequest:  # noqa: B008 - a NamedTuple
    return EngineRequest(row, [1, 2], 16, sampling)


def letters(token_id: int) -> bytes:
    """Token ids are letters here."""
    return bytes([token_id])


class ScriptedBackend:
    """Plays back step outputs, each taking `cost` ns; sets the stop word when the last one is through."""

    def __init__(self, collector: Collector, clock: FakeClock, outputs: Sequence[StepOutput | Exception]) -> None:
        self.added: list[EngineRequest] = []
        self.aborted: list[int] = []
        self.log: list[str] = []
        self.knows_abort = True
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
        self.log.append(f"add {request.row}")

    def abort(self, row: int) -> bool:
        self.aborted.append(row)
        return self.knows_abort

    def reset_prefix_cache(self) -> None:
        self.log.append("reset")

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
        self.loop = StepLoop(
            self.backend, self.inbox, self.egress, self.collector, self.clock, letters  # type: ignore[arg-type]
        )  # fmt: skip

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


def test_what_the_backend_says_of_a_step_is_in_its_row(tmp_path: Path) -> None:
    output = StepOutput(admitted=[3, 4], cached_tokens=[(4, 32)], prefill_rows=2, late_captures=1)
    looped = Looped(tmp_path, [request(3), request(4)], [output, StepOutput(late_captures=2)]).run()
    assert [looped.cell("cached_tokens", row) for row in (3, 4)] == [0, 32]
    assert looped.step(0)["prefill_rows"] == 2
    assert looped.collector.word("late_captures") == 3


def test_sending_is_marked_where_the_backend_has_ranges(tmp_path: Path) -> None:
    names: list[str] = []

    def mark(name: str) -> nullcontext[None]:
        names.append(name)
        return nullcontext()

    looped = Looped(tmp_path, [request(3)], three_steps(3))
    looped.loop._range = mark
    looped.run()
    assert names == ["emit"] * 3


# Runs


def test_the_prefix_cache_is_emptied_before_the_first_request_of_each_run(tmp_path: Path) -> None:
    looped = Looped(tmp_path, [request(3)], three_steps(3))
    looped.run()
    looped.collector.set_word("current_run", 3)
    looped.collector.set_word("stop", 0)
    looped.inbox.put(request(4))
    looped.backend._outputs = [StepOutput()]
    looped.run()
    assert looped.backend.log == ["reset", "add 3", "reset", "add 4"]


def test_a_run_that_begins_while_the_loop_waits_for_its_first_request_still_begins_with_an_empty_cache(
    tmp_path: Path,
) -> None:
    looped = Looped(tmp_path, [])
    looped.loop._notice_run()
    looped.collector.set_word("current_run", 3)
    looped.loop._enter([request(4)])
    assert looped.backend.log == ["reset", "reset", "add 4"]


def test_a_backend_without_a_prefix_cache_needs_no_reset(tmp_path: Path) -> None:
    looped = Looped(tmp_path, [request(3)], three_steps(3))
    looped.loop._reset_prefix_cache = None
    assert looped.run().backend.log == ["add 3"]


# Stops


def stopping(folder: Path, text: str, sampling: Sampling, last: FinishReason = NONE) -> Looped:
    """Row 3 gets the letters of `text`, the last one with what the backend says of it; row 4 runs beside it."""
    finishes = [NONE] * (len(text) - 1) + [last]
    outputs = [
        StepOutput(tokens=[TokenEvent(3, ord(char), finish), TokenEvent(4, ord(char))])
        for char, finish in zip(text, finishes, strict=True)
    ]
    return Looped(folder, [request(3, sampling), request(4)], outputs).run()


def end_of(looped: Looped, row: int = 3) -> tuple[int, int, int]:
    """Status, finish reason and number of tokens."""
    return looped.cell("engine_status", row), looped.cell("finish_reason", row), looped.cell("output_tokens", row)


def test_a_stop_string_ends_the_row_with_the_token_that_completes_it(tmp_path: Path) -> None:
    looped = stopping(tmp_path, "xSTOPyz", Sampling(stop=("STOP",)))
    assert end_of(looped) == (Status.COMPLETED, FinishReason.STOP, 5)
    assert looped.backend.aborted == [3]
    assert end_of(looped, 4) == (Status.NONE, NONE, 7)


def test_tokens_behind_a_stop_are_dropped_and_counted(tmp_path: Path) -> None:
    """A step that was under way when the row ended still gives it a token."""
    looped = stopping(tmp_path, "xSyz", Sampling(stop=("S",)))
    assert looped.collector.word("late_tokens") == 2
    assert [entry for entry in looped.log() if entry[0] == 3] == [(3, ord("x")), (3, ord("S"))]
    ends = [event for message in looped.egress.messages for event in message if event.status]
    assert ends == [ResultEvent(3, 2, Status.COMPLETED, FinishReason.STOP)]


def test_a_stop_id_ends_the_row(tmp_path: Path) -> None:
    looped = stopping(tmp_path, "abc", Sampling(stop_ids=(7, ord("b"))))
    assert end_of(looped) == (Status.COMPLETED, FinishReason.STOP, 2)


def test_a_stop_with_the_first_token_is_one_terminal_event(tmp_path: Path) -> None:
    looped = stopping(tmp_path, "S", Sampling(stop=("S",)))
    assert looped.egress.messages[0][0] == ResultEvent(3, 1, Status.COMPLETED, FinishReason.STOP)
    assert looped.cell("t_first_token", 3) == looped.cell("t_last_token", 3) > 0


def test_a_stop_that_the_last_token_completes_is_a_stop_and_needs_no_abort(tmp_path: Path) -> None:
    looped = stopping(tmp_path, "xS", Sampling(stop=("S",)), last=LENGTH)
    assert end_of(looped) == (Status.COMPLETED, FinishReason.STOP, 2)
    assert looped.backend.aborted == []


def test_the_end_of_text_token_is_no_text_that_could_stop(tmp_path: Path) -> None:
    looped = stopping(tmp_path, "xS", Sampling(stop=("S",)), last=EOS)
    assert end_of(looped) == (Status.COMPLETED, EOS, 2)


def test_rows_that_end_are_watched_no_longer(tmp_path: Path) -> None:
    looped = stopping(tmp_path, "xS", Sampling(stop=("nothing",)), last=LENGTH)
    assert looped.loop._stops == {}


# Aborts: exactly one terminal event, whatever the row is doing


class Aborts(Looped):
    """Row 3, given up before, between and after the given items and outputs."""

    def ends(self) -> list[ResultEvent]:
        return [event for message in self.egress.messages for event in message if event.status and event.row == 3]


ABORTED = [ResultEvent(3, 0, Status.ABORTED, NONE)]


def test_an_abort_of_a_row_in_the_backend_ends_it_at_once(tmp_path: Path) -> None:
    looped = Aborts(tmp_path, [request(3), Abort(3)])
    looped.run()
    assert looped.ends() == ABORTED and looped.backend.aborted == [3]
    assert (looped.cell("engine_status", 3), looped.cell("error_code", 3)) == (Status.ABORTED, Reason.CLIENT_GAVE_UP)
    assert looped.collector.word("terminal") == 1


def test_an_abort_keeps_the_tokens_that_were_there(tmp_path: Path) -> None:
    looped = Aborts(tmp_path, [request(3)], [StepOutput(tokens=[TokenEvent(3, 50)])])
    looped.run()
    looped.loop._enter([Abort(3)])
    assert looped.ends() == [ResultEvent(3, 1, Status.ABORTED, NONE)]


def test_a_token_behind_an_abort_is_dropped_and_counted(tmp_path: Path) -> None:
    late = StepOutput(tokens=[TokenEvent(3, 50, LENGTH), TokenEvent(4, 60)])
    looped = Aborts(tmp_path, [request(3), request(4), Abort(3)], [late])
    looped.run()
    assert looped.ends() == ABORTED
    assert (looped.cell("output_tokens", 3), looped.cell("t_first_token", 3)) == (0, 0)
    assert looped.log()[: looped.collector.word("tokens")] == [(4, 60)]
    assert looped.collector.word("late_tokens") == 1


def test_a_failure_behind_an_abort_is_no_second_end(tmp_path: Path) -> None:
    looped = Aborts(tmp_path, [request(3), Abort(3)], [StepOutput(failed=[Failure(3, Reason.BACKEND_ERROR)])])
    looped.run()
    assert looped.ends() == ABORTED
    assert looped.cell("error_code", 3) == Reason.CLIENT_GAVE_UP


def test_an_abort_behind_the_end_is_late_and_changes_nothing(tmp_path: Path) -> None:
    """The order of commits decides: what was finished first is a completion, in the row and in the message."""
    looped = Aborts(tmp_path, [request(3)], [StepOutput(admitted=[3], tokens=[TokenEvent(3, 50, LENGTH)])])
    looped.run()
    looped.loop._enter([Abort(3), Abort(3)])
    assert looped.ends() == [ResultEvent(3, 1, Status.COMPLETED, LENGTH)]
    assert looped.cell("engine_status", 3) == Status.COMPLETED
    assert (looped.collector.word("late_aborts"), looped.backend.aborted) == (2, [])


def test_a_second_abort_is_late(tmp_path: Path) -> None:
    looped = Aborts(tmp_path, [request(3), Abort(3), Abort(3)])
    looped.run()
    assert looped.ends() == ABORTED
    assert looped.collector.word("late_aborts") == 1


def test_an_abort_during_tokenization_ends_the_row_when_it_arrives(tmp_path: Path) -> None:
    looped = Aborts(tmp_path, [Abort(3), request(3), Abort(3)])
    looped.run()
    assert looped.ends() == ABORTED and looped.backend.added == []
    assert looped.cell("t_queued", 3) == 0, "it never entered the queue"
    assert looped.collector.word("late_aborts") == 1


def test_an_abort_during_tokenization_of_a_text_that_is_rejected_is_late(tmp_path: Path) -> None:
    looped = Aborts(tmp_path, [Abort(3), Turned(3, Status.REJECTED, NONE)])
    looped.run()
    assert looped.ends() == [ResultEvent(3, 0, Status.REJECTED, NONE)]
    assert looped.collector.word("late_aborts") == 1


def test_an_abort_of_a_row_that_ingress_turned_away_is_late(tmp_path: Path) -> None:
    looped = Aborts(tmp_path, [Turned(3, Status.ABORTED, NONE), Abort(3)])
    looped.run()
    assert looped.ends() == ABORTED
    assert looped.collector.word("late_aborts") == 1


def test_a_backend_that_knows_no_abort_finishes_the_row(tmp_path: Path) -> None:
    looped = Aborts(tmp_path, [request(3), Abort(3)], [StepOutput(tokens=[TokenEvent(3, 50, LENGTH)])])
    looped.backend.knows_abort = False
    looped.run()
    assert looped.ends() == [ResultEvent(3, 1, Status.COMPLETED, LENGTH)]
    assert looped.collector.word("late_aborts") == 1


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
    from harness.session.live import RESULT_FRAME_BYTES

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


@pytest.mark.parametrize("one_core", [True, False])
def test_a_shared_core_is_given_to_the_io_thread_after_each_message(
    one_core: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    yields: list[int] = []
    socket = FakeSocket()
    monkeypatch.setattr("engine_proc.egress.os.sched_yield", lambda: yields.append(len(socket.sent)))
    egress = Egress(socket, one_core=one_core)  # type: ignore[arg-type]
    assert [egress.complaint(row, "") for row in range(4)] == [1, 1, 1, 0]
    assert yields == ([1, 2, 3] if one_core else [])
