"""Why a request took so long: its parts of TTFT, who was ahead of it, which steps served it, which pauses overlapped.

Pure functions of the stamps. A count of what was ahead is exact (all requests of the run are stamped); a pause that
overlaps a part is named with the overlap, and is a likely cause, not a proven one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from harness.common.collector import Int64Array
from harness.common.stamps import CAP_WAIT, Ledger
from harness.explain.tables import RequestTable
from harness.measures.contention import Pauses, RunProbes

#: Looks of the GIL probe shorter than this are no pause worth a word.
MIN_PAUSE_NS = 50_000


class Overlap(NamedTuple):
    """Pauses of one kind that overlap a span: how many, for how long in all, and the longest of them whole, ns."""

    kind: str
    pauses: int
    overlap_ns: int
    longest_ns: int


@dataclass(frozen=True, slots=True)
class PartStory:
    """A part of a request's time, what happened in it in sentences, and the pauses in it."""

    name: str
    start_ns: int
    end_ns: int
    notes: tuple[str, ...]
    overlaps: tuple[Overlap, ...]

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Story:
    """A request. parts: of TTFT in ledger order, as far as the request came; ttft_ns: None without a first token.

    decode: from the first token to the last word of it, None where there is none.
    """

    run: int
    request: int
    status: str
    error: str
    parts: tuple[PartStory, ...]
    ttft_ns: int | None
    decode: PartStory | None


def explain(
    table: RequestTable,
    steps: Mapping[str, Int64Array] | None,
    probes: RunProbes | None,
    ledger: Ledger,
    request: int,
) -> Story:
    """The story of row `request` of a run."""
    at = {name: int(column[request]) for name, column in table.columns.items()}
    parts = []
    for part in ledger.parts:
        if part.start not in at or part.end not in at or at[part.start] == 0 or at[part.end] == 0:
            continue  # it never got so far
        if part.name == CAP_WAIT and at[part.start] == at[part.end]:
            continue
        notes = tuple(_notes(part.name, table, steps, at, request))
        overlaps = overlapping(probes, at[part.start], at[part.end])
        parts.append(PartStory(part.name, at[part.start], at[part.end], notes, overlaps))
    whole = at["t_delivered"] != 0 and at["t_intended"] != 0
    return Story(
        run=table.run,
        request=request,
        status=table.status[request],
        error=table.error[request],
        parts=tuple(parts),
        ttft_ns=at["t_delivered"] - at["t_intended"] if whole else None,
        decode=_decode(table, steps, probes, at, request),
    )


def worst(table: RequestTable, ledger: Ledger, metric: str, count: int) -> list[int]:
    """The `count` requests with the largest `metric`, largest first: ttft, e2e, tpot or a part of the ledger.

    Raises KeyError for another metric.
    """
    c = table.columns
    spans = {part.name: (part.start, part.end) for part in ledger.parts}
    spans |= {"ttft": ("t_intended", "t_delivered"), "e2e": ("t_intended", "t_finished")}
    if metric == "tpot":
        several = c["output_tokens"] >= 2
        gaps = np.maximum(c["output_tokens"] - 1, 1)
        values = np.where(several, (c["t_last_token"] - c["t_first_token"]) / gaps, -1.0)
    else:
        start, end = (c[name] for name in spans[metric])
        values = np.where((start != 0) & (end != 0), end - start, -1).astype(np.float64)
    order = np.argsort(-values, kind="stable")
    return [int(i) for i in order[:count] if values[i] >= 0]


def overlapping(probes: RunProbes | None, start_ns: int, end_ns: int) -> tuple[Overlap, ...]:
    """The pauses that overlap a span, the kind with the longest overlap first."""
    if probes is None or end_ns <= start_ns:
        return ()
    kinds: list[tuple[str, Pauses]] = [
        ("the engine's GIL was held", probes.gil),
        ("garbage collection in the engine", probes.gc_engine),
        ("garbage collection in the submitter", probes.gc_submitter),
        ("the host did not run a thread that was due (hiccup)", probes.hiccups),
    ]
    found = [_overlap(kind, pauses, start_ns, end_ns) for kind, pauses in kinds]
    return tuple(sorted((one for one in found if one.pauses), key=lambda one: -one.overlap_ns))


def _overlap(kind: str, pauses: Pauses, start_ns: int, end_ns: int) -> Overlap:
    length = pauses.duration_ns + pauses.run_delay_ns
    end = pauses.start_ns + length
    inside = (pauses.start_ns < end_ns) & (end > start_ns) & (length >= MIN_PAUSE_NS)
    shared = np.minimum(end[inside], end_ns) - np.maximum(pauses.start_ns[inside], start_ns)
    return Overlap(kind, int(inside.sum()), int(shared.sum()), int(length[inside].max(initial=0)))


