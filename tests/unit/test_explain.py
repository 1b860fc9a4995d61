"""`explain`: the story of a request, on a run made by hand in which everything that was ahead of it is known."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from harness.common.errors import ConfigError
from harness.common.stamps import SEPARATE_LEDGER, STAMPS, STEP_COLUMNS
from harness.explain.attribution import Story, explain, overlapping, worst
from harness.explain.command import run_explain
from harness.explain.story_text import render_story, story_json
from harness.explain.tables import COUNTS, RequestTable, _read_requests
from harness.measures.contention import Pauses, RunProbes

MS = 1_000_000
#: Stamps (ms) of a first request that is served from 2 to 12, and of a second one that waits for it.
_NAMES = (
    "t_send", "t_sent", "t_wire", "t_ingress", "t_tokenize_start", "t_tokenized", "t_queued", "t_scheduled",
    "t_first_token", "t_last_token", "t_delivered", "t_finished",
)  # fmt: skip
FIRST = dict(zip(_NAMES, (0, 0, 1, 1, 1, 1, 2, 2, 12, 22, 13, 23), strict=True), t_intended=0, t_slot=0)
SECOND = dict(zip(_NAMES, (1, 1, 2, 4, 4, 5, 12, 22, 32, 32, 33, 33), strict=True), t_intended=0, t_slot=0)


def table(*requests: dict[str, int], **counts: list[int]) -> RequestTable:
    columns = {name: np.array([one[name] * MS + (one[name] > 0) for one in requests]) for name in STAMPS}
    columns["t_intended"] = columns["t_slot"] = np.ones(len(requests), dtype=np.int64)
    for name in COUNTS:
        columns[name] = np.array(counts.get(name, [0] * len(requests)))
    return RequestTable(0, columns, ["completed"] * len(requests), [""] * len(requests))


def steps(*rows: dict[str, int]) -> dict[str, np.ndarray]:
    return {name: np.array([row.get(name, 0) for row in rows], dtype=np.int64) for name in STEP_COLUMNS}


def pauses(*spans: tuple[float, float]) -> Pauses:
    start, length = (np.array([int(span[i] * MS) for span in spans], dtype=np.int64) for i in (0, 1))
    return Pauses(start, length, np.zeros_like(start), True, 0)


def probes(**kinds: Pauses) -> RunProbes:
    none = pauses()
    rings = {name: kinds.get(name, none) for name in ("gil", "gc_engine", "gc_submitter", "hiccups")}
    return RunProbes(
        begin_ns=0, end_ns=40 * MS, threads=(), cpus=(), throttled_periods=None, throttled_ns=None, **rings
    )


def story(made: RequestTable, request: int = 1, **more: object) -> Story:
    return explain(made, more.get("steps"), more.get("probes"), SEPARATE_LEDGER, request)  # type: ignore[arg-type]


def notes(of: Story, part: str) -> str:
    return "; ".join(next(one for one in of.parts if one.name == part).notes)


def test_the_parts_of_a_story_sum_to_its_ttft() -> None:
    made = story(table(FIRST, SECOND, prompt_tokens=[7, 9]))
    assert sum(part.duration_ns for part in made.parts) == made.ttft_ns
    assert made.parts[0].start_ns == 1


def test_who_was_ahead_in_the_queue_is_counted_with_its_tokens() -> None:
    waiting = {**SECOND, "t_queued": 11, "t_scheduled": 21}
    made = story(table(FIRST, SECOND, waiting, prompt_tokens=[7, 9, 100], cached_tokens=[0, 0, 30]))
    assert notes(made, "queue_wait") == "1 request ahead of it in the queue, 70 prompt tokens to compute; 1 running"


def test_a_request_that_overtook_is_named() -> None:
    later = {**SECOND, "t_queued": 14, "t_scheduled": 15}
    assert "1 later request admitted before it" in notes(story(table(FIRST, SECOND, later)), "queue_wait")


def test_messages_ahead_at_the_ingress_are_told_from_a_wait_for_the_gil() -> None:
    taken = {**FIRST, "t_wire": 1, "t_ingress": 3}
    assert "1 message ahead of it" in notes(story(table(taken, SECOND)), "ingress_wait")
    assert "nothing ahead of it" in notes(story(table(FIRST, SECOND)), "ingress_wait")


def test_the_step_that_was_under_way_and_the_steps_that_served_are_named() -> None:
    table_of_steps = steps(
        {"t_start": 2 * MS, "t_end": 12 * MS, "prefill_tokens": 7, "prefill_rows": 1},
        {"t_start": 22 * MS, "t_end": 32 * MS + 5, "prefill_tokens": 9, "prefill_rows": 1, "decode_rows": 3},
    )
    made = story(table(FIRST, SECOND, prompt_tokens=[7, 9]), steps=table_of_steps)
    assert notes(made, "loop_wait") == "a step of 10.000 ms was under way: 7 prefill tokens, 0 decode rows"
    assert "1 step with 9 prefill tokens of 1 prompt or chunk, up to 3 decode rows" in notes(made, "prefill")


def test_an_idle_engine_has_no_step_under_way() -> None:
    idle = steps({"t_start": 30 * MS, "t_end": 31 * MS})
    assert notes(story(table(FIRST, SECOND), steps=idle), "loop_wait") == "no step was under way"


def test_pauses_count_with_what_they_share_with_a_part() -> None:
    seen = probes(gc_engine=pauses((10.0, 4.0), (50.0, 1.0)), gil=pauses((3.0, 0.01)))
    assert overlapping(seen, 12 * MS, 20 * MS) == (("garbage collection in the engine", 1, 2 * MS, 4 * MS),)
    made = story(table(FIRST, SECOND), probes=seen)
    queue = next(part for part in made.parts if part.name == "queue_wait")
    assert [overlap.pauses for overlap in queue.overlaps] == [1]


def test_the_worst_are_the_largest_and_those_without_a_figure_are_no_candidates() -> None:
    never = {**SECOND, "t_first_token": 0, "t_delivered": 0, "t_finished": 0, "t_last_token": 0}
    made = table(FIRST, never, SECOND, output_tokens=[2, 0, 1])
    assert worst(made, SEPARATE_LEDGER, "ttft", 5) == [2, 0]
    assert worst(made, SEPARATE_LEDGER, "queue_wait", 1) == [1]
    assert worst(made, SEPARATE_LEDGER, "tpot", 5) == [0]
    with pytest.raises(KeyError):
        worst(made, SEPARATE_LEDGER, "luck", 1)


def test_a_request_that_never_got_a_token_has_the_parts_it_reached() -> None:
    never = {
        **SECOND,
        **dict.fromkeys(("t_scheduled", "t_first_token", "t_last_token", "t_delivered", "t_finished"), 0),
    }
    made = story(table(FIRST, never))
    assert made.ttft_ns is None
    assert [part.name for part in made.parts][-1] == "loop_wait"


@pytest.mark.parametrize("width", [80, 120])
def test_a_story_fits_the_terminal(width: int) -> None:
    out = io.StringIO()
    render_story(story(table(FIRST, SECOND, prompt_tokens=[7, 9])), Console(file=out, width=width))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("Request 1 of run 0 completed: 10.00 ms of its TTFT of 33.00 ms was ")
    json.dumps(story_json(story(table(FIRST, SECOND))))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "no such folder"),
        ([".", "--request", "1", "--worst", "ttft"], "--request excludes"),
        ([".", "--request", "-1"], "--request must be a whole number"),
        ([".", "--top", "x"], "--top must be"),
        (["."], "summary.json"),
    ],
)
def test_a_bad_explain_is_one_line(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=says):
        run_explain("isorate", words)


def test_the_step_of_the_first_token_is_no_step_of_others() -> None:
    """It ends a moment after the token's stamp; of the two that follow, one computes somebody's prompt for 6 ms."""
    made = story(
        table(FIRST, SECOND, output_tokens=[3, 0]), request=0,
        steps=steps(
            {"t_start": 2 * MS, "t_end": 12 * MS + 50, "prefill_tokens": 7},
            {"t_start": 12 * MS + 60, "t_end": 18 * MS + 60, "prefill_tokens": 5},
            {"t_start": 18 * MS + 70, "t_end": 22 * MS, "decode_rows": 2},
        ),
    )  # fmt: skip
    assert made.decode is not None and made.decode.notes[1] == "1 of 2 steps computed prompts of others: 6.000 ms"


def test_send_calls_while_a_cap_held_a_request_back_are_no_cause_of_its_lag() -> None:
    made = table({**FIRST, "t_send": 3, "t_sent": 4}, {**SECOND, "t_send": 6, "t_sent": 7})
    assert notes(story(made), "submit_lag") == "1 earlier send call ended after it was due"
    capped = replace(made, columns={**made.columns, "t_slot": np.array([1, 5 * MS])})
    assert notes(story(capped), "submit_lag") == ""


def test_a_cut_off_row_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "requests.csv").write_text("run,request,status,error,t_send_ns\n0,0,comp\n")
    with pytest.raises(ConfigError, match="rows of 3 cells, the header has 5"):
        _read_requests(tmp_path, 0)
