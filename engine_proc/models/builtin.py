"""Models without a download: GPT-2 small's shape with seeded random weights, the same on every run."""

from __future__ import annotations

import torch
from torch import Tensor

from engine_proc.models.gpt2 import GPT2Config

SEED = 20190214
STD = 0.02


def random_weights(config: GPT2Config, seed: int = SEED) -> dict[str, Tensor]:
    """float32 weights initialised as GPT-2's are: normal(0, 0.02), residual projections over sqrt(2 layers).

    One generator walks the tensors in a fixed order on one thread, so the values depend on neither the number of
    threads nor the dtype that they are cast to afterwards.
    """
    generator = torch.Generator().manual_seed(seed)
    residual_std = STD / (2 * config.layers) ** 0.5
    weights: dict[str, Tensor] = {}
    for name, shape in config.shapes().items():
        if name.endswith(".bias"):
            weights[name] = torch.zeros(shape)
        elif "ln_" in name:
            weights[name] = torch.ones(shape)
        else:
            std = residual_std if name.endswith("c_proj.weight") else STD
            weights[name] = torch.empty(shape).normal_(0.0, std, generator=generator)
    return weights
