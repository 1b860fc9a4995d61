"""From the engine's name to a backend. torch is imported only by those that have a model."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

import msgpack

from engine_proc.backends.base import Capacity, EngineBackend
from harness.common.clock import Clock
from harness.common.errors import ConfigError
from harness.common.specs import EngineOptions, EngineSpec, NullSpec


def make_backend(spec: EngineSpec, tokenizer: Any, clock: Clock) -> EngineBackend:
    """The backend that `spec.engine` names. Raises ConfigError for one that cannot be made from it."""
    if spec.engine == "null":
        from engine_proc.backends.null import NullBackend

        return NullBackend(NullSpec.from_body(spec.null), spec.max_batch_size, tokenizer.vocab_size, clock)
    if spec.engine == "native":
        return _native(spec, tokenizer, clock)
    if spec.engine == "transformers":
        return _transformers(spec, tokenizer, clock)
    return _foreign(spec, clock)


def _native(spec: EngineSpec, tokenizer: Any, clock: Clock) -> EngineBackend:
    from engine_proc.backends.native import NativeBackend

    backend = NativeBackend(
        model=spec.model,
        device=spec.device,
        dtype=spec.dtype,
        max_batch_size=spec.max_batch_size,
        prefill_max_batch_size=spec.prefill_max_batch_size,
        clock=clock,
        tokenizer=tokenizer,
        **EngineOptions.from_body(spec.options).chosen(),
    )
    backend.warm_up()
    return backend


def _transformers(spec: EngineSpec, tokenizer: Any, clock: Clock) -> EngineBackend:
    from engine_proc.backends.transformers_model import load_transformers_model

    options = EngineOptions.from_body(spec.options)
    model = load_transformers_model(spec.model, spec.device, spec.dtype, tokenizer.eos_ids, options.torch_threads)
    from engine_proc.backends.transformers_cb import TransformersBackend  # only now is its version known to fit

    backend = TransformersBackend(model, spec.max_batch_size, options, clock)
    backend.warm_up()
    return backend


def _foreign(spec: EngineSpec, clock: Clock) -> EngineBackend:
    """`module:factory`, called with the engine specification and the clock; it returns an EngineBackend."""
    module_name, _, factory_name = spec.engine.partition(":")
    sys.path.append(os.getcwd())  # the user's module lies where the user stands; appended, so it shadows nothing
    try:
        factory = getattr(importlib.import_module(module_name), factory_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--engine {spec.engine}: {error}") from error
    if not callable(factory):
        raise ConfigError(f"--engine {spec.engine}: {factory_name} is no function")
    backend: EngineBackend = factory(spec, clock)
    missing = [name for name in ("capacity", "describe", "add", "abort", "has_work", "step", "close")
               if not callable(getattr(backend, name, None))]  # fmt: skip
    if missing:
        raise ConfigError(f"--engine {spec.engine}: what it returned has no {', '.join(missing)}")
    fault = _fault_of(backend.capacity(), backend.describe())
    if fault:
        raise ConfigError(f"--engine {spec.engine}: {fault}")
    return backend


def _fault_of(capacity: object, description: object) -> str:
    """What is wrong with the answers of a user's engine; empty where nothing is."""
    if not isinstance(capacity, Capacity):
        return "capacity() returned no Capacity"
    if not (_is_size(capacity.max_model_len) and _is_size(capacity.vocab_size)):
        return "capacity(): max_model_len and vocab_size must be integers from 1 to 2147483647"
    try:
        json.dumps(description, allow_nan=False).encode("ascii")
        msgpack.packb(description)
    except (TypeError, ValueError, RecursionError) as error:
        return f"describe() returned what JSON cannot hold: {error}"
    return "" if isinstance(description, dict) else "describe() returned no dict"


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31
