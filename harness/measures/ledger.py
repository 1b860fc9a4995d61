"""The ledger of TTFT: its audit (stamps in order, parts that sum exactly, no clamping) and its two printed forms."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harness.common.collector import Int64Array
from harness.common.stamps import STAMPS, FinishReason, Ledger, Part
from harness.measures.gates import gated_due, in_flight_at_send
from harness.measures.records import RunRecord
from harness.measures.statistics import percentile

BoolArray = npt.NDArray[np.bool_]
MAX_EXAMPLES = 100
_NS_PER_MS = 1e6


class Violation(NamedTuple):
    """One broken rule of one row: the part or stamp it concerns, and what is wrong, in ns."""

    run: int
    request: int
    part: str
    detail: str

    def __str__(self) -> str:
        return f"run {self.run} request {self.request}: {self.part}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Audit:
    """How many rules were broken in all, and the first MAX_EXAMPLES of them."""

    count: int
    examples: tuple[Violation, ...]


class _Breach(NamedTuple):
    part: str
    rows: BoolArray
    detail: str  # formatted with {a} and {b}, the values of the two stamps
    a: Int64Array
    b: Int64Array


def part_values(record: RunRecord, part: Part) -> Int64Array:
    """int64[R] ns of a part; only meaningful on rows with a first token delivered."""
    return record.columns[part.end] - record.columns[part.start]


def ttft_values(record: RunRecord) -> Int64Array:
    """int64[R] ns from the intended time to the first token's delivery (DESIGN section 2)."""
    return record.columns["t_delivered"] - record.columns["t_intended"]


def audit_run(
    record: RunRecord, ledger: Ledger, *, relative: bool, killed: bool = False, cap: int | None = None
) -> Audit:
    """Check every row of a run against the ledger's chains.

    relative: the plan's clock runs from the end of the previous send call. killed: the session ended by a process
    being killed, so the one message in the act of being sent may have reached the engine without a submitter stamp.
    cap: most requests that may be in flight.
    """
    count = 0
    examples: list[Violation] = []
    for breach in _breaches(record, ledger, relative, killed, cap):
        rows = np.flatnonzero(breach.rows)
        count += len(rows)
        for i in rows[: max(0, MAX_EXAMPLES - len(examples))]:
            a, b = int(breach.a[i]), int(breach.b[i])
            detail = breach.detail.format(a=a, b=b, difference=b - a)
            examples.append(Violation(record.index, int(i), breach.part, detail))
    return Audit(count, tuple(examples))


def _breaches(record: RunRecord, ledger: Ledger, relative: bool, killed: bool, cap: int | None) -> Iterator[_Breach]:
    yield _intended_breach(record, relative)
    yield _slot_breach(record, cap)
    yield from _order_breaches(record, ledger, killed)
    yield _finish_breach(record, ledger)
    yield from _coincidence_breaches(record, ledger)
    yield from _missing_breaches(record)
    yield from _sum_breaches(record, ledger)


def _intended_breach(record: RunRecord, relative: bool) -> _Breach:
    """The intended time is a function of the plan, so a wrong one shows; it is the origin of every latency."""
    intended = record.columns["t_intended"]
    expected = gated_due(record)
    known = np.ones(record.rows, dtype=np.bool_)
    if relative and record.rows > 1:
        previous_sent = record.columns["t_sent"][:-1]
        expected = np.append(expected[:1], previous_sent + np.diff(record.offsets_ns))
        known[1:] = previous_sent != 0
    wrong = known & (intended != 0) & (intended != expected)
    return _Breach("t_intended", wrong, "is {b} ns, the plan says {a} ns", expected, intended)


def _slot_breach(record: RunRecord, cap: int | None) -> _Breach:
    """A cap holds at every send; without one, and without a predecessor, nothing is waited for."""
    if cap is not None:
        in_flight = in_flight_at_send(record)
        limit = np.full(record.rows, cap, dtype=np.int64)
        return _Breach("t_slot", in_flight > cap, "{b} requests were in flight where {a} may be", limit, in_flight)
    intended, slot = record.columns["t_intended"], record.columns["t_slot"]
    free = np.ones(record.rows, dtype=np.bool_) if record.after is None else record.after < 0
    waited = free & (slot != 0) & (slot != intended)
    return _Breach("t_slot", waited, "is {difference} ns where nothing is waited for", intended, slot)


