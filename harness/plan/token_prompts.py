"""Prompts of random token ids: exact lengths without a tokenizer in the way, shared blocks included."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harness.common.errors import ConfigError
from harness.common.limits import MAX_PAYLOAD_BYTES
from harness.plan.draft import Int32Array, Int64Array, PromptShape, Vocabulary
from harness.plan.seeds import Dimension, generator

#: Streams of the prompts' seed: what is a prompt's own, and what it shares.
OWN, BLOCKS, PREFIXES = 0, 1, 2

ID_BYTES = 4


class TokenPrompts(NamedTuple):
    """ids: int32[T] of all prompts back to back; starts: int64[N+1] into ids."""

    ids: Int32Array
    starts: Int64Array


def token_prompts(shape: PromptShape, vocabulary: Vocabulary, seed: int) -> TokenPrompts:
    """Ids drawn evenly from the vocabulary without its special ids.

    A block's ids depend on `seed` and its id only. Raises ConfigError where the vocabulary has nothing but special ids,
    or all prompts together exceed MAX_PAYLOAD_BYTES.
    """
    allowed = usable_ids(vocabulary)
    starts = np.zeros(len(shape.input_lens) + 1, dtype=np.int64)
    np.cumsum(shape.input_lens, dtype=np.int64, out=starts[1:])
    if starts[-1] * ID_BYTES > MAX_PAYLOAD_BYTES:
        raise ConfigError(f"the {starts[-1]} tokens of all prompts would exceed {MAX_PAYLOAD_BYTES} bytes")
    draws = generator(seed, Dimension.PROMPTS, OWN).integers(0, len(allowed), size=int(starts[-1]))
    ids = allowed[draws]
    if shape.block_ids is not None:
        _fill_blocks(ids, starts, shape, allowed, seed)
    return TokenPrompts(ids, starts)


def usable_ids(vocabulary: Vocabulary) -> Int32Array:
    """All ids but the special ones, ascending. Raises ConfigError where none is left."""
    ids = np.setdiff1d(np.arange(vocabulary.size, dtype=np.int32), np.array(vocabulary.special_ids, dtype=np.int32))
    if not len(ids):
        raise ConfigError("random prompts: the model's vocabulary has nothing but special tokens")
    return np.asarray(ids, dtype=np.int32)


def _fill_blocks(ids: Int32Array, starts: Int64Array, shape: PromptShape, allowed: Int32Array, seed: int) -> None:
    """Write each prompt's shared blocks over its first tokens, in place."""
    made: dict[int, Int32Array] = {}
    for i in range(len(shape.input_lens)):
        place, end = int(starts[i]), int(starts[i + 1])
        for block in shape.blocks(i):
            length = min(shape.block_tokens, end - place)
            if length <= 0:
                break
            if block not in made:
                made[block] = _block(block, shape.block_tokens, allowed, seed)
            ids[place : place + length] = made[block][:length]
            place += length


def _block(block: int, length: int, allowed: Int32Array, seed: int) -> Int32Array:
    key = block % 2**64  # ids of traces may be negative
    random = generator(seed, Dimension.PROMPTS, BLOCKS, key >> 32, key & 0xFFFFFFFF)
    draws = random.integers(0, len(allowed), size=length)
    return np.asarray(allowed[draws], dtype=np.int32)
