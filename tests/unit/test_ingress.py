"""Ingress: what becomes of each kind of message, and when each stamp is taken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgpack
import numpy as np
import pytest
from fakes import FakeClock, ScriptedWire, make_collector

from engine_proc.backends.base import Capacity, EngineRequest
from engine_proc.intake.inbox import Abort, Duplicate, Inbox, InboxItem, Turned
from engine_proc.intake.ingress import Ingress, TextEncoder
from harness.common.collector import Collector
from harness.common.protocol import TEXT, TOKENS, Sampling, pack_abort, pack_request
from harness.common.stamps import FinishReason, Reason, Status
from harness.common.wire import Arrival

pytestmark = pytest.mark.timeout(20)

CAPACITY = Capacity(max_model_len=10, vocab_size=100)
SAMPLING = Sampling(0.5, 3, 0.5, 9, False, 0.1, (5,), ("stop",))
BROKEN, SLOW, FATAL = "broken", "slow", "fatal"


class FakeTokenizer:
    """One id a word: its length. "broken" raises, "slow" takes 5,000 ns, "fatal" raises what nobody expects."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def encode(self, text: str) -> list[int]:
        if text == BROKEN:
            raise ValueError("cannot tokenize")
        if text == FATAL:
            raise SystemExit("cannot go on")
        if text == SLOW:
            self.clock.now += 5_000
        return [len(word) for word in text.split()]


def ids(*values: int) -> bytes:
    return np.array(values, dtype="<i4").tobytes()


def tokens(row: int, *values: int, new: int = 3) -> bytes:
    return pack_request(TOKENS, row, new, SAMPLING, ids(*values))


def text(row: int, value: str | bytes, new: int = 3) -> bytes:
    return pack_request(TEXT, row, new, SAMPLING, value.encode() if isinstance(value, str) else value)


class Taken:
    """One ingress that has taken all of `frames` and ended."""

    def __init__(
        self,
        folder: Path,
        frames: Sequence[bytes | Arrival | None],
        workers: int = 0,
        compiled: bool = True,
        tokenizer: TextEncoder | None = None,
        capacity: Capacity = CAPACITY,
        wire_breaks: bool = False,
    ) -> None:
        self.clock = FakeClock(1_000_000, tick=1)
        arrivals = [Arrival(100 + i, False, item) if isinstance(item, bytes) else item for i, item in enumerate(frames)]
        self.wire = ScriptedWire(arrivals, compiled=compiled)
        self.collector: Collector = make_collector(folder)
        self.collector.set_word("stop", 0 if wire_breaks else 1)  # the scripted wire ends with its script
        self.crashes: list[BaseException] = []
        inbox = Inbox()
        ingress = Ingress(
            self.wire, self.collector, inbox, tokenizer or FakeTokenizer(self.clock), capacity, workers, self.clock,
            self.crashes.append,
        )  # fmt: skip
        ingress.start()
        ingress.join()
        self.items: list[InboxItem] = inbox.take_all()

    def cell(self, name: str, row: int) -> int:
        return int(self.collector.column(name)[row])

    def error(self, row: int) -> tuple[int, int, int]:
        return self.cell("error_code", row), self.cell("error_a", row), self.cell("error_b", row)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_raw_and_tokenized_requests_reach_the_inbox(tmp_path: Path, workers: int) -> None:
    taken = Taken(tmp_path, [tokens(2, 5, 6), text(5, "one three"), tokens(0, 7)], workers)
    expected = [
        EngineRequest(0, [7], 3, SAMPLING),
        EngineRequest(2, [5, 6], 3, SAMPLING),
        EngineRequest(5, [3, 5], 3, SAMPLING),
    ]
    assert sorted(taken.items, key=lambda item: item.row) == expected
    assert [taken.cell("prompt_tokens", row) for row in (2, 5, 0)] == [2, 2, 1]
    assert taken.collector.word("ingress") == 3
    assert taken.crashes == []


def test_order_of_arrival_is_kept_without_workers(tmp_path: Path) -> None:
    taken = Taken(tmp_path, [tokens(2, 5), text(5, "a"), tokens(0, 7), text(1, "a")])
    assert [item.row for item in taken.items] == [2, 5, 0, 1]


