"""Llama, Qwen2 and Qwen3 against transformers with the same weights, and what their configs may say."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_gpt2 import Driver, one_thread, request
from tiny_llama import SIZES, VARIANTS, save_variant
from torch import Tensor

from engine_proc.backends.native import NativeBackend
from engine_proc.backends.native_parts import Kernels
from engine_proc.models.llama import LlamaConfig
from engine_proc.models.loader import load_model
from engine_proc.models.rope import Rope
from harness.common.errors import ConfigError

pytest.importorskip("transformers")

PROMPTS = [[(5 * row + 3 * i + i * i) % 97 for i in range(length)] for row, length in enumerate((1, 9, 33, 70, 16))]
NEW = 6
PLAIN = Kernels(packed_linear=False, compiled_decode=False, bucket_passes=False)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def logits_of(model: str, **options: Any) -> tuple[dict[int, list[int]], dict[int, list[Tensor]]]:
    """Tokens and logits by row."""
    seen: dict[int, list[Tensor]] = {}

    def observe(rows: list[int], step: Tensor) -> None:
        for row, values in zip(rows, step, strict=True):
            seen.setdefault(row, []).append(values.clone())

    options = {"kv_blocks": 60, **options}
    clock = itertools.count(1).__next__
    backend = NativeBackend(model, "cpu", "float32", 4, 4, clock, logits_observer=observe, **options)
    return Driver(backend).run([request(row, prompt, NEW) for row, prompt in enumerate(PROMPTS)]), seen


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(
    "options",
    [{}, {"paged_attn": False, "kernels": PLAIN}, {"prefill_max_tokens": 17, "policy": "decode_first"}],
    ids=["paged", "dense", "chunked"],
)
def test_logits_are_transformers_at_every_step(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    reference = save_variant(tmp_path, name)
    tokens, seen = logits_of(str(tmp_path), **options)
    for row, prompt in enumerate(PROMPTS):
        with torch.no_grad():
            expected = reference(torch.tensor([prompt + tokens[row]])).logits[0, len(prompt) - 1 : -1]
        assert tokens[row] == expected.argmax(-1).tolist()
        torch.testing.assert_close(torch.stack(seen[row]), expected, atol=1e-4, rtol=0)


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    reference = save_variant(tmp_path, "llama")
    found: list[Tensor] = []
    backend = NativeBackend(str(tmp_path), "cpu", "bfloat16", 4, 4, lambda: 1, kv_blocks=60,
                            logits_observer=lambda _, step: found.append(step.clone()))  # fmt: skip
    Driver(backend).run([request(0, PROMPTS[3], 2)])
    exact = reference(torch.tensor([PROMPTS[3]])).logits[0, -1]
    assert 0 < (found[0][0] - exact).abs().max() < 0.1 * exact.abs().max()


def test_sharded_weights_are_put_together(tmp_path: Path) -> None:
    save_variant(tmp_path / "whole", "llama")
    save_variant(tmp_path / "shards", "llama", max_shard_size="40KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert logits_of(str(tmp_path / "whole"))[0] == logits_of(str(tmp_path / "shards"))[0]


def test_old_and_new_words_for_rope_mean_the_same() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}  # fmt: skip
    old = Rope.from_hf({"rope_theta": 500.0, "rope_scaling": scaling}, 300)
    assert old == Rope.from_hf({"rope_parameters": {**scaling, "rope_theta": 500.0}}, 300)
    assert Rope.from_hf({"rope_theta": 7.0, "rope_scaling": {"type": "linear", "factor": 2.0}}, 9).kind == "linear"
    assert Rope.from_hf({"rope_theta": 7.0, "rope_scaling": None}, 9) == Rope(theta=7.0, original_positions=9)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rope_scaling": {"type": "dynamic"}}, "dynamic"),
        ({"rope_scaling": "x"}, "rope"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "rope"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_key_value_heads": 4}, "shape"),
        ({"hidden_size": None}, "number"),
        ({"num_hidden_layers": 0}, "shape"),
        ({"head_dim": 7}, "shape"),
        ({"use_sliding_window": True}, "sliding"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding"),
        ({"quantization_config": {"bits": 4}}, "quantiz"),
    ],
)
def test_a_config_that_cannot_run_is_named_in_one_line(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as error:
        LlamaConfig.from_hf({"model_type": "llama", **SIZES, **fields})
    assert "\n" not in str(error.value)


def test_a_missing_field_and_a_missing_tensor_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hidden_size is missing"):
        LlamaConfig.from_hf({"model_type": "llama", "num_attention_heads": 1})
    save_variant(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ConfigError, match=r"layers\.2\."):
        load_model(str(tmp_path))