def _order_breaches(record: RunRecord, ledger: Ledger, killed: bool) -> Iterator[_Breach]:
    """Adjacent stamps of a chain: in order, and none stamped after an unstamped one."""
    names = {(part.start, part.end): part.name for part in ledger.parts}
    ended_early = ~record.completed | (record.columns["finish_reason"] == FinishReason.EMPTY)
    for chain in ledger.chains:
        for start, end in pairwise(chain):
            a, b = record.columns[start], record.columns[end]
            name = names.get((start, end), f"{start} -> {end}")
            negative = (a != 0) & (b != 0) & (b < a)
            yield _Breach(name, negative, f"is {{difference}} ns ({start} {{a}}, {end} {{b}})", a, b)
            gap = (a == 0) & (b != 0)
            if end == "t_finished":  # the end of a request without a last token may be stamped too
                gap &= ~ended_early
            if killed and start == "t_send":
                gap &= record.columns["t_intended"] != 0
            yield _Breach(name, gap, f"{end} is stamped ({{b}}), {start} is not", a, b)


def _coincidence_breaches(record: RunRecord, ledger: Ledger) -> Iterator[_Breach]:
    """Stamps that are one instant by the topology's design are equal wherever both are there."""
    for start, end in pairwise(ledger.coincident):
        a, b = record.columns[start], record.columns[end]
        apart = (a != 0) & (b != 0) & (a != b)
        yield _Breach(f"{start} -> {end}", apart, "is {difference} ns where the two are one instant", a, b)


def _finish_breach(record: RunRecord, ledger: Ledger) -> _Breach:
    """Nothing of a row may happen after its end was heard, whether it has a first token or not."""
    stamps = {stamp for chain in ledger.chains for stamp in chain} - {"t_finished", "t_sent"}
    latest = reduce(np.maximum, (record.columns[stamp] for stamp in sorted(stamps)))
    finished = record.columns["t_finished"]
    early = (finished != 0) & (finished < latest)
    return _Breach("t_finished", early, "is {b} ns, a stamp says {a} ns", latest, finished)


def _missing_breaches(record: RunRecord) -> Iterator[_Breach]:
    """A completed request has every stamp; one of zero new tokens ends in the waiting queue, without a token."""
    completed = record.completed
    empty = record.columns["finish_reason"] == FinishReason.EMPTY
    before_queue = STAMPS[: STAMPS.index("t_queued") + 1]
    for name, values in record.columns.items():
        if not name.startswith("t_"):
            continue
        needed = completed if name in before_queue else completed & ~empty
        yield _Breach(name, needed & (values == 0), "is not stamped on a completed request", values, values)


def _sum_breaches(record: RunRecord, ledger: Ledger) -> Iterator[_Breach]:
    delivered = (record.columns["t_delivered"] != 0) & (record.columns["t_intended"] != 0)
    total = np.zeros(record.rows, dtype=np.int64)
    for part in ledger.parts:
        total += part_values(record, part)
    ttft = ttft_values(record)
    yield _Breach("ttft", delivered & (total != ttft), "is {b} ns, its parts sum to {a} ns", total, ttft)


def ledger_json(record: RunRecord, ledger: Ledger, unmeasured: Collection[str] = ()) -> dict[str, Any]:
    """The ledger of means (its parts add up to the mean TTFT) and the ledger of the request at p99, in ms.

    The request at p99 is the completed one whose TTFT is nearest to the p99; the lower TTFT, then the lower index, on
    ties. Both are None where no completed request has a first token. Parts named in `unmeasured` are None: their stamps
    coincide for want of a measurement, and their time is in the part before.
    """
    rows = np.flatnonzero(record.completed & (record.columns["t_delivered"] != 0))
    ttft = ttft_values(record)[rows]
    p99 = percentile(ttft, 99)
    head = {"topology": ledger.name, "parts": [part.name for part in ledger.parts]}
    if p99 is None:
        return {**head, "mean": None, "p99_request": None}
    at = int(np.lexsort((rows, ttft, np.abs(ttft - p99)))[0])
    means, at_p99 = {}, {}
    for part in ledger.parts:  # one at a time: together they are as large as the record
        values = part_values(record, part)[rows]
        means[part.name], at_p99[part.name] = float(np.mean(values)), int(values[at])

    def in_ms(values_ns: Mapping[str, float]) -> dict[str, float | None]:
        return {name: None if name in unmeasured else value / _NS_PER_MS for name, value in values_ns.items()}

    return {
        **head,
        "mean": {
            "ttft": float(np.mean(ttft)) / _NS_PER_MS,
            "parts": in_ms(means),
        },
        "p99_request": {
            "request": int(rows[at]),
            "ttft": int(ttft[at]) / _NS_PER_MS,
            "parts": in_ms(at_p99),
        },
    }
