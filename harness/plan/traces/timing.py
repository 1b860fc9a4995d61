"""The figures of an arrival pattern: span, mean rate, spread of the gaps, and whether it starts empty."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.common.clock import NS_PER_S

#: The head that is looked at, and how much slower than the rest it must be to be called empty.
HEAD = 0.1
EMPTY_HEAD_RATIO = 0.2
EMPTY_HEAD_MIN_ROWS = 100


@dataclass(frozen=True, slots=True)
class Timing:
    """rows; span_ns from the first to the last; mean_rate: rows over the span (1/s), as traces are usually described,
    None without a span; gap_cv: population standard
    deviation of the gaps over their mean, None under two gaps or without a span; smallest_gap_ns: None for one row.
    """

    rows: int
    span_ns: int
    mean_rate: float | None
    gap_cv: float | None
    smallest_gap_ns: int | None
    head_rate: float | None
    rest_rate: float | None

    def to_json(self) -> dict[str, object]:
        """For summary.json and `plan --json`."""
        return {
            "rows": self.rows,
            "span_s": self.span_ns / NS_PER_S,
            "mean_rate": self.mean_rate,
            "gap_cv": self.gap_cv,
            "smallest_gap_ns": self.smallest_gap_ns,
        }

    def head_warnings(self) -> list[str]:
        """A warning where the first tenth of the span is nearly empty, as in BurstGPT's files."""
        if self.head_rate is None or self.rest_rate is None or self.rows < EMPTY_HEAD_MIN_ROWS:
            return []
        if self.head_rate >= EMPTY_HEAD_RATIO * self.rest_rate:
            return []
        return [f"the first {HEAD:.0%} of its span has {self.head_rate:.3g}/s, the rest {self.rest_rate:.3g}/s: "
                "a cut from its start would measure little (--trace-window A:B)"]  # fmt: skip


def timing_of(offsets_ns: npt.NDArray[np.int64]) -> Timing:
    """The figures of int64[n] non-decreasing ns, n >= 1."""
    count = len(offsets_ns)
    span = int(offsets_ns[-1]) - int(offsets_ns[0])
    if count < 2 or span == 0:
        return Timing(count, span, None, None, 0 if count > 1 else None, None, None)
    gaps = np.diff(offsets_ns)
    head_rows = int(np.searchsorted(offsets_ns, int(offsets_ns[0]) + int(HEAD * span), side="left"))
    seconds = span / NS_PER_S
    return Timing(
        rows=count,
        span_ns=span,
        mean_rate=count / seconds,
        gap_cv=float(gaps.std() / gaps.mean()) if count > 2 else None,
        smallest_gap_ns=int(gaps.min()),
        head_rate=head_rows / (HEAD * seconds),
        rest_rate=(count - head_rows) / ((1 - HEAD) * seconds),
    )
