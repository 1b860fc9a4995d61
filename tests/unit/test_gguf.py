"""GGUF files: shapes, weights and tokenizers as transformers reads them, and clear refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_llama import save_variant
from torch import Tensor

from engine_proc.models.gguf_file import gguf_chat_template, gguf_tokenizer
from engine_proc.models.loader import LoadedModel, load_model
from engine_proc.models.source import find_model
from engine_proc.tokenize import load_tokenizer
from harness.common.errors import ConfigError

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

QUESTIONS = Path(__file__).parents[2].parent / "shared" / "data" / "spec_bench" / "question.jsonl"
NAMES = {
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("layers."):
        _, number, part = stem.split(".", 2)
        return f"blk.{number}.{NAMES[part]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def permuted(weight: Tensor, heads: int) -> Tensor:
    """What llama.cpp does to q and k of a Llama: the halves of a head become neighbouring pairs."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def write(path: Path, loaded: LoadedModel, fields: dict[str, Any] | None = None) -> str:
    config: Any = loaded.config
    writer = gguf.GGUFWriter(path, config.family)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.inner)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.eps)
    writer.add_rope_freq_base(config.rope.theta)
    if config.rope.kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope.factor)
    writer.add_eos_token_id(7)
    for name, value in (fields or {}).items():
        writer.add_string(name, value)
    for name, weight in loaded.weights.items():
        heads = {"q_proj": config.heads, "k_proj": config.kv_heads}.get(name.split(".")[-2])
        tensor = permuted(weight, heads) if heads and config.family == "llama" else weight
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(tensor.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


@pytest.mark.parametrize("name", ["llama", "llama-tied", "llama-linear-rope", "qwen2", "qwen3", "llama-head-dim"])
def test_a_gguf_file_is_the_folder_that_it_was_made_from(tmp_path: Path, name: str) -> None:
    save_variant(tmp_path / "folder", name)
    folder = load_model(str(tmp_path / "folder"))
    file = load_model(write(tmp_path / "model.gguf", folder))
    assert file.config.shapes() == folder.config.shapes()
    assert file.config.rope.kind == folder.config.rope.kind
    assert file.eos_ids == (7,)
    for key, weight in folder.weights.items():
        assert torch.equal(file.weights[key], weight), key


def test_what_a_gguf_file_cannot_be_is_named(tmp_path: Path) -> None:
    save_variant(tmp_path / "folder", "llama")
    folder = load_model(str(tmp_path / "folder"))
    path = write(tmp_path / "yarn.gguf", folder, {"llama.rope.scaling.type": "yarn"})
    with pytest.raises(ConfigError, match="yarn"):
        load_model(path)
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ConfigError, match="mamba"):
        load_model(str(tmp_path / "odd.gguf"))
    (tmp_path / "junk.gguf").write_bytes(b"GGUF junk")
    for load in (load_model, load_tokenizer):
        with pytest.raises(ConfigError, match=r"junk\.gguf") as error:
            load(str(tmp_path / "junk.gguf"))
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="tokenizer"):
        load_tokenizer(path)


@pytest.fixture(scope="module")
def smollm2() -> Path:
    path = find_model("builtin:smollm2", ()).gguf
    assert path is not None
    return path


def test_smollm2_has_the_weights_that_transformers_reads(smollm2: Path) -> None:
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    loaded = load_model("builtin:smollm2")
    config = transformers.AutoConfig.for_model(**loaded.hf_config)
    with torch.device("meta"):
        empty = transformers.AutoModelForCausalLM.from_config(config)
    theirs = load_gguf_checkpoint(str(smollm2), return_tensors=True, model_to_load=empty)
    for name in ("max_position_embeddings", "hidden_size", "num_key_value_heads", "rope_theta", "vocab_size"):
        assert theirs["config"][name] == loaded.hf_config[name], name
    compared = 0
    for name, weight in theirs["tensors"].items():
        ours = loaded.weights.get(name.removeprefix("model."))
        if ours is not None:
            assert torch.equal(ours, weight.to(ours.dtype)), name
            compared += 1
    assert compared == len(loaded.config.shapes())


def test_smollm2_tokens_are_those_of_transformers(smollm2: Path) -> None:
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

    architecture, fields, _ = get_gguf_tokenizer(str(smollm2))
    theirs = convert_gguf_tokenizer(architecture, fields)[0]
    ours = load_tokenizer("builtin:smollm2")
    assert ours.eos_ids == (2,)
    assert ours.vocab_size == 49152
    texts = ["", " ", "Hello world", "don't I'LL", "日本語 🙂", "a\r\n\tb", "<|im_start|>user\nhi<|im_end|>", "x = 12"]
    if QUESTIONS.is_file():
        texts += [json.loads(line)["turns"][0] for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    differing = [text for text in texts if ours.encode(text) != theirs.encode(text).ids]
    # transformers reads the file as if it were GPT-2's; the model's own tokenizer keeps digits apart, and so do we.
    assert all(any(character.isdigit() for character in text) for text in differing), differing[:3]
    assert len(differing) <= 0.02 * len(texts)
    assert ours.decode(ours.encode(texts[4])) == texts[4]


def test_the_chat_template_of_smollm2_is_in_the_file(smollm2: Path) -> None:
    assert "<|im_start|>" in gguf_chat_template(smollm2)
    rust, ends = gguf_tokenizer(smollm2)
    assert rust.id_to_token(ends[0]) == "<|im_end|>"


@pytest.mark.parametrize("name", ["llama-tied", "llama-linear-rope", "qwen3"])
def test_engine_transformers_makes_of_a_gguf_file_what_it_makes_of_its_folder(tmp_path: Path, name: str) -> None:
    from engine_proc.backends.transformers_model import load_transformers_model

    save_variant(tmp_path / "folder", name)
    path = write(tmp_path / "model.gguf", load_model(str(tmp_path / "folder")))
    from_file, from_folder = (load_transformers_model(m, "cpu", "float32") for m in (path, str(tmp_path / "folder")))
    assert (from_file.weights_from, from_file.eos_ids) == ("GGUF (model.gguf)", (7,))
    assert from_file.max_positions == from_folder.max_positions
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    with torch.inference_mode():
        assert from_file.module(ids).logits.allclose(from_folder.module(ids).logits, atol=1e-5)
