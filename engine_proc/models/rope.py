"""Rotary positions: the inverse frequencies of a config, and turning queries and keys by them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.common.errors import ConfigError

DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class Rope:
    """`kind`: default, linear (positions divided by `factor`) or llama3 (only the slow frequencies are)."""

    kind: str = "default"
    theta: float = DEFAULT_THETA
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], max_positions: int) -> Rope:
        """From `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`. Raises ConfigError."""
        scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if not isinstance(scaling, Mapping):
            raise ConfigError("config.json: rope_parameters is not an object")
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind not in ("default", "linear", "llama3"):
            raise ConfigError(f"config.json: rope type {kind!r} is not supported; there are default, linear, llama3")
        if float(scaling.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) or 1.0) != 1.0:
            raise ConfigError("config.json: partial_rotary_factor is not supported")
        rope = cls(
            kind=kind,
            theta=float(scaling.get("rope_theta", config.get("rope_theta", DEFAULT_THETA))),
            factor=float(scaling.get("factor", 1.0)),
            low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
            high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
            original_positions=int(scaling.get("original_max_position_embeddings", max_positions)),
        )
        if rope.factor <= 0 or rope.theta <= 0 or (kind == "llama3" and rope.high_freq_factor <= rope.low_freq_factor):
            raise ConfigError(f"config.json: not possible rope parameters: {rope}")
        return rope

    def inverse_frequencies(self, dim: int) -> Tensor:
        """float32 [dim / 2]"""
        inverse = 1.0 / (self.theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
        if self.kind == "linear":
            return inverse / self.factor
        return self._llama3(inverse) if self.kind == "llama3" else inverse

    def _llama3(self, inverse: Tensor) -> Tensor:
        """Long waves are stretched by the factor, short ones are kept, those between go over smoothly."""
        wavelength = 2 * math.pi / inverse
        long = self.original_positions / self.low_freq_factor
        short = self.original_positions / self.high_freq_factor
        smooth = (self.original_positions / wavelength - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        stretched = torch.where(wavelength > long, inverse / self.factor, inverse)
        between = (1 - smooth) * stretched / self.factor + smooth * stretched
        is_between = ~(wavelength < short) & ~(wavelength > long)
        return torch.where(is_between, between, stretched)


def rotations(positions: Tensor, inverse: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine [tokens, 1, dim / 2] for `rotate`."""
    angles = (positions.float().unsqueeze(1) * inverse).unsqueeze(1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + dim / 2) of each head of x [tokens, heads, dim]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
