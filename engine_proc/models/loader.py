"""From a model's name to its shape and weights. safetensors only: pickle weights and remote code are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine_proc.models.base import Model
from engine_proc.models.builtin import SEED, random_weights
from engine_proc.models.gguf import read_gguf
from engine_proc.models.gpt2 import GPT2, GPT2Config
from engine_proc.models.llama import Llama, LlamaConfig
from engine_proc.models.source import find_model
from engine_proc.tokenize import TOKENIZER_FILES, eos_token_ids, read_json
from harness.common.errors import ConfigError

GPT2_EOS = 50256
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
HUB_FILES = (*TOKENIZER_FILES, "*.safetensors", WEIGHTS_INDEX)
ARCHITECTURES = {
    "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
}  # model_type: architecture  # fmt: skip
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model's shape and weights on the host, in the dtype they were stored in.

    hf_config: its config.json, or what would stand there. weights: by Hugging Face's names without the leading
    "transformer." or "model.".
    """

    name: str
    weights_from: str
    config: GPT2Config | LlamaConfig
    eos_ids: tuple[int, ...]
    weights: Mapping[str, Tensor] = field(repr=False)
    hf_config: Mapping[str, Any] = field(default_factory=dict, repr=False)


def load_model(model: str) -> LoadedModel:
    """Load `builtin:NAME`, a folder of config.json and safetensors, a GGUF file, or a hub id. Raises ConfigError."""
    source = find_model(model, HUB_FILES)
    if source.builtin:
        config = GPT2Config()
        return LoadedModel(model, f"random (seed {SEED})", config, (GPT2_EOS,), random_weights(config), config.to_hf())
    if source.gguf is not None:
        raw, weights, eos_ids = read_gguf(source.gguf)
        raw.setdefault("vocab_size", weights["embed_tokens.weight"].shape[0] if "embed_tokens.weight" in weights else 0)
        shape = LlamaConfig.from_hf(raw)
        _check_weights(model, shape.shapes(), weights)
        return LoadedModel(model, f"GGUF ({source.gguf.name})", shape, eos_ids, weights, raw)
    raw = read_json(source.folder / "config.json")
    kind = _check_architecture(model, raw)
    if kind == "gpt2":
        config = GPT2Config.from_hf(raw)
        needed = config.shapes()
        if not raw.get("tie_word_embeddings", True):
            needed["lm_head.weight"] = needed["wte.weight"]
        weights = _load_weights(model, source.folder, needed)
        return LoadedModel(model, "safetensors", config, eos_token_ids(source.folder), weights, raw)
    shape = LlamaConfig.from_hf(raw)
    weights = _load_weights(model, source.folder, shape.shapes())
    return LoadedModel(model, "safetensors", shape, eos_token_ids(source.folder), weights, raw)


def build_model(
    loaded: LoadedModel, device: torch.device, dtype: torch.dtype, packed: bool, exact: bool = False,
    wide_stream: bool = False,
) -> Model:  # fmt: skip
    """The model on a device. `packed`: linear weights in oneDNN's layout; `exact`: products in float64; with it
    `wide_stream`: all but what attention works with."""
    if isinstance(loaded.config, GPT2Config):
        return GPT2(loaded.config, loaded.weights, device, dtype, packed, exact, wide_stream)
    return Llama(loaded.config, loaded.weights, device, dtype, packed, exact, wide_stream)


def _check_architecture(model: str, raw: Mapping[str, Any]) -> str:
    """The model_type of a supported architecture; else the error names what was found, and who runs it."""
    known = ", ".join(ARCHITECTURES.values())
    kind, names = raw.get("model_type"), raw.get("architectures")
    if "auto_map" in raw and (not isinstance(kind, str) or kind not in ARCHITECTURES):
        raise ConfigError(f"model {model!r} brings its own code (auto_map), which is never run; supported: {known}")
    wanted = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    if not isinstance(kind, str) or wanted is None or (names and wanted not in names):
        found = ", ".join(map(str, names)) if isinstance(names, list) and names else f"model_type {kind!r}"
        raise ConfigError(f"model {model!r} has the architecture {found}; supported: {known} (--engine transformers "
                          "may run it)")  # fmt: skip
    return kind


def _load_weights(model: str, folder: Path, needed: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Read every tensor that the shape needs and check its size."""
    weights: dict[str, Tensor] = {}
    for path in _weight_files(model, folder):
        try:
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 - not a mapping
                    name = key.removeprefix("transformer.").removeprefix("model.")
                    if name in needed:
                        weights[name] = file.get_tensor(key)
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"cannot read {path}: {' '.join(str(error).split())[:200]}") from error
    _check_weights(model, needed, weights)
    return weights


def _check_weights(model: str, needed: Mapping[str, tuple[int, ...]], weights: Mapping[str, Tensor]) -> None:
    for name, shape in needed.items():
        if name not in weights:
            raise ConfigError(f"model {model!r}: the weights lack {name}")
        if tuple(weights[name].shape) != shape:
            raise ConfigError(f"model {model!r}: {name} has shape {tuple(weights[name].shape)}, not {shape}")


def _weight_files(model: str, folder: Path) -> list[Path]:
    """The safetensors files of a model, by its index where it has one."""
    if (folder / WEIGHTS_INDEX).is_file():
        names = read_json(folder / WEIGHTS_INDEX).get("weight_map")
        if not isinstance(names, dict) or any(Path(str(name)).name != name for name in names.values()):
            raise ConfigError(f"{folder / WEIGHTS_INDEX} has no usable weight_map")
        return [folder / str(name) for name in sorted(set(names.values()))]
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if any(any(folder.glob(pattern)) for pattern in _PICKLES):
        raise ConfigError(f"model {model!r} has pickle weights only, which can run code and are refused; "
                          "convert them to safetensors")  # fmt: skip
    raise ConfigError(f"model {model!r} has no weights: {WEIGHTS} is missing")
