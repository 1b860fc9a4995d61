"""GPT-2 in plain tensors: one flat row of tokens through linear layers, attention left to what the runner passes in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_proc.models.base import Attention, ModelShape
from engine_proc.models.exact_linear import make_linear
from engine_proc.models.linear import ACTIVATIONS, Linear
from harness.common.errors import ConfigError


@dataclass(frozen=True, slots=True)
class GPT2Config:
    """The shape of a GPT-2. Defaults: GPT-2 small."""

    vocab_size: int = 50257
    max_positions: int = 1024
    hidden: int = 768
    layers: int = 12
    heads: int = 12
    inner: int = 3072
    eps: float = 1e-5
    activation: str = "gelu_new"
    scale_attention: bool = True
    scale_by_layer: bool = False

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> GPT2Config:
        """From the fields of a Hugging Face config.json. Raises ConfigError naming a field it cannot use."""
        try:
            hidden = int(config.get("n_embd", 768))
            shape = cls(
                vocab_size=int(config.get("vocab_size", 50257)),
                max_positions=int(config.get("n_positions", 1024)),
                hidden=hidden,
                layers=int(config.get("n_layer", 12)),
                heads=int(config.get("n_head", 12)),
                inner=int(config.get("n_inner") or 4 * hidden),
                eps=float(config.get("layer_norm_epsilon", 1e-5)),
                activation=str(config.get("activation_function", "gelu_new")),
                scale_attention=bool(config.get("scale_attn_weights", True)),
                scale_by_layer=bool(config.get("scale_attn_by_inverse_layer_idx", False)),
            )
        except (TypeError, ValueError) as error:
            raise ConfigError(f"config.json: a field of the GPT-2 shape is not a number ({error})") from error
        sizes = (shape.vocab_size, shape.max_positions, shape.hidden, shape.layers, shape.heads, shape.inner)
        if min(sizes) < 1 or shape.hidden % shape.heads:
            raise ConfigError(f"config.json: not a possible GPT-2 shape: {shape}")
        if shape.activation not in ACTIVATIONS:
            raise ConfigError(f"config.json: activation_function {shape.activation!r} is not supported")
        if config.get("add_cross_attention"):
            raise ConfigError("config.json: add_cross_attention is not supported")
        return shape

    def to_hf(self) -> dict[str, Any]:
        """The fields of a config.json."""
        return {
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": self.vocab_size,
            "n_positions": self.max_positions, "n_embd": self.hidden, "n_layer": self.layers, "n_head": self.heads,
            "n_inner": self.inner, "layer_norm_epsilon": self.eps, "activation_function": self.activation,
            "scale_attn_weights": self.scale_attention, "scale_attn_by_inverse_layer_idx": self.scale_by_layer,
        }  # fmt: skip

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's name and shape as Hugging Face stores it (linear weights are [in, out])."""
        hidden, inner = self.hidden, self.inner
        shapes: dict[str, tuple[int, ...]] = {
            "wte.weight": (self.vocab_size, hidden),
            "wpe.weight": (self.max_positions, hidden),
        }
        for i in range(self.layers):
            for norm in ("ln_1", "ln_2"):
                shapes |= {f"h.{i}.{norm}.weight": (hidden,), f"h.{i}.{norm}.bias": (hidden,)}
            for name, size in (
                ("attn.c_attn", (hidden, 3 * hidden)),
                ("attn.c_proj", (hidden, hidden)),
                ("mlp.c_fc", (hidden, inner)),
                ("mlp.c_proj", (inner, hidden)),
            ):
                shapes |= {f"h.{i}.{name}.weight": size, f"h.{i}.{name}.bias": size[1:]}
        return shapes | {"ln_f.weight": (hidden,), "ln_f.bias": (hidden,)}


