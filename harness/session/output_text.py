"""Texts of the outputs, decoded by the engine's tokenizer after the last run, without what stopped them.

A stopped request's tokens all count, those of the stop as well: the engine computed them, and the client waited for
them. Its text ends where the stop begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.common import control as words
from harness.common.stamps import FinishReason
from harness.config.run_config import RunConfig
from harness.measures.records import read_outputs
from harness.session.live import Session


def decode_outputs(session: Session) -> dict[int, str]:
    """Text by collector row. The step loop must have been told to stop. Raises as `Events.expect`."""
    finishes = session.collector.column("finish_reason")
    outputs = {row: [int(token) for token in ids] for row, ids in read_outputs(session.collector).items()}
    stopped = [row for row in outputs if finishes[row] == FinishReason.STOP]
    for row in stopped:
        outputs[row] = without_stop_id(outputs[row], session.config)
    session.events.send(session.engine, words.DETOKENIZE, rows=list(outputs.values()))
    body = session.events.expect(session.engine, words.DETOKENIZED, session.config.start_timeout_s)
    texts = dict(zip(outputs, body["texts"], strict=True))
    return texts | cut_texts({row: texts[row] for row in stopped}, session.config.stop)


def without_stop_id(token_ids: Sequence[int], config: RunConfig) -> list[int]:
    """The tokens that the text of a stopped output shows."""
    return list(token_ids[:-1] if token_ids and token_ids[-1] in config.stop_ids else token_ids)


def cut_texts(texts: Mapping[int, str], stops: Sequence[str]) -> dict[int, str]:
    """Each text up to where its first stop string begins; what its last token has beyond the stop is gone too."""
    return {row: text[: first_stop(text, stops)] for row, text in texts.items()}


def first_stop(text: str, stops: Sequence[str]) -> int:
    """Where the earliest stop string begins, else the end of the text."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return min(places, default=len(text))
