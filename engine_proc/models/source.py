"""From what the user calls a model to the place of its files. Imports neither torch nor transformers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from harness.common.errors import ConfigError

BUILTIN_PREFIX = "builtin:"
BUILTIN_MODELS = ("gpt2",)
#: Seconds until the hub counts as out of reach.
HUB_TIMEOUT_S = 5.0

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


class ModelSource(NamedTuple):
    """Where a model is: `builtin` names one that needs no files, else `folder` holds them."""

    name: str
    builtin: str = ""
    folder: Path = Path()


def find_model(model: str, hub_patterns: tuple[str, ...]) -> ModelSource:
    """Resolve `builtin:NAME`, a local folder, or a hub id, of which the files that match `hub_patterns` are fetched.

    Only a hub id uses the network. Raises ConfigError, one line, for a model that cannot be found.
    """
    if model.startswith(BUILTIN_PREFIX):
        name = model.removeprefix(BUILTIN_PREFIX)
        if name not in BUILTIN_MODELS:
            known = ", ".join(BUILTIN_PREFIX + known for known in BUILTIN_MODELS)
            raise ConfigError(f"unknown built-in model {model!r}; there is: {known}")
        return ModelSource(model, builtin=name)
    folder = _local_folder(model)
    if folder is not None:
        return ModelSource(model, folder=folder)
    return ModelSource(model, folder=_fetch(model, hub_patterns))


def _local_folder(model: str) -> Path | None:
    """The folder that `model` names, or None where it reads like a hub id."""
    if not model.strip():
        raise ConfigError("the model's name is empty")
    try:
        path = Path(model).expanduser()
        if path.is_dir():
            return path
        exists = path.exists()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL in it, no such home
        raise ConfigError(f"{model[:200]!r} is not a model: no folder can have this name") from None
    if exists:
        raise ConfigError(f"model {model!r} is a file; a folder with config.json and *.safetensors is needed")
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
