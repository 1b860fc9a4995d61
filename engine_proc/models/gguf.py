"""GGUF files: a Llama-family shape and its weights, dequantized. Raises ConfigError for what it cannot read.

The package `gguf` reads the file; it is imported here and by the tokenizer, where a model is a GGUF file, and needs no
torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine_proc.models.gguf_file import open_gguf
from harness.common.errors import ConfigError

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_LONG = (".tokens", ".merges", ".token_type", ".scores")
_HEADS = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
_NAMES = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head", "rope_freqs": "rope_freqs"}


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, Tensor], tuple[int, ...]]:
    """The config in Hugging Face's words, the weights by their names there, and the ids that end a text."""
    reader = open_gguf(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.endswith(_LONG)}
    names = {tensor.name for tensor in reader.tensors}
    config = _config(path, fields, names)
    weights: dict[str, Tensor] = {}
    try:
        for tensor in reader.tensors:
            name = _hf_name(tensor.name)
            if name is not None:
                weights[name] = _weight(tensor)
    except (ValueError, NotImplementedError, RuntimeError) as error:
        raise ConfigError(f"cannot read the tensors of {path}: {' '.join(str(error).split())[:200]}") from error
    if config["model_type"] == "llama":
        for name in list(weights):
            part = name.split(".")[-2]
            heads = config[_HEADS[part]] if part in _HEADS else 0
            if heads:
                weights[name] = _unpermuted(weights[name], heads)
    ends = [fields.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot")]
    return config, weights, tuple(dict.fromkeys(end for end in ends if isinstance(end, int)))


def _config(path: Path, fields: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    kind = fields.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise ConfigError(f"{path} has the architecture {kind!r}; supported in GGUF: {', '.join(ARCHITECTURES)}")

    def get(key: str, default: Any = None) -> Any:
        return fields.get(f"{kind}.{key}", default)

    config = {
        "model_type": kind,
        "architectures": [ARCHITECTURES[kind]],
        "max_position_embeddings": get("context_length"),
        "hidden_size": get("embedding_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv", get("attention.head_count")),
        "head_dim": get("attention.key_length", get("rope.dimension_count")),
        "intermediate_size": get("feed_forward_length"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "rope_theta": get("rope.freq_base", 10000.0),
        "attention_bias": "blk.0.attn_q.bias" in names and kind == "llama",
        "tie_word_embeddings": "output.weight" not in names,
        "vocab_size": get("vocab_size"),
    }
    if "blk.0.attn_qkv.weight" in names or "blk.0.ffn_gate_inp.weight" in names:
        raise ConfigError(f"{path}: fused attention weights and mixtures of experts are not supported")
    scaling = get("rope.scaling.type", "none")
    if scaling == "linear":
        config["rope_scaling"] = {"rope_type": "linear", "factor": get("rope.scaling.factor", 1.0)}
    elif scaling != "none":
        raise ConfigError(f"{path}: rope scaling {scaling!r} is not supported")
    return {name: value for name, value in config.items() if value is not None}


def _hf_name(name: str) -> str | None:
    stem, _, kind = name.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{kind}"
    head, _, rest = stem.partition(".")
    number, _, part = rest.partition(".")
    return f"layers.{number}.{_LAYER_NAMES[part]}.{kind}" if head == "blk" and part in _LAYER_NAMES else None


def _weight(tensor: Any) -> Tensor:
    """float32, in torch's order of dimensions."""
    from gguf import dequantize

    values = dequantize(tensor.data, tensor.tensor_type)
    shape = tuple(int(size) for size in reversed(tensor.shape))
    return torch.from_numpy(np.array(values, dtype=np.float32).reshape(shape))


def _unpermuted(weight: Tensor, heads: int) -> Tensor:
    """llama.cpp turns neighbouring pairs of a head, Hugging Face its two halves: put the rows back in that order."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape).contiguous()
