"""Messages on the data and result sockets: msgpack arrays, versioned, no pickle. The only schema module.

A request frame is `[VERSION, kind, row, max_new_tokens, *Sampling, payload]`; the payload is UTF-8 bytes (TEXT) or
little-endian int32 token ids (TOKENS). An index frame is `[VERSION, INDEX, row]`: the engine looks the request up
in the plan. An abort frame, on the same socket, is `[VERSION, ABORT, row]`. A result frame is one engine step:
`[VERSION, RESULTS, [[row, tokens_so_far, status, finish_reason], ...]]`; status NONE means "the first token".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import msgpack
import numpy as np
import numpy.typing as npt

from harness.common.errors import FrameError
from harness.common.stamps import FinishReason, Status

VERSION = 2
TEXT, TOKENS, RESULTS, COMPLAINT, ABORT, INDEX = 1, 2, 3, 4, 5, 6
#: Upper bound of a request frame's bytes beyond payload and stops: two headers, ten scalars of at most 9 bytes.
REQUEST_OVERHEAD_BYTES = 96
#: Of an index frame, whose row number always has four bytes.
INDEX_FRAME_BYTES = 8
#: Upper bound of an index or abort frame's bytes.
SMALL_FRAME_BYTES = 16
TOKEN_ID_BYTES = 4
_INDEX_HEAD = bytes((0x93, VERSION, INDEX, 0xCE))  # msgpack: an array of three, two small numbers, a uint32
_MAX_TOKENS = 2**31 - 1
_SAMPLING_TYPES = (float, int, float, int, bool, float, list, list)
_REQUEST_FIELDS = 4 + len(_SAMPLING_TYPES) + 1
_EVENT_TYPES = [int] * 4
_STATUSES, _FINISHES = frozenset(map(int, Status)), frozenset(map(int, FinishReason))


class Sampling(NamedTuple):
    """How the next token is drawn, and what ends the output early.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1.0 and `min_p` 0.0 mean "no cut". stop_ids: tokens that end it; stop:
    texts that end it, as soon as one has come out, even in the middle of a token. Both end it with the reason STOP.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop_on_eos: bool = True
    min_p: float = 0.0
    stop_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()

    @classmethod
    def from_fields(cls, fields: Sequence[Any]) -> Sampling:
        """From the fields in their order, as msgpack gives them back: lists in the place of tuples."""
        return cls._make(tuple(field) if isinstance(field, list) else field for field in fields)


class RequestFrame(NamedTuple):
    """A decoded request. `payload` is text bytes or int32 token-id bytes, by `kind`."""

    kind: int
    row: int
    max_new_tokens: int
    sampling: Sampling
    payload: bytes


class AbortFrame(NamedTuple):
    """The client gives a request up."""

    row: int


class IndexFrame(NamedTuple):
    """A request that stands in the plan."""

    row: int


class ResultEvent(NamedTuple):
    """One row's news of one step: its first token (`status` 0) or its end (`status` a `Status`)."""

    row: int
    tokens: int
    status: int
    finish_reason: int


def pack_request(kind: int, row: int, max_new_tokens: int, sampling: Sampling, payload: bytes) -> bytes:
    """The bytes of one request frame."""
    packed: bytes = msgpack.packb([VERSION, kind, row, max_new_tokens, *sampling, payload], use_bin_type=True)
    return packed


def pack_abort(row: int) -> bytes:
    """The bytes of one abort frame."""
    packed: bytes = msgpack.packb([VERSION, ABORT, row], use_bin_type=True)
    return packed


