"""A user's engine that speaks of what cannot be ends the run with a sentence; it never writes another row's cells.

Row -1 once wrote the last row's stamps, token id -7 made the token log unreadable and lost the report, 2**40 put a
token into another row; all three in runs that were VALID or died of an IndexError.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import FakeClock, make_collector

from engine_proc.backends.base import Capacity, EngineRequest, Failure, StepOutput, TokenEvent
from engine_proc.backends.registry import _fault_of
from engine_proc.intake.inbox import Inbox
from engine_proc.step_loop import StepLoop
from harness.common.errors import BackendError
from harness.common.protocol import Sampling
from harness.common.stamps import FinishReason, Reason

LENGTH = FinishReason.LENGTH


def loop_over(folder: Path, output: StepOutput) -> tuple[StepLoop, Any]:
    """A loop that holds row 3 (two new tokens, a vocabulary of 100) and a backend whose step returns `output`."""
    collector = make_collector(folder)
    backend = SimpleNamespace(
        capacity=lambda: Capacity(10, 100), add=lambda request: None, has_work=lambda: True, step=lambda: output
    )
    inbox = Inbox()
    inbox.put(EngineRequest(3, [1], 2, Sampling()))
    egress = SimpleNamespace(results=lambda events: 1)
    loop = StepLoop(backend, inbox, egress, collector, FakeClock(10, tick=1), lambda token: b"")  # type: ignore[arg-type]
    return loop, collector


@pytest.mark.parametrize("row", [-1, 2, 10**6, "a", None])
@pytest.mark.parametrize("field", ["admitted", "preempted", "tokens", "failed"])
def test_a_row_that_the_engine_does_not_hold_is_refused(row: Any, field: str, tmp_path: Path) -> None:
    entry = {
        "admitted": row, "preempted": (row, 5), "tokens": TokenEvent(row, 5), "failed": Failure(row, Reason.NO_WORD)
    }[field]  # fmt: skip
    loop, collector = loop_over(tmp_path, StepOutput(**{field: [entry]}))
    with pytest.raises(BackendError, match="which the engine does not hold"):
        loop.run()
    assert collector.column("t_scheduled").sum() == collector.column("t_first_token").sum() == 0


@pytest.mark.parametrize("token_id", [-7, 100, 2**40])
def test_a_token_outside_the_vocabulary_is_refused(token_id: int, tmp_path: Path) -> None:
    loop, collector = loop_over(tmp_path, StepOutput(tokens=[TokenEvent(3, token_id)]))
    with pytest.raises(BackendError, match="the vocabulary has 100"):
        loop.run()
    assert collector.word("tokens") == 0


def test_a_request_gets_no_more_tokens_than_it_asked_for(tmp_path: Path) -> None:
    loop, _ = loop_over(tmp_path, StepOutput(tokens=[TokenEvent(3, 5)] * 3))
    with pytest.raises(BackendError, match="token 3 of row 3, which asked for 2"):
        loop.run()


def test_a_request_ends_once(tmp_path: Path) -> None:
    loop, _ = loop_over(tmp_path, StepOutput(tokens=[TokenEvent(3, 5, LENGTH), TokenEvent(3, 5, LENGTH)]))
    with pytest.raises(BackendError, match="row 3, which the engine does not hold"):
        loop.run()


def test_an_end_is_one_that_there_is(tmp_path: Path) -> None:
    loop, _ = loop_over(tmp_path, StepOutput(tokens=[TokenEvent(3, 5, 99)]))  # type: ignore[arg-type]
    with pytest.raises(BackendError, match="finish 99"):
        loop.run()


@pytest.mark.parametrize(
    ("capacity", "description", "fault"),
    [
        ("x", {}, "no Capacity"),
        (Capacity(2**70, 10), {}, "integers from 1"),
        (Capacity(10, 0), {}, "integers from 1"),
        (Capacity(10, 10), [1], "no dict"),
        (Capacity(10, 10), {"a": object()}, "JSON cannot hold"),
        (Capacity(10, 10), {"a": float("nan")}, "JSON cannot hold"),
        (Capacity(10, 10), {"a": "\ud800"}, "JSON cannot hold"),
        (Capacity(10, 10), {"name": "mine"}, ""),
    ],
)
def test_what_an_engine_says_of_itself_is_looked_at_before_the_run(
    capacity: object, description: object, fault: str
) -> None:
    said = _fault_of(capacity, description)
    assert (fault in said) if fault else said == ""
