"""What every model family offers to the runner, and what the runner hands to it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


class ModelShape(NamedTuple):
    """What the KV cache, ingress and the report need to know of a model."""

    family: str
    vocab_size: int
    max_positions: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    def __str__(self) -> str:
        heads = f"{self.heads} heads" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads} heads"
        return f"{self.family}: {self.layers} layers, {self.hidden} wide, {heads}"


class Attention(Protocol):
    """Attention of one pass over the KV cache; made by the runner for each pass."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Store k and v [tokens, kv_heads, head_dim], attend with q [tokens, heads, head_dim].

        Returns [tokens, heads * head_dim].
        """


class Model(Protocol):
    """A decoder on one device. Weights never change; no state between calls."""

    shape: ModelShape

    def hidden(self, ids: Tensor, positions: Tensor, attention: Attention, rows: Tensor | None = None) -> Tensor:
        """Last hidden states, before the final norm, of a flat row of tokens. `ids`, `positions`: int64 [tokens].

        `rows`: the tokens whose state is wanted (None: all); the last layer then computes only those after attention.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [rows, vocab]."""

    def compile(self) -> None:
        """Have torch.compile make the layers' code, all but attention, at their next use."""

    def warm_up(self, num_tokens: int) -> None:
        """Run one layer's products and the head over `num_tokens` rows, for what oneDNN keeps for each height."""
