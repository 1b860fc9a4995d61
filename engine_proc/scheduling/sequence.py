"""A request on its way through the engine: its tokens so far and its place in the KV cache. No tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine_proc.backends.base import EngineRequest
from engine_proc.scheduling.block_pool import BlockKey


@dataclass(slots=True, eq=False)
class Sequence:
    """owned by: step loop. The scheduler writes every field but `output_ids`, to which the backend appends.

    In terms of tokens, `num_computed <= num_scheduled <= num_tokens`: K and V committed; committed or in a step that
    is not committed yet; known at all. Without overlap the first two are equal whenever a step is formed.
    """

    request: EngineRequest
    #: Tokens that are on the host, appended by the backend in order. Never a placeholder: `token_ids` copies them once.
    output_ids: list[int] = field(default_factory=list)
    block_table: list[int] = field(default_factory=list)
    #: Blocks that it holds when it ends at its full length: for all tokens but the last, which nobody attends to.
    max_blocks: int = 0
    num_computed: int = 0
    num_scheduled: int = 0
    #: Tokens that steps in flight will add to `output_ids`.
    num_pending: int = 0
    #: Steps in flight that read or write its blocks: until they are committed the blocks stay its own.
    in_flight: int = 0
    #: Prompt tokens that were in the prefix cache at first admission; what a recompute finds does not count.
    num_cached: int = 0
    preemptions: int = 0
    preempted_at_ns: int = 0  # 0: not preempted at the moment
    #: Finished or aborted: its row takes no further token.
    ended: bool = False
    #: Hash chain over its full blocks, as far as it was needed so far.
    block_keys: list[BlockKey] = field(default_factory=list)
    _token_ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._token_ids = list(map(int, self.request.prompt_ids))

    @property
    def row(self) -> int:
        return self.request.row

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known on the host."""
        return len(self.request.prompt_ids) + len(self.output_ids)

    @property
    def num_uncomputed(self) -> int:
        return self.num_tokens - self.num_computed

    @property
    def num_unscheduled(self) -> int:
        """Tokens that the next step could compute, one that is still being sampled included."""
        return len(self.request.prompt_ids) + len(self.output_ids) + self.num_pending - self.num_scheduled

    @property
    def is_decoding(self) -> bool:
        """Only its newest output is left to compute. A recompute after a preemption is a prefill up to there."""
        return self.num_scheduled >= len(self.request.prompt_ids) and self.num_unscheduled == 1

    @property
    def may_grow(self) -> bool:
        """Whether one more token than those known and pending is allowed."""
        return len(self.output_ids) + self.num_pending < self.request.max_new_tokens

    @property
    def token_ids(self) -> list[int]:
        """Prompt and output, one list that grows with the output. Read it, don't change it."""
        missing = self.num_tokens - len(self._token_ids)
        if missing:
            self._token_ids += self.output_ids[-missing:]
        return self._token_ids
