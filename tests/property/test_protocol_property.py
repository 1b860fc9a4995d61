"""Whatever arrives: a message, or a FrameError and nothing else. Whatever is sent comes back as it went."""

from __future__ import annotations

from typing import Any

import msgpack
from hypothesis import example, given
from hypothesis import strategies as st

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
    pack_complaint,
    pack_request,
    pack_results,
    unpack_request,
    unpack_results,
)
from harness.common.stamps import FinishReason, Status

ROWS = 100
INT64 = st.integers(-(2**63), 2**63 - 1)

samplings = st.builds(
    Sampling,
    st.floats(0, 1e300),
    st.integers(0, 2**63 - 1),
    st.floats(0, 1, exclude_min=True),
    INT64,
    st.booleans(),
    st.floats(0, 1),
    st.lists(st.integers(0, 2**63 - 1), max_size=3).map(tuple),
    st.lists(st.text(min_size=1, max_size=5), max_size=3).map(tuple),
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=9), st.binary(max_size=9)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(scalars, inner, max_size=3), max_leaves=12
)
#: Almost a request: each field either right or anything at all.
near_requests = st.tuples(
    *(
        st.one_of(right, values)
        for right in (
            st.just(VERSION), st.sampled_from([TEXT, TOKENS]), st.integers(-1, ROWS), INT64, st.floats(), INT64,
            st.floats(), INT64, st.booleans(), st.floats(), st.lists(INT64, max_size=2),
            st.lists(st.text(max_size=2), max_size=2), st.binary(max_size=20),
        )
    )
)  # fmt: skip
near_aborts = st.tuples(st.just(VERSION), st.just(ABORT), st.one_of(st.integers(-1, ROWS), values))
near_results = st.tuples(
    st.just(VERSION),
    st.sampled_from([RESULTS, COMPLAINT, TEXT]),
    st.lists(st.lists(st.one_of(st.integers(-1, 8), values), min_size=3, max_size=5), max_size=3) | values,
)


def check_request(frame: bytes) -> None:
    try:
        request = unpack_request(frame, ROWS)
    except FrameError:
        return
    assert 0 <= request.row < ROWS
    if isinstance(request, AbortFrame):
        return
    assert request.kind in (TEXT, TOKENS)
    assert 0 <= request.sampling.temperature < float("inf") and 0 < request.sampling.top_p <= 1


def check_results(frame: bytes) -> None:
    try:
        news = unpack_results(frame, ROWS)
    except FrameError:
        return
    if not isinstance(news, Complaint):
        for event in news:
            assert 0 <= event.row < ROWS
            Status(event.status)
            FinishReason(event.finish_reason)


@given(
    st.sampled_from([TEXT, TOKENS]), st.integers(0, ROWS - 1), INT64, samplings, st.binary(max_size=200)
)
def test_requests_round_trip(kind: int, row: int, max_new: int, sampling: Sampling, payload: bytes) -> None:
    frame = pack_request(kind, row, max_new, sampling, payload)
    assert unpack_request(frame, ROWS) == RequestFrame(kind, row, max_new, sampling, payload)


@given(
    st.lists(
        st.builds(
            ResultEvent,
            st.integers(0, ROWS - 1),
            st.integers(0, 2**31 - 1),
            st.sampled_from([int(status) for status in Status]),
            st.sampled_from([int(finish) for finish in FinishReason]),
        ),
        max_size=20,
    )
)
def test_results_round_trip(events: list[ResultEvent]) -> None:
    assert unpack_results(pack_results(events), ROWS) == events


@given(INT64, st.text())
def test_complaints_round_trip(row: int, text: str) -> None:
    assert unpack_results(pack_complaint(row, text), ROWS) == Complaint(row, text)


@given(st.binary(max_size=300))
@example(b"")
@example(b"\x91" * 5000)
def test_random_bytes_raise_nothing_but_frame_errors(frame: bytes) -> None:
    check_request(frame)
    check_results(frame)


@given(near_requests | near_aborts)
def test_requests_with_wrong_fields_raise_nothing_but_frame_errors(fields: tuple[Any, ...]) -> None:
    check_request(msgpack.packb(fields, use_bin_type=True))


@given(near_results)
def test_results_with_wrong_fields_raise_nothing_but_frame_errors(fields: tuple[Any, ...]) -> None:
    check_results(msgpack.packb(fields, use_bin_type=True))


@given(values)
def test_any_msgpack_value_raises_nothing_but_frame_errors(value: object) -> None:
    frame = msgpack.packb(value, use_bin_type=True)
    check_request(frame)
    check_results(frame)


@given(samplings, st.binary(max_size=40), st.data())
def test_a_damaged_request_raises_nothing_but_frame_errors(
    sampling: Sampling, payload: bytes, data: st.DataObject
) -> None:
    frame = bytearray(pack_request(TEXT, 5, 9, sampling, payload))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    check_request(bytes(frame))
    check_request(bytes(frame[:at]))
