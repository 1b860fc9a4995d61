"""Requests by row number: with `--payload index` a message says which row it is, and the request is in the plan."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from harness.common.plan_file import LoadPlan
from harness.common.protocol import TEXT, TOKENS, RequestFrame, Sampling

_FORMATS: dict[int, Literal["B", "i", "q"]] = {1: "B", 4: "i", 8: "q"}


class PlanSource:
    """Owned by: ingress thread. `runs` as the collector describes them; request i draws with seed `seed + i`."""

    def __init__(self, plan: LoadPlan, runs: Sequence[Mapping[str, Any]], sampling: Sampling) -> None:
        self._plan = plan
        self._kind = TOKENS if plan.pretokenized else TEXT
        self._first_rows = [int(run["first_row"]) for run in runs]
        seed = Sampling._fields.index("seed")
        self._before_seed, self._seed, self._after_seed = sampling[:seed], sampling.seed, sampling[seed + 1 :]
        self._max_new = _integers(plan.max_new_tokens)
        data, starts = (plan.prompt_ids, plan.prompt_starts) if plan.pretokenized else (plan.texts, plan.text_starts)
        assert data is not None and starts is not None
        self._data, self._starts = _integers(data), _integers(starts)

    def request(self, row: int) -> RequestFrame:
        """The request of collector row `row`, equal to the inline frame of it. The row must be one of the session's."""
        i = row - self._first_rows[bisect_right(self._first_rows, row) - 1]
        payload = self._data[self._starts[i] : self._starts[i + 1]].tobytes()
        sampling = Sampling._make((*self._before_seed, self._seed + i, *self._after_seed))  # _replace takes thrice that
        return RequestFrame(self._kind, row, self._max_new[i], sampling, payload)


def _integers(array: npt.NDArray[Any]) -> memoryview[int]:
    """The array as Python's own integers: a numpy scalar costs more than all the rest of a look-up."""
    return memoryview(array.view(np.uint8)).cast("B").cast(_FORMATS[array.dtype.itemsize])
