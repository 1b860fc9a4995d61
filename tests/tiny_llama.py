"""Small random Llama, Qwen2 and Qwen3 models on disk, made and saved by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

SIZES = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 300, "rms_norm_eps": 1e-5, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
#: Name -> model_type and fields that differ from SIZES.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-no-groups": ("llama", {"num_key_value_heads": 6}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1}),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("llama", {"head_dim": 16}),
    "llama-llama3-rope": ("llama", {"rope_parameters": LLAMA3}),
    "llama-linear-rope": ("llama", {"rope_parameters": LINEAR}),
    "qwen2": ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 16}),
}


def save_variant(folder: Path, name: str, **more: Any) -> Any:
    """Write the model to `folder` and return transformers' own, with weights so large that attention matters."""
    import transformers

    transformers.utils.logging.disable_progress_bar()  # its thread would outlive the test
    kind, fields = VARIANTS[name]
    save = {key: more.pop(key) for key in ("max_shard_size",) if key in more}
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **fields, **more})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.empty(parameter.shape).normal_(0.0, 0.15, generator=generator)
            parameter.copy_(noise + 1.0 if "norm" in parameter_name else noise)
    model.save_pretrained(folder, **save)
    return model
