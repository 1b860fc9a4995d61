"""Ingress validation: a bad request is turned away alone, nothing is cut short silently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine_proc.backends.base import Capacity
from harness.common.stamps import Reason


class Rejection(NamedTuple):
    """Why a request is rejected, with the two arguments of the reason's sentence."""

    reason: Reason
    a: int = 0
    b: int = 0


def check_request(prompt_ids: Sequence[int], max_new_tokens: int, capacity: Capacity) -> Rejection | None:
    """The first rule that the request breaks, or None.

    A prompt with its new tokens must fit the context: prompt + max_new_tokens <= max_model_len.
    """
    length = len(prompt_ids)
    if length == 0:
        return Rejection(Reason.EMPTY_PROMPT)
    if max_new_tokens < 0:
        return Rejection(Reason.NEGATIVE_MAX_NEW_TOKENS, max_new_tokens)
    if length + max_new_tokens > capacity.max_model_len:
        return Rejection(Reason.TOO_LONG, length, capacity.max_model_len)
    low, high = min(prompt_ids), max(prompt_ids)
    if low < 0 or high >= capacity.vocab_size:
        return Rejection(Reason.ID_OUT_OF_VOCAB, low if low < 0 else high, capacity.vocab_size)
    return None
