"""Messages: what is packed is unpacked, and what is not a message is a FrameError."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import pytest

from harness.common.errors import FrameError
from harness.common.protocol import (
    ABORT,
    COMPLAINT,
    RESULTS,
    TEXT,
    TOKENS,
    VERSION,
    AbortFrame,
    Complaint,
    RequestFrame,
    ResultEvent,
    Sampling,
    pack_abort,
    pack_complaint,
    pack_request,
    pack_results,
    request_overhead_bytes,
    unpack_request,
    unpack_results,
)
from harness.common.stamps import FinishReason, Status

SAMPLING = Sampling(0.5, 40, 0.9, 123, False, 0.1, (7, 9), ("\n\n", "grüß"))
#: [VERSION, kind, row, max_new_tokens, temperature, top_k, top_p, seed, stop_on_eos, min_p, stop_ids, stop, payload]
GOOD: list[Any] = [VERSION, TEXT, 3, 16, 0.5, 40, 0.9, 123, False, 0.1, [7, 9], ["\n\n", "grüß"], b"hello"]
KIND, ROW, MAX_NEW, TEMPERATURE, TOP_K, TOP_P, SEED, ON_EOS, MIN_P, STOP_IDS, STOP, PAYLOAD = range(1, 13)
EVENT = [3, 1, int(Status.NONE), int(FinishReason.NONE)]


def with_field(place: int, value: object) -> bytes:
    fields = list(GOOD)
    fields[place] = value
    packed: bytes = msgpack.packb(fields, use_bin_type=True)
    return packed


def packb(value: object) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


@pytest.mark.parametrize("kind", [TEXT, TOKENS])
def test_a_request_comes_back_as_it_went(kind: int) -> None:
    frame = pack_request(kind, 3, 16, SAMPLING, b"\x00\xff")
    assert unpack_request(frame, 4) == RequestFrame(kind, 3, 16, SAMPLING, b"\x00\xff")


def test_the_good_frame_of_these_tests_is_good() -> None:
    assert unpack_request(packb(GOOD), 4) == RequestFrame(TEXT, 3, 16, SAMPLING, b"hello")


def test_a_negative_token_count_is_left_to_validation() -> None:
    """It has a row, so it is that request's error and not the wire's."""
    assert unpack_request(with_field(MAX_NEW, -1), 4).max_new_tokens == -1


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, VERSION + 1), (0, True), (0, 1.0), (0, "1"), (0, None),
        (KIND, 0), (KIND, RESULTS), (KIND, True), (KIND, 1.0), (KIND, None), (KIND, [1]),
        (ROW, True), (ROW, 1.0), (ROW, "1"), (ROW, None),
        (MAX_NEW, True), (MAX_NEW, 1.0), (MAX_NEW, None),
        (TEMPERATURE, 1), (TEMPERATURE, None), (TEMPERATURE, "hot"),
        (TOP_K, 1.0), (TOP_K, False), (TOP_P, 1), (TOP_P, None), (SEED, 1.0), (SEED, None),
        (ON_EOS, 1), (ON_EOS, None), (ON_EOS, "yes"), (MIN_P, 0), (MIN_P, None),
        (STOP_IDS, None), (STOP_IDS, 7), (STOP_IDS, [7.0]), (STOP_IDS, [True]), (STOP_IDS, ["7"]), (STOP_IDS, {7: 7}),
        (STOP, None), (STOP, "text"), (STOP, [b"text"]), (STOP, [7]), (STOP, [None]), (STOP, ["x", ["y"]]),
        (PAYLOAD, "text"), (PAYLOAD, None), (PAYLOAD, [1, 2]),
    ],
)  # fmt: skip
def test_a_field_of_the_wrong_type_is_refused(place: int, value: object) -> None:
    with pytest.raises(FrameError):
        unpack_request(with_field(place, value), 4)


@pytest.mark.parametrize("row", [-1, 4, 2**63, -(2**63)])
def test_a_row_that_does_not_exist_is_refused(row: int) -> None:
    with pytest.raises(FrameError, match="does not exist"):
        unpack_request(with_field(ROW, row), 4)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (TEMPERATURE, -0.1), (TEMPERATURE, math.nan), (TEMPERATURE, math.inf), (TEMPERATURE, -math.inf),
        (TOP_K, -1), (TOP_P, 0.0), (TOP_P, -0.5), (TOP_P, 1.0001), (TOP_P, math.nan),
        (MIN_P, -0.1), (MIN_P, 1.1), (MIN_P, math.nan), (STOP_IDS, [3, -1]), (STOP, [""]), (STOP, ["x", ""]),
    ],
)  # fmt: skip
def test_a_sampling_value_out_of_range_is_refused(place: int, value: float) -> None:
    with pytest.raises(FrameError, match="out of range"):
        unpack_request(with_field(place, value), 4)


@pytest.mark.parametrize("value", [GOOD[:-1], [*GOOD, 1], [], {}, dict(enumerate(GOOD)), 7, None, "x", b"x"])
def test_a_frame_of_another_shape_is_refused(value: object) -> None:
    with pytest.raises(FrameError):
        unpack_request(packb(value), 4)


def test_every_truncation_of_a_request_is_refused() -> None:
    frame = packb(GOOD)
    for length in range(len(frame)):
        with pytest.raises(FrameError):
            unpack_request(frame[:length], 4)


def test_an_abort_comes_back_as_it_went() -> None:
    assert unpack_request(pack_abort(3), 4) == AbortFrame(3)


@pytest.mark.parametrize("row", [-1, 4, 2**63])
def test_an_abort_of_a_row_that_does_not_exist_is_refused(row: int) -> None:
    with pytest.raises(FrameError, match="does not exist"):
        unpack_request(packb([VERSION, ABORT, row]), 4)


@pytest.mark.parametrize("value", [[VERSION, ABORT], [VERSION, ABORT, 1, 2], [VERSION, ABORT, None], [1, ABORT, 1]])
def test_an_abort_of_another_shape_is_refused(value: object) -> None:
    with pytest.raises(FrameError):
        unpack_request(packb(value), 4)


LONG_STOPS = Sampling(stop_ids=(2**31 - 1,) * 50, stop=("é" * 999,) * 16)


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLING, LONG_STOPS])
def test_a_request_is_never_larger_than_its_bound(sampling: Sampling) -> None:
    largest = sampling._replace(temperature=0.1, top_k=2**63, seed=2**64 - 1, min_p=0.3, top_p=0.7)
    frame = pack_request(TOKENS, 2**62, 2**62, largest, bytes(100_000))
    assert len(frame) <= 100_000 + request_overhead_bytes(sampling)


def test_bytes_behind_a_request_are_refused() -> None:
    with pytest.raises(FrameError):
        unpack_request(packb(GOOD) + b"\x00", 4)


@pytest.mark.parametrize("frame", [b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xc1", b"\xc7\x01\x05\x00"])
def test_hostile_msgpack_is_refused(frame: bytes) -> None:
    """Nested without end, an array that claims four billion items, the unused byte, an extension type."""
    for unpack in (unpack_request, unpack_results):
        with pytest.raises(FrameError):
            unpack(frame, 4)


def test_results_come_back_as_they_went() -> None:
    events = [ResultEvent(0, 1, Status.NONE, FinishReason.NONE), ResultEvent(3, 16, Status.COMPLETED, FinishReason.EOS)]
    assert unpack_results(pack_results(events), 4) == events


def test_a_complaint_comes_back_as_it_went() -> None:
    assert unpack_results(pack_complaint(2, "seen before: grüß"), 4) == Complaint(2, "seen before: grüß")


@pytest.mark.parametrize(
    "value",
    [
        [VERSION + 1, RESULTS, []], [True, RESULTS, []], [VERSION], [VERSION, TEXT, []], [VERSION, RESULTS],
        [VERSION, RESULTS, [], 1], [VERSION, RESULTS, {}], [VERSION, RESULTS, None], [VERSION, float(RESULTS), []],
        [VERSION, RESULTS, [7]], [VERSION, RESULTS, [EVENT[:3]]], [VERSION, RESULTS, [[*EVENT, 0]]],
        [VERSION, COMPLAINT, 1], [VERSION, COMPLAINT, "1", "text"], [VERSION, COMPLAINT, 1, b"text"],
    ],
)  # fmt: skip
def test_a_result_frame_of_another_shape_is_refused(value: object) -> None:
    with pytest.raises(FrameError):
        unpack_results(packb(value), 4)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, -1), (0, 4), (0, True), (0, 1.0),
        (1, -1), (1, 2**63), (1, 2**64 - 1), (1, 1.0), (1, None),
        (2, -1), (2, max(Status) + 1), (2, 2**64 - 1), (2, False),
        (3, -1), (3, max(FinishReason) + 1), (3, "eos"),
    ],
)  # fmt: skip
def test_a_result_value_that_no_cell_or_word_can_hold_is_refused(place: int, value: object) -> None:
    """A number beyond int64 once reached the receiver's cells and ended the harness with a ValueError."""
    event: list[Any] = list(EVENT)
    event[place] = value
    with pytest.raises(FrameError):
        unpack_results(packb([VERSION, RESULTS, [EVENT, event]]), 4)
