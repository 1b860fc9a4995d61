"""From the engine's name to a backend: what each is given of the specification."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine_proc.backends.registry import make_backend
from harness.common.clock import monotonic_ns
from harness.common.errors import ConfigError
from harness.common.specs import EngineSpec
from harness.config.run_config import RunConfig
from harness.session.child_specs import engine_spec


class FakeTokenizer:
    vocab_size = 97
    eos_ids = (5,)


class Recorder:
    """Stands in for a backend class: keeps what it was made with."""

    def __init__(self, *args: Any, **values: Any) -> None:
        self.args, self.values = args, values
        self.warm = False

    def warm_up(self) -> None:
        self.warm = True


def made(spec: EngineSpec) -> Any:
    return make_backend(spec, FakeTokenizer(), monotonic_ns)


def test_the_native_engine_gets_what_was_asked_for_and_keeps_its_own_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_proc.backends.native.NativeBackend", Recorder)
    backend = made(engine_spec(RunConfig(block_size=8, scheduling="decode_first", prefix_cache="off"), (0,)))
    values = backend.values
    assert (values["block_size"], values["policy"], values["prefix_cache"]) == (8, "decode_first", False)
    assert not {"kv_blocks", "kv_memory", "prefill_max_tokens"} & values.keys()
    assert backend.warm


def test_the_null_engine_needs_no_options() -> None:
    backend = made(engine_spec(RunConfig(engine="null"), (0,)))
    assert backend.capacity().vocab_size == 97


def test_an_engine_s_module_that_is_absent_is_named() -> None:
    spec = replace(engine_spec(RunConfig(engine="null"), (0,)), engine="no_such_module_here:make")
    with pytest.raises(ConfigError, match="no_such_module_here"):
        made(spec)