def pack_indices(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """uint8[n, INDEX_FRAME_BYTES]: an index frame for each row number, which is below 2**32."""
    frames = np.empty((len(rows), INDEX_FRAME_BYTES), dtype=np.uint8)
    frames[:, :4] = np.frombuffer(_INDEX_HEAD, dtype=np.uint8)
    frames[:, 4:] = rows.astype(">u4").view(np.uint8).reshape(-1, 4)
    return frames


def request_overhead_bytes(sampling: Sampling) -> int:
    """Upper bound of a request frame's bytes beyond its payload."""
    return REQUEST_OVERHEAD_BYTES + len(msgpack.packb([sampling.stop_ids, sampling.stop], use_bin_type=True))


def unpack_request(frame: bytes | memoryview, num_rows: int) -> RequestFrame | AbortFrame | IndexFrame:
    """Decode what a client sent. Raises FrameError for junk, and for a row that is not in 0..num_rows-1."""
    if len(frame) == INDEX_FRAME_BYTES and frame[:4] == _INDEX_HEAD:  # the same as below in a fifth of the time
        named = int.from_bytes(frame[4:], "big")
        if named < num_rows:
            return IndexFrame(named)
    fields = _fields(frame)
    kind, row = fields[1], fields[2] if len(fields) > 2 else None
    if type(kind) is not int or type(row) is not int:
        raise FrameError("request frame with a field of the wrong type")
    if kind not in (TEXT, TOKENS, ABORT, INDEX):
        raise FrameError(f"request frame of unknown kind {kind}")
    if len(fields) != (_REQUEST_FIELDS if kind in (TEXT, TOKENS) else 3):
        raise FrameError("frame is not an array of the expected length")
    if not 0 <= row < num_rows:
        raise FrameError(f"request frame for row {row}, which does not exist")
    if kind == ABORT:
        return AbortFrame(row)
    if kind == INDEX:
        return IndexFrame(row)
    max_new, payload = fields[3], fields[-1]
    if type(max_new) is not int or type(payload) is not bytes:
        raise FrameError("request frame with a field of the wrong type")
    return RequestFrame(kind, row, max_new, _sampling(fields[4:-1]), payload)


def _sampling(fields: list[Any]) -> Sampling:
    """The sampling part of a request frame. Raises FrameError."""
    if any(type(field) is not wanted for field, wanted in zip(fields, _SAMPLING_TYPES, strict=True)):
        raise FrameError("request frame with a sampling field of the wrong type")
    sampling = Sampling.from_fields(fields)
    if any(type(token) is not int for token in sampling.stop_ids) or any(type(s) is not str for s in sampling.stop):
        raise FrameError("request frame with a stop of the wrong type")
    cuts = 0.0 < sampling.top_p <= 1.0 and 0.0 <= sampling.min_p <= 1.0 and sampling.top_k >= 0
    if not (0.0 <= sampling.temperature < inf and cuts):
        raise FrameError("request frame with a sampling field out of range")
    if min(sampling.stop_ids, default=0) < 0 or "" in sampling.stop:
        raise FrameError("request frame with a stop out of range")
    return sampling


def pack_results(events: Sequence[ResultEvent]) -> bytes:
    """The bytes of one result frame."""
    packed: bytes = msgpack.packb([VERSION, RESULTS, events], use_bin_type=True)
    return packed


def pack_complaint(row: int, text: str) -> bytes:
    """A complaint about a message that has no row of its own, such as a duplicate id."""
    packed: bytes = msgpack.packb([VERSION, COMPLAINT, row, text], use_bin_type=True)
    return packed


class Complaint(NamedTuple):
    """A request message that was turned away without touching the row it named."""

    row: int
    text: str


def unpack_results(frame: bytes | memoryview, num_rows: int) -> list[ResultEvent] | Complaint:
    """Decode what the engine sent. Raises FrameError for junk."""
    fields = _fields(frame)
    if type(fields[1]) is not int:
        raise FrameError("result frame of unknown kind")
    if fields[1] == COMPLAINT and len(fields) == 4 and type(fields[2]) is int and type(fields[3]) is str:
        return Complaint(fields[2], fields[3])
    if fields[1] != RESULTS or len(fields) != 3 or type(fields[2]) is not list:
        raise FrameError("result frame of unknown kind")
    events = []
    for item in fields[2]:
        if type(item) is not list or list(map(type, item)) != _EVENT_TYPES:
            raise FrameError("result event with a field of the wrong type")
        if not 0 <= item[0] < num_rows:
            raise FrameError(f"result for row {item[0]}, which does not exist")
        event = ResultEvent(*item)
        if not (0 <= event.tokens <= _MAX_TOKENS and event.status in _STATUSES and event.finish_reason in _FINISHES):
            raise FrameError("result event with a value out of range")
        events.append(event)
    return events


def _fields(frame: bytes | memoryview) -> list[Any]:
    try:
        fields = msgpack.unpackb(frame, raw=False, strict_map_key=True)
    except Exception as error:  # msgpack raises ValueError, its own types and UnicodeDecodeError alike
        raise FrameError(f"not msgpack: {type(error).__name__}") from error
    if type(fields) is not list or len(fields) < 2:
        raise FrameError("frame is not an array of the expected length")
    if type(fields[0]) is not int or fields[0] != VERSION:
        raise FrameError(f"frame of version {fields[0]!r}, this side speaks {VERSION}")
    return fields
