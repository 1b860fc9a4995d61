"""Texts as the bytes and starts of a plan, a chunk at a time: at most one chunk exists twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_CHUNK = 65_536


def pack_texts(texts: Sequence[str], limit: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]] | None:
    """uint8 UTF-8 of all texts back to back and int64[N+1] where each starts; None where they exceed `limit` bytes.

    Raises UnicodeEncodeError for half of a surrogate pair.
    """
    data = bytearray()
    lengths = np.zeros(len(texts) + 1, dtype=np.int64)
    for begin in range(0, len(texts), _CHUNK):
        chunk = texts[begin : begin + _CHUNK]
        joined = "".join(chunk)
        # In ASCII, characters are bytes; elsewhere each text is encoded by itself for its length.
        sizes = map(len, chunk) if joined.isascii() else (len(text.encode()) for text in chunk)
        lengths[begin + 1 : begin + 1 + len(chunk)] = np.fromiter(sizes, dtype=np.int64, count=len(chunk))
        data += joined.encode()
        if len(data) > limit:
            return None
    return np.frombuffer(data, dtype=np.uint8), np.cumsum(lengths)
