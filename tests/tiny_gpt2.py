"""Small random GPT-2 models on disk, and a driver for a backend, for the tests of the native engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine_proc.backends.base import EngineBackend, EngineRequest, StepOutput
from engine_proc.models.gpt2 import GPT2Config
from harness.common.protocol import Sampling
from harness.common.stamps import FinishReason

TINY = GPT2Config(vocab_size=97, max_positions=300, hidden=32, layers=2, heads=4, inner=128)
NO_EOS = Sampling(stop_on_eos=False)


def tiny_weights(config: GPT2Config, seed: int = 1, std: float = 0.3) -> dict[str, Tensor]:
    """Weights large enough that attention decides the next token (GPT-2's 0.02 would only repeat the last one)."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in config.shapes().items():
        weight = torch.empty(shape).normal_(0.0, std, generator=generator)
        weights[name] = weight + 1.0 if "ln_" in name and name.endswith("weight") else weight
    return weights


def hf_config(config: GPT2Config, **fields: object) -> dict[str, object]:
    """The config.json of a shape."""
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": config.vocab_size,
        "n_positions": config.max_positions, "n_embd": config.hidden, "n_layer": config.layers,
        "n_head": config.heads, "n_inner": config.inner, "layer_norm_epsilon": config.eps,
        "activation_function": config.activation, **fields,
    }  # fmt: skip


def save_model(folder: Path, config: GPT2Config = TINY, weights: dict[str, Tensor] | None = None,
               **fields: object) -> str:  # fmt: skip
    """Write config.json and model.safetensors; the folder's name, to be used as a model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(config, **fields)))
    tensors = weights or tiny_weights(config)
    save_file({f"transformer.{name}": tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    return str(folder)


def request(row: int, prompt: Sequence[int], new_tokens: int, sampling: Sampling = NO_EOS) -> EngineRequest:
    return EngineRequest(row, prompt, new_tokens, sampling)


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread while a test runs: two on shared cores wait for each other longer than tiny products take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Driver:
    """Steps a backend to its end and keeps what came out, by row."""

    def __init__(self, backend: EngineBackend) -> None:
        self.backend = backend
        self.steps: list[StepOutput] = []
        self.tokens: dict[int, list[int]] = {}
        self.finish: dict[int, FinishReason] = {}

    def step(self) -> StepOutput:
        output = self.backend.step()
        self.steps.append(output)
        for row, token, finish in output.tokens:
            assert row not in self.finish, f"row {row} got a token after its last one"
            self.tokens.setdefault(row, []).append(token)
            if finish is not FinishReason.NONE:
                self.finish[row] = finish
        return output

    def run(self, requests: Sequence[EngineRequest], limit: int = 2000) -> dict[int, list[int]]:
        """Add all, step to the end; the tokens by row. More than `limit` steps is a hang."""
        for item in requests:
            self.backend.add(item)
        for _ in range(limit):
            if not self.backend.has_work():
                return self.tokens
            self.step()
        raise AssertionError(f"not done after {limit} steps")