def test_both_tokenizer_stamps_of_a_tokenized_request_equal_its_ingress(tmp_path: Path) -> None:
    taken = Taken(tmp_path, [tokens(2, 5)])
    assert taken.cell("t_wire", 2) == 100
    assert taken.cell("t_ingress", 2) == taken.clock.readings[0]
    assert taken.cell("t_tokenize_start", 2) == taken.cell("t_tokenized", 2) == taken.cell("t_ingress", 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_slow_tokenizer_shows_in_tokenize_alone(tmp_path: Path, workers: int) -> None:
    taken = Taken(tmp_path, [text(2, SLOW), None], workers)
    assert taken.cell("t_tokenized", 2) - taken.cell("t_tokenize_start", 2) == 5_001
    assert 0 < taken.cell("t_tokenize_start", 2) - taken.cell("t_ingress", 2) < 10


def test_a_message_behind_a_slow_tokenizer_waits_for_ingress(tmp_path: Path) -> None:
    taken = Taken(tmp_path, [text(2, SLOW), text(3, "a")])
    assert taken.cell("t_ingress", 3) > taken.cell("t_tokenized", 2)


def test_with_the_plain_wire_ingress_wait_is_not_measured(tmp_path: Path) -> None:
    taken = Taken(tmp_path, [Arrival(100, True, tokens(2, 5))], compiled=False)
    assert taken.cell("t_wire", 2) == taken.cell("t_ingress", 2) > 100
    assert taken.cell("ingress_parked", 2) == 0


def test_only_a_message_that_found_ingress_parked_is_marked(tmp_path: Path) -> None:
    taken = Taken(tmp_path, [Arrival(100, True, tokens(2, 5)), Arrival(101, False, tokens(3, 5))])
    assert [taken.cell("ingress_parked", row) for row in (2, 3)] == [1, 0]


def test_ingress_arms_before_each_park(tmp_path: Path) -> None:
    taken = Taken(tmp_path, [None, tokens(2, 5), None, None, tokens(3, 5)])
    assert taken.wire.log == ["arm", "park"] * 3
    assert len(taken.items) == 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (tokens(3), (Reason.EMPTY_PROMPT, 0, 0)),
        (text(3, ""), (Reason.EMPTY_PROMPT, 0, 0)),
        (text(3, " "), (Reason.EMPTY_PROMPT, 0, 0)),
        (tokens(3, 1, 2, new=9), (Reason.TOO_LONG, 2, 10)),
        (text(3, "a b c", new=8), (Reason.TOO_LONG, 3, 10)),
        (tokens(3, 5, 100), (Reason.ID_OUT_OF_VOCAB, 100, 100)),
        (tokens(3, -7, 5), (Reason.ID_OUT_OF_VOCAB, -7, 100)),
        (tokens(3, 5, new=-2), (Reason.NEGATIVE_MAX_NEW_TOKENS, -2, 0)),
        (tokens(3, 5, new=-(2**63)), (Reason.NEGATIVE_MAX_NEW_TOKENS, -(2**63), 0)),
        (tokens(3, 5, new=2**64 - 1), (Reason.TOO_LONG, 1, 10)),
        (text(3, BROKEN), (Reason.TOKENIZER_ERROR, 0, 0)),
    ],
    ids=lambda value: value[0].name if isinstance(value, tuple) else "frame",
)
def test_a_bad_request_is_rejected_alone(
    tmp_path: Path, frame: bytes, error: tuple[int, int, int], workers: int
) -> None:
    taken = Taken(tmp_path, [text(2, "before"), frame, text(4, "after")], workers)
    assert taken.error(3) == error
    assert taken.cell("engine_status", 3) == Status.REJECTED
    by_row = {item.row: item for item in taken.items}
    assert by_row == {
        2: EngineRequest(2, [6], 3, SAMPLING),
        3: Turned(3, Status.REJECTED, FinishReason.NONE),
        4: EngineRequest(4, [5], 3, SAMPLING),
    }
    assert [taken.error(row) for row in (2, 4)] == [(0, 0, 0)] * 2
    assert taken.collector.word("ingress") == 3 and taken.crashes == []


def test_a_tokenizer_that_raises_leaves_a_valid_prefix_of_stamps(tmp_path: Path) -> None:
    taken = Taken(tmp_path, [text(3, BROKEN)])
    assert 0 < taken.cell("t_wire", 3) <= taken.cell("t_ingress", 3) <= taken.cell("t_tokenize_start", 3)
    assert taken.cell("t_tokenized", 3) == 0


def test_no_new_tokens_completes_without_the_backend(tmp_path: Path) -> None:
    taken = Taken(tmp_path, [tokens(3, 5, new=0), text(4, "a", new=0)])
    assert taken.items == [Turned(row, Status.COMPLETED, FinishReason.EMPTY) for row in (3, 4)]
    assert taken.cell("engine_status", 3) == Status.COMPLETED
    assert taken.cell("finish_reason", 3) == FinishReason.EMPTY


def test_a_bad_request_for_no_tokens_is_still_rejected(tmp_path: Path) -> None:
    taken = Taken(tmp_path, [tokens(3, 100, new=0)])
    assert taken.items == [Turned(3, Status.REJECTED, FinishReason.NONE)]


