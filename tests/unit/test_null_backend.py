"""The null engine: scripted tokens, a batch size, aborts, a service time, and threads that end."""

from __future__ import annotations

import threading

import pytest
from fakes import FakeClock

from engine_proc.backends.base import EngineRequest, StepOutput
from engine_proc.backends.null import NullBackend, scripted_token
from harness.common.clock import monotonic_ns
from harness.common.protocol import Sampling
from harness.common.specs import NullSpec
from harness.common.stamps import FinishReason
from helpers import wait_until

pytestmark = pytest.mark.timeout(20)

VOCAB = 1000


def backend(max_batch_size: int = 2, **spec: object) -> NullBackend:
    return NullBackend(NullSpec(**spec), max_batch_size, VOCAB, FakeClock(1_000, tick=10))  # type: ignore[arg-type]


def add(engine: NullBackend, *rows: int, new: int = 3, prompt: int = 4) -> None:
    for row in rows:
        engine.add(EngineRequest(row, [1] * prompt, new, Sampling()))


def run_out(engine: NullBackend) -> list[StepOutput]:
    outputs = []
    while engine.has_work():
        outputs.append(engine.step())
    return outputs


def rows(output: StepOutput) -> list[int]:
    return [event.row for event in output.tokens]


def test_tokens_are_the_scripted_ones() -> None:
    engine = backend()
    add(engine, 3, 70, 5)
    outputs = run_out(engine)
    for row in (3, 70, 5):
        made = [event.token_id for output in outputs for event in output.tokens if event.row == row]
        assert made == [scripted_token(row, i, VOCAB) for i in range(3)]


def test_scripted_tokens_tell_rows_apart_and_lie_in_the_vocabulary() -> None:
    first = [scripted_token(row, 0, VOCAB) for row in range(VOCAB)]
    assert len(set(first)) == VOCAB and max(first) < VOCAB and min(first) >= 0
    assert scripted_token(5, 1, VOCAB) != scripted_token(5, 0, VOCAB)


def test_the_last_token_of_a_request_ends_it_by_length() -> None:
    engine = backend()
    add(engine, 3)
    assert [output.tokens[0].finish for output in run_out(engine)] == [
        FinishReason.NONE, FinishReason.NONE, FinishReason.LENGTH,
    ]  # fmt: skip


def test_the_batch_size_is_respected_and_freed_places_are_filled() -> None:
    engine = backend(max_batch_size=2)
    add(engine, 0, 1, 2, new=1)
    add(engine, 3, new=2)
    outputs = run_out(engine)
    assert [rows(output) for output in outputs] == [[0, 1], [2, 3], [3]]
    assert [output.admitted for output in outputs] == [[0, 1], [2, 3], []]


def test_a_step_says_what_it_did() -> None:
    engine = backend(max_batch_size=2)
    add(engine, 0, new=2, prompt=4)
    first = engine.step()
    add(engine, 1, new=2, prompt=7)
    second = engine.step()
    assert [(output.prefill_tokens, output.decode_rows) for output in (first, second)] == [(4, 0), (7, 1)]
    assert 0 < first.batch_ns < first.tokens_ns < second.batch_ns < second.tokens_ns


def test_a_waiting_request_can_be_aborted() -> None:
    engine = backend(max_batch_size=1)
    add(engine, 0, 1, 2, new=1)
    assert engine.abort(1)
    assert [rows(output) for output in run_out(engine)] == [[0], [2]]


def test_a_running_request_can_be_aborted() -> None:
    engine = backend(max_batch_size=1)
    add(engine, 0, 1, new=2)
    engine.step()
    assert engine.abort(0)
    assert [rows(output) for output in run_out(engine)] == [[1], [1]]


def test_an_unknown_or_finished_request_cannot_be_aborted() -> None:
    engine = backend()
    add(engine, 0, new=1)
    run_out(engine)
    assert not engine.abort(0) and not engine.abort(99)


def test_without_requests_there_is_no_work() -> None:
    assert not backend().has_work()


@pytest.mark.parametrize("spin", [False, True])
def test_a_step_takes_its_service_time(spin: bool) -> None:
    engine = NullBackend(NullSpec(service_ns=2_000_000, spin=spin), 2, VOCAB, monotonic_ns)
    add(engine, 0, new=1)
    output = engine.step()
    assert output.tokens_ns - output.batch_ns >= 2_000_000


def test_spinning_holds_out_on_the_given_clock() -> None:
    engine = backend(service_ns=5_000, spin=True)
    add(engine, 0, new=1)
    output = engine.step()
    assert output.tokens_ns - output.batch_ns >= 5_000


def hogs() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gil-hog"]


def test_close_ends_the_thread_that_holds_the_gil() -> None:
    engine = backend(hold_gil=True)
    wait_until(lambda: len(hogs()) == 1, what="the GIL hog")
    add(engine, 0, new=1)
    assert len(run_out(engine)) == 1
    engine.close()
    assert hogs() == []


def test_without_being_asked_there_is_no_such_thread() -> None:
    engine = backend()
    assert hogs() == []
    engine.close()


def test_it_says_what_it_is() -> None:
    assert backend(service_ns=2_000_000, spin=True).describe()["service"] == "spins 2 ms a step"
    assert backend().capacity().vocab_size == VOCAB


@pytest.mark.parametrize(("ms", "late_ns"), [(1, 140_000), (5, 490_000), (50, 990_000)])
def test_an_ideal_service_begins_when_the_server_is_free_and_the_request_is_there(ms: int, late_ns: int) -> None:
    """The Lindley recursion: end = max(end before, arrival) + service, however late the step loop comes, and however
    late a sleep wakes up, up to a tenth of the service or 150 us."""
    clock, service_ns = FakeClock(1_000, tick=10), ms * 1_000_000

    def sleep(seconds: float) -> None:
        clock.now += round(seconds * 1e9) + (late_ns if seconds else 0)

    engine = NullBackend(NullSpec(service_ns=service_ns, ideal=True), 1, VOCAB, clock)
    ends = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine_proc.backends.null.time.sleep", sleep)
        for row, arrived in enumerate((900, 950, 5 * service_ns)):
            engine.add(EngineRequest(row, [1], 1, Sampling(), arrived_ns=arrived))
        while engine.has_work():
            ends.append(engine.step().tokens_ns)
    assert ends == pytest.approx([900 + service_ns, 900 + 2 * service_ns, 6 * service_ns], abs=40)
