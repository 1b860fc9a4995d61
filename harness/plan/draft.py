"""A load before the engine's tokenizer has seen it: times and rows are final, payloads and lengths need not be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from harness.common.plan_file import LoadPlan

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]


class Vocabulary(NamedTuple):
    """What the engine can take: ids 0..size-1 that have a text, those with a special meaning, its context in tokens."""

    size: int
    special_ids: tuple[int, ...]
    max_model_len: int


class TokenizerLink(Protocol):
    """The engine's tokenizer, however it is reached. Every call takes a batch, because a call is a round trip."""

    def tokenize(self, texts: Sequence[str]) -> list[Int32Array]:
        """Token ids of each text, as the engine would send them into the model."""

    def detokenize(self, rows: Sequence[Int32Array]) -> list[str]:
        """The text of each row of ids."""

    def vocabulary(self) -> Vocabulary:
        """The same answer at every call."""


@dataclass(frozen=True, slots=True)
class PromptShape:
    """N prompts to be made, by their lengths and by what they share.

    input_lens: int32[N], tokens of the whole prompt. Prompt i begins with the shared blocks
    `block_ids[block_starts[i]:block_starts[i+1]]`, each `block_tokens` long: a block of one id has the same tokens
    wherever it stands. Blocks beyond the prompt's length are cut, what they do not cover is the prompt's own.
    """

    input_lens: Int32Array
    block_ids: Int64Array | None = None
    block_starts: Int64Array | None = None
    block_tokens: int = 0

    def blocks(self, i: int) -> list[int]:
        """Ids of the blocks that prompt i begins with."""
        if self.block_ids is None or self.block_starts is None:
            return []
        return [int(block) for block in self.block_ids[self.block_starts[i] : self.block_starts[i + 1]]]


class TextSource(NamedTuple):
    """Text that prompts are cut from, over and over with `joint` between; `draw`: each from a place of its own."""

    text: str
    joint: str
    draw: bool


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan and what is still to be done to it. `plan` has no payload where `shape` is set.

    plan.max_new_tokens is an upper bound of each where `replies` is set. source: None for random token ids. replies:
    the recorded output of each request, whose tokens are its output length; a number is the length itself.
    input_flexible, output_flexible: lengths that were drawn or recorded, and are shortened to fit the context, the
    input first. strict: a request that still exceeds the context is refused; else it is the engine's to reject. notes:
    what the summary says of how the load was made, JSON-able; lines: the same for the user, one each.
    """

    plan: LoadPlan
    shape: PromptShape | None = None
    source: TextSource | None = None
    replies: tuple[str | int, ...] | None = None
    input_flexible: bool = False
    output_flexible: bool = False
    strict: bool = True
    notes: tuple[tuple[str, object], ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def num_requests(self) -> int:
        return self.plan.num_requests
