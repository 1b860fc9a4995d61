"""Validation at ingress: the first rule that a request breaks, with the numbers its sentence needs."""

from __future__ import annotations

import pytest

from engine_proc.backends.base import Capacity
from engine_proc.intake.validate import Rejection, check_request
from harness.common.stamps import Reason, reason_text

CAPACITY = Capacity(max_model_len=10, vocab_size=100)


@pytest.mark.parametrize(
    ("prompt_ids", "max_new_tokens", "rejection"),
    [
        ([], 1, Rejection(Reason.EMPTY_PROMPT)),
        ([1], -1, Rejection(Reason.NEGATIVE_MAX_NEW_TOKENS, -1)),
        ([1] * 7, 4, Rejection(Reason.TOO_LONG, 7, 10)),
        ([1] * 11, 0, Rejection(Reason.TOO_LONG, 11, 10)),
        ([1], 2**64 - 1, Rejection(Reason.TOO_LONG, 1, 10)),
        ([1, 100], 1, Rejection(Reason.ID_OUT_OF_VOCAB, 100, 100)),
        ([-1, 1], 1, Rejection(Reason.ID_OUT_OF_VOCAB, -1, 100)),
        ([2**31 - 1], 1, Rejection(Reason.ID_OUT_OF_VOCAB, 2**31 - 1, 100)),
        ([], -1, Rejection(Reason.EMPTY_PROMPT)),
    ],
)
def test_a_broken_rule_is_named_with_its_numbers(
    prompt_ids: list[int], max_new_tokens: int, rejection: Rejection
) -> None:
    assert check_request(prompt_ids, max_new_tokens, CAPACITY) == rejection
    assert reason_text(*rejection)


@pytest.mark.parametrize(("prompt_ids", "max_new_tokens"), [([1] * 7, 3), ([1] * 10, 0), ([0], 9), ([99], 1)])
def test_a_request_at_the_limits_passes(prompt_ids: list[int], max_new_tokens: int) -> None:
    assert check_request(prompt_ids, max_new_tokens, CAPACITY) is None