def _notes(
    part: str, table: RequestTable, steps: Mapping[str, Int64Array] | None, at: Mapping[str, int], me: int
) -> Iterator[str]:
    others = np.arange(table.rows) != me
    c = table.columns
    if part == CAP_WAIT:
        flying = (
            others & (c["t_send"] != 0) & (c["t_send"] <= at["t_intended"]) & _after(c["t_finished"], at["t_intended"])
        )
        yield f"{_many(int(flying.sum()), 'request')} in flight when it was due"
    elif part == "submit_lag":
        free = at.get("t_slot") or at["t_intended"]  # what it waited for before that is its cap_wait
        before = others & (c["t_send"] != 0) & (c["t_send"] <= at["t_send"]) & (c["t_sent"] > free)
        if before.any():
            yield f"{_many(int(before.sum()), 'earlier send call')} ended after it was due"
    elif part == "ingress_wait":
        ahead = others & (c["t_wire"] != 0) & (c["t_wire"] <= at["t_wire"]) & (c["t_ingress"] > at["t_wire"])
        some = f"{_many(int(ahead.sum()), 'message')} ahead of it at the ingress thread"
        yield some if ahead.any() else "nothing ahead of it: the ingress thread waited for the GIL or the core"
    elif part == "tokenize":
        if at["t_tokenized"] > at["t_tokenize_start"]:
            yield f"{at['prompt_tokens']:,} tokens"
    elif part == "loop_wait" and steps is not None:
        yield from _running_step(steps, at["t_tokenized"])
    elif part == "queue_wait":
        yield from _queue(table, at, others)
    elif part == "prefill":
        yield from _prefill(table, steps, at)


def _after(stamps: Int64Array, moment: int) -> np.ndarray:
    """Stamped after a moment, or never."""
    return (stamps == 0) | (stamps > moment)


def _running_step(steps: Mapping[str, Int64Array], moment: int) -> Iterator[str]:
    running = np.flatnonzero((steps["t_start"] <= moment) & (steps["t_end"] > moment))
    if len(running) == 0:
        yield "no step was under way"
        return
    i = int(running[-1])
    length_ms = (int(steps["t_end"][i]) - int(steps["t_start"][i])) / 1e6
    yield (
        f"a step of {length_ms:,.3f} ms was under way: {_many(int(steps['prefill_tokens'][i]), 'prefill token')}, "
        f"{_many(int(steps['decode_rows'][i]), 'decode row')}"
    )


def _queue(table: RequestTable, at: Mapping[str, int], others: np.ndarray) -> Iterator[str]:
    c, moment = table.columns, at["t_queued"]
    entered = others & (c["t_queued"] != 0)
    ahead = entered & (c["t_queued"] <= moment) & _after(c["t_scheduled"], moment)
    overtook = entered & (c["t_queued"] > moment) & (c["t_scheduled"] != 0) & (c["t_scheduled"] < at["t_scheduled"])
    ran = others & (c["t_scheduled"] != 0) & (c["t_scheduled"] <= moment) & _after(c["t_last_token"], moment)
    tokens = int((c["prompt_tokens"] - c["cached_tokens"])[ahead].sum())
    behind = f", {tokens:,} prompt tokens to compute" if ahead.any() else ""
    yield f"{_many(int(ahead.sum()), 'request')} ahead of it in the queue{behind}; {int(ran.sum())} running"
    if overtook.any():
        yield f"{_many(int(overtook.sum()), 'later request')} admitted before it"


def _prefill(table: RequestTable, steps: Mapping[str, Int64Array] | None, at: Mapping[str, int]) -> Iterator[str]:
    cached = f", {at['cached_tokens']:,} of them cached" if at["cached_tokens"] else ""
    yield f"{at['prompt_tokens']:,} prompt tokens{cached}"
    if at["preemptions"]:
        yield f"preempted {at['preemptions']} times, {at['preempted_ns'] / 1e6:,.3f} ms out of the batch"
    if steps is None:
        return
    serving = (steps["t_start"] < at["t_first_token"]) & (steps["t_end"] > at["t_scheduled"])
    if serving.any():
        computed = f"{int(steps['prefill_tokens'][serving].sum()):,} prefill tokens"
        prompts = _many(int(steps["prefill_rows"][serving].sum()), "prompt or chunk", "prompts or chunks")
        yield (
            f"{_many(int(serving.sum()), 'step')} with {computed} of {prompts}, "
            f"up to {_many(int(steps['decode_rows'][serving].max()), 'decode row')}"
        )


def _decode(
    table: RequestTable,
    steps: Mapping[str, Int64Array] | None,
    probes: RunProbes | None,
    at: Mapping[str, int],
    me: int,
) -> PartStory | None:
    start, end, last = at["t_first_token"], at["t_finished"], at["t_last_token"]
    if start == 0 or end == 0 or at["output_tokens"] < 2:
        return None
    notes = [f"{at['output_tokens']:,} tokens, one every {(last - start) / 1e6 / (at['output_tokens'] - 1):,.3f} ms"]
    if steps is not None:
        # The step that gave the first token computed this request's own prompt, and ends after that token's stamp.
        during = (steps["t_start"] < last) & (steps["t_start"] >= start)
        mixed = during & (steps["prefill_tokens"] > 0)
        if mixed.any():
            taken = int((steps["t_end"] - steps["t_start"])[mixed].sum()) / 1e6
            notes.append(
                f"{int(mixed.sum())} of {_many(int(during.sum()), 'step')} computed prompts of others: {taken:,.3f} ms"
            )
    return PartStory("decode", start, end, tuple(notes), overlapping(probes, start, end))


def _many(count: int, word: str, plural: str | None = None) -> str:
    return f"{count:,} {word if count == 1 else plural or word + 's'}"


def longest(parts: Sequence[PartStory]) -> PartStory | None:
    """The part that took longest."""
    return max(parts, key=lambda part: part.duration_ns, default=None)
