"""The protocol between the step loop and an engine. Everything here is called from the engine's main thread only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from harness.common.protocol import Sampling
from harness.common.stamps import FinishReason, Reason


class Capacity(NamedTuple):
    """What ingress validates against.

    max_model_len: most tokens (prompt + new) of one request. vocab_size: ids are 0..vocab_size-1.
    eos_ids: ids that end a request whose sampling says stop_on_eos.
    """

    max_model_len: int
    vocab_size: int
    eos_ids: tuple[int, ...] = ()


@dataclass(slots=True)
class EngineRequest:
    """A validated request: 1 <= len(prompt_ids), every id in the vocabulary, 1 <= max_new_tokens, fits the context.

    arrived_ns: its t_tokenized, from which on the engine could have served it.
    """

    row: int
    prompt_ids: Sequence[int]
    max_new_tokens: int
    sampling: Sampling
    arrived_ns: int = field(default=0, compare=False)


class TokenEvent(NamedTuple):
    """One new token of a request; `finish` other than NONE means that it was the last one."""

    row: int
    token_id: int
    finish: FinishReason = FinishReason.NONE


class Failure(NamedTuple):
    """A request that the backend gives up, with the two arguments of the reason's sentence."""

    row: int
    reason: Reason
    a: int = 0
    b: int = 0


@dataclass(slots=True)
class StepOutput:
    """What one step did.

    batch_ns: CLOCK_MONOTONIC ns at which the batch was formed (stamped as t_scheduled of `admitted`); 0: step start.
    tokens_ns: ns at which the tokens were on the host, after the device sync; 0: step end.
    admitted: rows that entered a batch for the first time. preempted: (row, ns spent preempted) of rows re-admitted.
    cached_tokens: (row, prompt tokens taken from the prefix cache) of admitted rows that had any; what a recompute
    after a preemption finds there does not count. prefill_rows: prompts, or chunks of them, in the batch; decode_rows:
    the others. late_captures: CUDA graphs that this step had to capture, which belongs into warm-up.
    """

    admitted: list[int] = field(default_factory=list)
    tokens: list[TokenEvent] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    preempted: list[tuple[int, int]] = field(default_factory=list)
    batch_ns: int = 0
    tokens_ns: int = 0
    prefill_tokens: int = 0
    decode_rows: int = 0
    kv_blocks_used: int = 0
    preemptions: int = 0
    cached_tokens: list[tuple[int, int]] = field(default_factory=list)
    prefill_rows: int = 0
    late_captures: int = 0


class EngineBackend(Protocol):
    """An engine that the step loop drives. `step` may block for one step; the others return at once.

    Stop strings and stop ids are the step loop's (`engine_proc.stopping`): it aborts a row that they end. A backend may
    have two more attributes, which the step loop looks for: `reset_prefix_cache()`, called at the start of every run,
    and `nvtx_range(name)`, a context manager (None: ranges are off).
    """

    def capacity(self) -> Capacity:
        """Limits, constant for the backend's life."""

    def describe(self) -> dict[str, object]:
        """What the report says of it (model, weights, device, dtype, threads ...), JSON-able."""

    def add(self, request: EngineRequest) -> None:
        """Put a request into the waiting queue."""

    def abort(self, row: int) -> bool:
        """Drop a request wherever it is; False where the row is unknown or already finished. Called between steps.

        Tokens of it that a step in flight still gives are dropped by the step loop.
        """

    def has_work(self) -> bool:
        """Whether `step` would do anything."""

    def step(self) -> StepOutput:
        """Schedule and run one batch. An exception ends the engine."""

    def close(self) -> None:
        """Free what the backend holds (threads, device memory). Called once."""
