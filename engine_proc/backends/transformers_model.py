"""A causal language model as transformers makes it, from the names that `--model` takes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from engine_proc.backends.placement import choose_device, choose_dtype, fit_threads_to_mask
from engine_proc.models.hf import as_transformers
from engine_proc.models.loader import load_model
from engine_proc.models.source import POSITION_KEYS, ModelSource, find_model
from engine_proc.tokenize import TOKENIZER_FILES, eos_token_ids
from harness.common.errors import ConfigError

#: The version whose continuous batching `transformers_cb` drives.
VERSION = "5.24"
HUB_FILES = (*TOKENIZER_FILES, "*.safetensors", "*.safetensors.index.json")


@dataclass(frozen=True, slots=True)
class TransformersModel:
    """The module on its device, and what the engine needs to know of it."""

    module: Any
    name: str
    weights_from: str
    device: torch.device
    max_positions: int
    vocab_size: int
    eos_ids: tuple[int, ...]


def load_transformers_model(
    model: str, device: str, dtype: str, tokenizer_eos_ids: tuple[int, ...] = (), torch_threads: int | None = None
) -> TransformersModel:
    """Load `model` with SDPA attention. Raises ConfigError, one line, for what transformers cannot load or run."""
    if not transformers.__version__.startswith(f"{VERSION}."):
        raise ConfigError(f"--engine transformers needs transformers {VERSION}, {transformers.__version__} is there")
    place = choose_device(device)
    if place.type == "cpu" or torch_threads is not None:
        fit_threads_to_mask(torch_threads)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    source = find_model(model, HUB_FILES)
    with _in_one_line(model):
        module, weights_from, eos_ids = _load(model, source, choose_dtype(dtype, place))
        module = module.to(place).eval()
    config = module.config.get_text_config()
    limits = [value for name in POSITION_KEYS if isinstance(value := getattr(config, name, None), int)]
    if not limits:
        raise ConfigError(f"model {model!r} ({type(module).__name__}) does not say how many positions it has")
    ends = eos_ids or tokenizer_eos_ids
    return TransformersModel(module, model, weights_from, place, limits[0], int(config.vocab_size), ends)


def _load(model: str, source: ModelSource, dtype: torch.dtype) -> tuple[Any, str, tuple[int, ...]]:
    """The module, where its weights are from, and the ids that end a text. What has no folder is read as by native."""
    if source.builtin or source.gguf is not None:
        loaded = load_model(model)
        return as_transformers(loaded, dtype), loaded.weights_from, loaded.eos_ids
    return _from_files(source.folder, dtype), "safetensors", eos_token_ids(source.folder)


def _from_files(folder: Path, dtype: torch.dtype) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        attn_implementation="sdpa",
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
    )


@contextmanager
def _in_one_line(model: str) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # OSError, ValueError, KeyError, RuntimeError: whatever the files lead it to
        text = " ".join(str(error).split())[:300]
        raise ConfigError(f"transformers cannot load model {model!r}: {type(error).__name__}: {text}") from error
