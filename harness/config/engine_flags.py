"""Which flags mean something with which engine. No flag is accepted and ignored: one without an effect is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.common.errors import ConfigError
from harness.config.errors import flag_of

if TYPE_CHECKING:
    from harness.config.run_config import RunConfig

#: Flags that ask a model for something; with --engine null their defaults state what is so, other values do not.
MODEL_ONLY = ("model", "device", "dtype", "temperature", "top_k", "top_p", "min_p")
#: Sizes and policies of an engine with a KV cache; None: the engine decides.
CACHE_ONLY = ("block_size", "kv_blocks", "kv_memory", "prefill_max_tokens", "scheduling")
#: Parts of an engine that can be on or off; "off" states what is so where an engine lacks them.
PARTS = ("prefix_cache", "chunked_prefill", "paged_attn", "cuda_graph", "nvtx", "compile", "overlap")
#: What works on a CUDA device only.
CUDA_ONLY = ("cuda_graph", "nvtx", "overlap")

_ONE_STREAM = "draws for all requests from one stream, so outputs would depend on batch mates: only greedy is possible"
#: What transformers' continuous batching cannot be told, and why: the rest of the sentence "--engine transformers ...".
_TRANSFORMERS_VALUES = {
    "temperature": _ONE_STREAM,
    "top_k": _ONE_STREAM,
    "top_p": _ONE_STREAM,
    "min_p": _ONE_STREAM,
    "kv_memory": "counts its cache in blocks: use --kv-blocks",
}
_TRANSFORMERS_ON = {
    "cuda_graph": "captures its graphs while it serves",
    "nvtx": "has no ranges",
    "compile": "is run as it is",
    "overlap": "is driven step by step",
}
_TRANSFORMERS_OFF = {
    "paged_attn": "has no other attention than the paged one",
    "chunked_prefill": "cuts every prompt that exceeds --prefill-max-tokens",
}
_TRANSFORMERS_MIN_BLOCK = 4


def check_engine_flags(config: RunConfig) -> None:
    """Raises ConfigError naming the first flag that the engine cannot honour."""
    for name in sorted(config.model_fields_set):
        if name.startswith("null_") and config.engine != "null":
            raise ConfigError(f"{flag_of(name)} needs --engine null, the engine is {config.engine}")
    if config.pretok and config.tokenize_call != "encode":
        raise ConfigError("--tokenize-call does nothing with --pretok: everything is tokenized before the run")
    if config.tokenize_workers and config.ingress == "polled":
        raise ConfigError("--tokenize-workers cannot be had with --ingress polled, which hands nothing to threads")
    for name, why in _refused(config):
        raise ConfigError(f"{flag_of(name)} {why}")


def _refused(config: RunConfig) -> Iterator[tuple[str, str]]:
    if config.torch_threads is not None and config.engine not in ("native", "transformers"):
        yield "torch_threads", f"means nothing with --engine {config.engine}, whose threads are its own"
    if config.engine == "null":
        yield from _null(config)
    elif config.engine == "transformers":
        yield from _transformers(config)
    elif config.engine == "native":
        for name in CUDA_ONLY:
            if getattr(config, name) and config.device == "cpu":
                yield name, "needs a CUDA device (--device cuda), the device is cpu"


def _null(config: RunConfig) -> Iterator[tuple[str, str]]:
    for name in MODEL_ONLY:
        if (name == "model" and name in config.model_fields_set) or _changed(config, name):
            yield name, "means nothing with --engine null, which has no model"
    for name in (*CACHE_ONLY, *PARTS):
        if getattr(config, name) not in (None, False):
            yield name, "means nothing with --engine null, which has no KV cache and no model"
    yield from _prefill_batch(config)


def _transformers(config: RunConfig) -> Iterator[tuple[str, str]]:
    def because(why: str) -> str:
        return f"cannot be had with --engine transformers, which {why}"

    for name, why in _TRANSFORMERS_VALUES.items():
        if _changed(config, name):
            yield name, because(why)
    for reasons, refused in ((_TRANSFORMERS_ON, True), (_TRANSFORMERS_OFF, False)):
        for name, why in reasons.items():
            if getattr(config, name) is refused and _changed(config, name):
                yield name, because(why)
    if config.block_size is not None and config.block_size < _TRANSFORMERS_MIN_BLOCK:
        yield "block_size", because(f"needs at least {_TRANSFORMERS_MIN_BLOCK}")
    yield from _prefill_batch(config)


def _prefill_batch(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Engines whose one limit is the batch size."""
    given = "prefill_max_batch_size" in config.model_fields_set
    if given and config.prefill_max_batch_size < config.max_batch_size:
        yield "prefill_max_batch_size", f"below --max-batch-size means nothing with --engine {config.engine}"


def _changed(config: RunConfig, name: str) -> bool:
    return bool(getattr(config, name) != type(config).model_fields[name].default)
