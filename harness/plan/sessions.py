"""Requests of conversations: one a turn, each with what was said before it, due a think time after the turn before."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from harness.common.clock import NS_PER_MS
from harness.plan.datasets import Conversation, Turn
from harness.plan.draft import Int32Array, Int64Array

#: Stands between what was said and replied.
JOINT = "\n"


class Request(NamedTuple):
    """prompt: all that was said and replied so far, and what is said now. after: row of the turn before, -1: none."""

    prompt: str
    reply: str | int | None
    after: int
    think_ns: int


class Sessions(NamedTuple):
    """requests: of all sessions, one session after the other. session: int64[N], the one that row i belongs to.

    after: int32[N] and think_ns: int64[N] of the plan, None where no session has a second turn. unanswered: turns left
    out because nothing says how long their output is.
    """

    requests: list[Request]
    session: Int64Array
    after: Int32Array | None
    think_ns: Int64Array | None
    unanswered: int

    @property
    def num_sessions(self) -> int:
        """How many sessions there are."""
        return int(self.session[-1]) + 1 if len(self.session) else 0


def make_sessions(
    conversations: Iterable[Conversation],
    *,
    turns: int | None,
    count: int | None,
    most: int | None,
    think_ms: float | None,
    recorded: bool,
) -> Sessions:
    """The requests of `conversations`, at most `turns` each.

    count: requests in all, the last session is cut; most: sessions in all; both cycle over the conversations, and what
    comes first ends it. None: all turns, each conversation once. think_ms: of every turn but the first, None: what the
    file says, else 0. recorded: outputs are as long as the replies, so a conversation ends before its first turn
    without one.
    """
    kept, unanswered = [], 0
    for conversation in conversations:
        usable = conversation.turns[:turns]
        if recorded:
            answered = tuple(itertools.takewhile(lambda turn: turn.reply is not None, usable))
            unanswered += len(usable) - len(answered)
            usable = answered
        if usable:
            kept.append(usable)
    requests: list[Request] = []
    session: list[int] = []
    endless = count is not None or most is not None
    for number, usable in enumerate(itertools.cycle(kept) if endless else kept):
        room = len(usable) if count is None else count - len(requests)
        if room <= 0 or number == most:
            break
        requests.extend(itertools.islice(_requests(usable, len(requests), think_ms), room))
        session.extend([number] * (len(requests) - len(session)))
    after = np.array([request.after for request in requests], dtype=np.int32)
    gated = bool((after >= 0).any())
    think = np.array([request.think_ns for request in requests], dtype=np.int64)
    return Sessions(
        requests, np.array(session, dtype=np.int64), after if gated else None, think if gated else None, unanswered
    )


def _requests(turns: tuple[Turn, ...], first_row: int, think_ms: float | None) -> Iterator[Request]:
    history: list[str] = []
    for place, turn in enumerate(turns):
        history.append(turn.said)
        prompt = JOINT.join(history)
        if place == 0:
            yield Request(prompt, turn.reply, -1, 0)
        else:
            wait_ms = (turn.think_ms or 0.0) if think_ms is None else think_ms
            yield Request(prompt, turn.reply, first_row + place - 1, round(wait_ms * NS_PER_MS))
        if isinstance(turn.reply, str):
            history.append(turn.reply)