def test_a_duplicate_is_complained_about_and_the_first_one_unaffected(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    alone = Taken(tmp_path / "alone", [tokens(3, 5)])
    taken = Taken(tmp_path, [tokens(3, 5), tokens(3, 6, 7, new=-1), text(3, BROKEN)])
    assert taken.items == [EngineRequest(3, [5], 3, SAMPLING), Duplicate(3), Duplicate(3)]
    assert taken.collector.engine.tolist() == alone.collector.engine.tolist()
    assert (taken.collector.word("ingress"), taken.collector.word("duplicates")) == (1, 2)


@pytest.mark.parametrize(
    "frame",
    [
        b"", b"junk", msgpack.packb([1, 2, 3]), tokens(8, 5), tokens(-1, 5),
        pack_request(TOKENS, 3, 3, SAMPLING, b"\x01\x02\x03"), text(3, b"\xff\xfe"),
        pack_request(9, 3, 3, SAMPLING, b""),
    ],
    ids=["empty", "no msgpack", "no request", "row too large", "negative row", "torn ids", "no UTF-8", "unknown kind"],
)  # fmt: skip
def test_junk_is_counted_and_harms_nobody(tmp_path: Path, frame: bytes) -> None:
    taken = Taken(tmp_path, [tokens(2, 5), frame, tokens(4, 5)])
    assert [item.row for item in taken.items] == [2, 4]
    assert (taken.collector.word("bad_frames"), taken.collector.word("ingress")) == (1, 2)
    assert not taken.collector.engine[3].any()
    assert taken.crashes == []


def test_a_row_named_by_junk_can_still_be_sent(tmp_path: Path) -> None:
    taken = Taken(tmp_path, [text(3, b"\xff"), text(3, "a")])
    assert taken.items == [EngineRequest(3, [1], 3, SAMPLING)]


def test_an_abort_goes_on_behind_its_request(tmp_path: Path) -> None:
    taken = Taken(tmp_path, [tokens(2, 5), pack_abort(2), tokens(3, 5)])
    assert taken.items == [EngineRequest(2, [5], 3, SAMPLING), Abort(2), EngineRequest(3, [5], 3, SAMPLING)]
    assert (taken.collector.word("aborts"), taken.collector.word("ingress")) == (1, 2)


def test_an_abort_that_overtook_its_request_ends_it_at_ingress(tmp_path: Path) -> None:
    """Messages of two connections have no order."""
    taken = Taken(tmp_path, [pack_abort(2), pack_abort(2), text(2, "a"), text(3, "a")])
    assert taken.items == [Turned(2, Status.ABORTED, FinishReason.NONE), EngineRequest(3, [1], 3, SAMPLING)]
    assert taken.cell("engine_status", 2) == Status.ABORTED and taken.error(2) == (Reason.CLIENT_GAVE_UP, 0, 0)
    assert taken.cell("t_ingress", 2) > 0 and taken.cell("t_tokenize_start", 2) == 0, "a valid prefix of stamps"


def test_an_abort_of_a_row_that_never_comes_harms_nobody(tmp_path: Path) -> None:
    taken = Taken(tmp_path, [pack_abort(7), tokens(2, 5)])
    assert taken.items == [EngineRequest(2, [5], 3, SAMPLING)]
    assert not taken.collector.engine[7].any()


def test_an_abort_of_a_row_that_does_not_exist_is_junk(tmp_path: Path) -> None:
    taken = Taken(tmp_path, [pack_abort(8), pack_abort(-1)])
    assert (taken.items, taken.collector.word("bad_frames"), taken.collector.word("aborts")) == ([], 2, 0)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_crash_inside_is_handed_on_and_every_thread_ends(tmp_path: Path, workers: int) -> None:
    taken = Taken(tmp_path, [text(3, FATAL)], workers)
    assert [str(crash) for crash in taken.crashes] == ["cannot go on"]


class BrokenWire(ScriptedWire):
    def pop(self) -> Arrival | None:
        raise MemoryError("ring")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_crash_of_the_ingress_thread_ends_its_workers(tmp_path: Path, workers: int) -> None:
    crashes: list[BaseException] = []
    clock = FakeClock()
    ingress = Ingress(
        BrokenWire([]), make_collector(tmp_path), Inbox(), FakeTokenizer(clock), CAPACITY, workers, clock,
        crashes.append,
    )  # fmt: skip
    ingress.start()
    ingress.join()
    assert [type(crash) for crash in crashes] == [MemoryError]


def test_the_last_taken_message_is_told_to_the_harness(tmp_path: Path) -> None:
    taken = Taken(tmp_path, [tokens(2, 5), tokens(3, 5)])
    assert taken.collector.word("ingress_beat_ns") == taken.cell("t_ingress", 3)


def test_a_wire_that_ends_before_the_stop_word_ends_the_engine_instead_of_leaving_it_deaf(tmp_path: Path) -> None:
    taken = Taken(tmp_path, [text(0, "a")], wire_breaks=True)
    assert [type(crash).__name__ for crash in taken.crashes] == ["RunError"]
    assert len(taken.items) == 1
