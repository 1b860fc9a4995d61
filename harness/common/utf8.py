"""UTF-8 of many texts at once: the check of a million texts must not take a million calls."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

CHUNK_BYTES = 16 << 20  # decoded at a time: bounds memory


def first_invalid(texts: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> int | None:
    """The first i whose text `texts[starts[i]:starts[i+1]]` is not UTF-8, or None.

    starts: int64[N+1], from 0, non-decreasing, up to len(texts). Several texts are all UTF-8 if and only if they are
    so in one piece and none begins inside of a character, that is with a byte 10xxxxxx.
    """
    row, rows = 0, len(starts) - 1
    while row < rows:
        end = int(np.searchsorted(starts, starts[row] + CHUNK_BYTES, side="right")) - 1
        end = min(max(end, row + 1), rows)
        if not _whole(texts[starts[row] : starts[end]], starts[row:end] - starts[row]):
            return next(i for i in range(row, end) if not _is_utf8(texts[starts[i] : starts[i + 1]]))
        row = end
    return None


def _whole(texts: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> bool:
    inside = starts[starts < len(texts)]  # an empty text at the end begins nowhere
    return not np.any((texts[inside] & 0xC0) == 0x80) and _is_utf8(texts)


def _is_utf8(text: npt.NDArray[np.uint8]) -> bool:
    try:
        str(text.data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
