"""The Llama family in plain tensors: Llama, Qwen2 (bias on q, k, v) and Qwen3 (norms on q and k)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_proc.models.base import Attention, ModelShape
from engine_proc.models.exact_linear import make_linear
from engine_proc.models.linear import Linear
from engine_proc.models.rope import Rope, rotate, rotations
from harness.common.errors import ConfigError

FAMILIES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The shape of a model of the family."""

    family: str
    vocab_size: int
    max_positions: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    eps: float = 1e-6
    rope: Rope = field(default_factory=Rope)
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied: bool = False

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """From the fields of a Hugging Face config.json. Raises ConfigError naming a field it cannot use."""
        family = str(config.get("model_type"))
        try:
            shape = cls._read(family, config)
        except KeyError as error:
            raise ConfigError(f"config.json: {error.args[0]} is missing") from error
        except (TypeError, ValueError) as error:
            name = FAMILIES[family]
            raise ConfigError(f"config.json: a field of the {name} shape is not a number ({error})") from error
        sizes = (shape.vocab_size, shape.max_positions, shape.hidden, shape.layers, shape.heads, shape.kv_heads,
                 shape.inner, shape.head_dim)  # fmt: skip
        if min(sizes) < 1 or shape.heads % max(shape.kv_heads, 1) or shape.head_dim % 2:
            raise ConfigError(f"config.json: not a possible {FAMILIES[family]} shape: {shape}")
        if config.get("hidden_act", "silu") != "silu":
            raise ConfigError(f"config.json: hidden_act {config['hidden_act']!r} is not supported")
        if config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or ()):
            raise ConfigError("config.json: sliding window attention is not supported")
        if config.get("quantization_config"):
            raise ConfigError("config.json: quantized weights (quantization_config) are not supported")
        return shape

    @classmethod
    def _read(cls, family: str, config: Mapping[str, Any]) -> LlamaConfig:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        max_positions = int(config["max_position_embeddings"])
        bias = bool(config.get("attention_bias", False))
        return cls(
            family=family,
            vocab_size=int(config["vocab_size"]),
            max_positions=max_positions,
            hidden=hidden,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or (128 if family == "qwen3" else hidden // max(heads, 1))),
            inner=int(config["intermediate_size"]),
            eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=Rope.from_hf(config, max_positions),
            qkv_bias=True if family == "qwen2" else bias,
            out_bias=False if family == "qwen2" else bias,
            mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
            qk_norm=family == "qwen3",
            tied=bool(config.get("tie_word_embeddings", False)),
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's name and shape as Hugging Face stores it, without the leading "model."."""
        shapes: dict[str, tuple[int, ...]] = {
            "embed_tokens.weight": (self.vocab_size, self.hidden),
            "norm.weight": (self.hidden,),
        }
        for i in range(self.layers):
            shapes |= {f"layers.{i}.{name}": shape for name, shape in self._layer_shapes().items()}
        return shapes if self.tied else shapes | {"lm_head.weight": (self.vocab_size, self.hidden)}

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        linear = {
            "self_attn.q_proj": (queries, self.hidden, self.qkv_bias),
            "self_attn.k_proj": (keys, self.hidden, self.qkv_bias),
            "self_attn.v_proj": (keys, self.hidden, self.qkv_bias),
            "self_attn.o_proj": (self.hidden, queries, self.out_bias),
            "mlp.gate_proj": (self.inner, self.hidden, self.mlp_bias),
            "mlp.up_proj": (self.inner, self.hidden, self.mlp_bias),
            "mlp.down_proj": (self.hidden, self.inner, self.mlp_bias),
        }
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (self.hidden,), "post_attention_layernorm.weight": (self.hidden,),
        }  # fmt: skip
        for name, (out, in_, has_bias) in linear.items():
            shapes[f"{name}.weight"] = (out, in_)
            if has_bias:
                shapes[f"{name}.bias"] = (out,)
        if self.qk_norm:
            shapes |= {"self_attn.q_norm.weight": (self.head_dim,), "self_attn.k_norm.weight": (self.head_dim,)}
        return shapes


@dataclass(frozen=True, slots=True)
class _Layer:
    norm_1: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    norm_2: Tensor
    gate_up: Linear
    down: Linear


class Llama:
    """The model on one device. Weights never change; no state between calls."""

    def __init__(
        self, config: LlamaConfig, weights: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype,
        packed: bool, exact: bool = False, wide_stream: bool = False,
    ) -> None:  # fmt: skip
        """`weights`: what `config.shapes` lists. `packed`: linear weights in oneDNN's layout (CPU only).

        `exact`: products in float64 (`ExactLinear`); with it `wide_stream`: all in float64 but what
        attention works with (q, k, v with their positions, the KV cache, what comes out).
        """
        self.config = config
        self.shape = ModelShape(
            FAMILIES[config.family], config.vocab_size, config.max_positions, config.hidden, config.layers,
            config.heads, config.kv_heads, config.head_dim,
        )  # fmt: skip
        self._device = device
        self._dtype = dtype
        self._stream = torch.float64 if wide_stream else dtype
        self._packed, self._exact = packed, exact
        self._scale = config.head_dim**-0.5
        self._inverse = config.rope.inverse_frequencies(config.head_dim).to(device)
        if "rope_freqs.weight" in weights:  # a GGUF file of Llama 3 says its scaling in this way
            self._inverse = self._inverse / weights["rope_freqs.weight"].to(device)
        self._embedding = self._tensor(weights["embed_tokens.weight"])
        self._layers = [self._layer(weights, f"layers.{i}.") for i in range(config.layers)]
        self._norm = self._tensor(weights["norm.weight"]).to(self._stream)
        head = self._embedding if config.tied else self._tensor(weights["lm_head.weight"])
        self._head = make_linear(head, None, packed, exact, wide=True)

    def hidden(self, ids: Tensor, positions: Tensor, attention: Attention, rows: Tensor | None = None) -> Tensor:
        x = F.embedding(ids, self._embedding).to(self._stream)
        cos, sin = rotations(positions, self._inverse, self._dtype)
        for i, layer in enumerate(self._layers):
            q, k, v = self._queries(layer, x, cos, sin)
            attended = attention(i, q, k, v, self._scale)
            if rows is not None and i == self.config.layers - 1:
                attended, x = attended[rows], x[rows]
            x = self._rest(layer, attended, x)
        return x

    def compile(self) -> None:
        # One graph for all layers: a layer's weights are inputs to it, attention is not part of it.
        self._queries = torch.compile(self._queries, dynamic=True)  # type: ignore[method-assign]
        self._rest = torch.compile(self._rest, dynamic=True)  # type: ignore[method-assign]

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(self._rms(hidden, self._norm))

    def warm_up(self, num_tokens: int) -> None:
        layer = self._layers[0]
        x = torch.zeros((num_tokens, self.config.hidden), device=self._device, dtype=self._dtype)
        attended = layer.qkv(x)[:, : self.config.heads * self.config.head_dim].contiguous()
        layer.out.added(attended, x)
        layer.down.added(self._gated(layer, x), x)

    def _queries(self, layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of a layer by head, with their norms and positions."""
        config = self.config
        turned = config.heads + config.kv_heads
        qkv = layer.qkv(self._rms(x, layer.norm_1)).to(self._dtype)
        by_head = qkv.view(x.shape[0], turned + config.kv_heads, config.head_dim)
        qk = by_head[:, :turned]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._rms(qk[:, : config.heads], layer.q_norm), self._rms(qk[:, config.heads :], layer.k_norm)
            qk = torch.cat((q, k), dim=1)
        qk = rotate(qk, cos, sin)
        return qk[:, : config.heads], qk[:, config.heads :], by_head[:, turned:]

    def _rest(self, layer: _Layer, attended: Tensor, x: Tensor) -> Tensor:
        """A layer after its attention."""
        x = layer.out.added(attended, x)
        return layer.down.added(self._gated(layer, self._rms(x, layer.norm_2)), x)

    def _gated(self, layer: _Layer, x: Tensor) -> Tensor:
        gate, up = layer.gate_up(x).split(self.config.inner, dim=1)
        return F.silu(gate).mul_(up)

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.eps)

    def _tensor(self, weight: Tensor) -> Tensor:
        return weight.to(self._device, self._dtype).contiguous()

    def _linear(self, weights: Mapping[str, Tensor], prefix: str, *names: str) -> Linear:
        """One product for the layers of these names, one below the other."""
        weight = torch.cat([self._tensor(weights[f"{prefix}{name}.weight"]) for name in names])
        biases = [weights.get(f"{prefix}{name}.bias") for name in names]
        bias = torch.cat([self._tensor(bias) for bias in biases if bias is not None]) if None not in biases else None
        return make_linear(weight, bias, self._packed, self._exact)

    def _layer(self, weights: Mapping[str, Tensor], prefix: str) -> _Layer:
        def norm(name: str) -> Tensor:
            return self._tensor(weights[f"{prefix}{name}.weight"])

        def stream_norm(name: str) -> Tensor:
            return norm(name).to(self._stream)

        has_norms = self.config.qk_norm
        return _Layer(
            norm_1=stream_norm("input_layernorm"),
            qkv=self._linear(weights, prefix, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            q_norm=norm("self_attn.q_norm") if has_norms else None,
            k_norm=norm("self_attn.k_norm") if has_norms else None,
            out=self._linear(weights, prefix, "self_attn.o_proj"),
            norm_2=stream_norm("post_attention_layernorm"),
            gate_up=self._linear(weights, prefix, "mlp.gate_proj", "mlp.up_proj"),
            down=self._linear(weights, prefix, "mlp.down_proj"),
        )