class GPT2:
    """The model on one device. Weights never change; no state between calls."""

    def __init__(
        self, config: GPT2Config, weights: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype,
        packed: bool, exact: bool = False, wide_stream: bool = False,
    ) -> None:  # fmt: skip
        """`weights`: what `config.shapes` lists, and "lm_head.weight" where the head is not the embedding.

        `packed`: linear weights in oneDNN's layout (CPU only). `exact`: products in float64 (`ExactLinear`);
        with it `wide_stream`: all in float64 but what attention works with (q, k, v, the KV cache, what comes out).
        """
        self.config = config
        self.shape = ModelShape(
            "GPT-2", config.vocab_size, config.max_positions, config.hidden, config.layers, config.heads, config.heads,
            config.head_dim,
        )  # fmt: skip
        self._device = device
        self._dtype = dtype
        self._stream = torch.float64 if wide_stream else dtype
        self._packed, self._exact = packed, exact
        self._wte = self._tensor(weights["wte.weight"])
        self._wpe = self._tensor(weights["wpe.weight"])
        self._blocks = [self._block(weights, i) for i in range(config.layers)]
        self._ln_f = self._norm(weights, "ln_f")
        head = self._tensor(weights["lm_head.weight"]) if "lm_head.weight" in weights else self._wte
        self._head = make_linear(head, None, packed, exact, wide=True)

    def hidden(self, ids: Tensor, positions: Tensor, attention: Attention, rows: Tensor | None = None) -> Tensor:
        config = self.config
        x = F.embedding(ids, self._wte).to(self._stream) + F.embedding(positions, self._wpe)
        for i, block in enumerate(self._blocks):
            q, k, v = self._queries(block, x)
            attended = attention(i, q, k, v, self._scale(i))
            if rows is not None and i == config.layers - 1:
                attended, x = attended[rows], x[rows]
            x = self._rest(block, attended, x)
        return x

    def compile(self) -> None:
        # One graph for all blocks: a block's weights are inputs to it, attention is not part of it.
        self._queries = torch.compile(self._queries, dynamic=True)  # type: ignore[method-assign]
        self._rest = torch.compile(self._rest, dynamic=True)  # type: ignore[method-assign]

    def _queries(self, block: _Block, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of a block by head."""
        qkv = block.c_attn(F.layer_norm(x, (self.config.hidden,), *block.ln_1, self.config.eps))
        q, k, v = qkv.to(self._dtype).view(-1, 3, self.config.heads, self.config.head_dim).unbind(1)
        return q, k, v

    def _rest(self, block: _Block, attended: Tensor, x: Tensor) -> Tensor:
        """A block after its attention."""
        x = block.attn_proj.added(attended, x)
        normed = F.layer_norm(x, (self.config.hidden,), *block.ln_2, self.config.eps)
        return block.mlp_proj.added(block.c_fc.activated(normed, self.config.activation), x)

    def warm_up(self, num_tokens: int) -> None:
        """Run one block's linear layers over `num_tokens` rows, for what oneDNN keeps for each number of rows.

        The first product of a new height costs several times the second (bf16, 256 rows: 33 ms against 5 for the four).
        """
        block = self._blocks[0]
        x = torch.zeros((num_tokens, self.config.hidden), device=self._device, dtype=self._dtype)
        block.c_attn(x)
        block.attn_proj.added(x, x)
        block.mlp_proj.added(block.c_fc.activated(x, self.config.activation), x)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(F.layer_norm(hidden, (self.config.hidden,), *self._ln_f, self.config.eps))

    def _scale(self, layer: int) -> float:
        scale = self.config.head_dim**-0.5 if self.config.scale_attention else 1.0
        return scale / (layer + 1) if self.config.scale_by_layer else scale

    def _tensor(self, weight: Tensor) -> Tensor:
        return weight.to(self._device, self._dtype).contiguous()

    def _norm(self, weights: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
        weight, bias = self._tensor(weights[f"{name}.weight"]), self._tensor(weights[f"{name}.bias"])
        return weight.to(self._stream), bias.to(self._stream)

    def _linear(self, weights: Mapping[str, Tensor], name: str) -> Linear:
        weight = self._tensor(weights[f"{name}.weight"].to(self._dtype).t())
        return make_linear(weight, self._tensor(weights[f"{name}.bias"]), self._packed, self._exact)

    def _block(self, weights: Mapping[str, Tensor], i: int) -> _Block:
        return _Block(
            ln_1=self._norm(weights, f"h.{i}.ln_1"),
            c_attn=self._linear(weights, f"h.{i}.attn.c_attn"),
            attn_proj=self._linear(weights, f"h.{i}.attn.c_proj"),
            ln_2=self._norm(weights, f"h.{i}.ln_2"),
            c_fc=self._linear(weights, f"h.{i}.mlp.c_fc"),
            mlp_proj=self._linear(weights, f"h.{i}.mlp.c_proj"),
        )


@dataclass(frozen=True, slots=True)
class _Block:
    ln_1: tuple[Tensor, Tensor]
    c_attn: Linear
    attn_proj: Linear
    ln_2: tuple[Tensor, Tensor]
    c_fc: Linear
    mlp_proj: Linear
