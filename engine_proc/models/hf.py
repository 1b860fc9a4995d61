"""The same weights as a transformers model: the second opinion of `--engine transformers`, tests and benchmarks."""

from __future__ import annotations

from typing import Any

import torch

from engine_proc.models.loader import LoadedModel


def as_transformers(loaded: LoadedModel, dtype: torch.dtype = torch.float32, **fields: Any) -> Any:
    """A transformers model for causal language modelling, in evaluation mode on the CPU. `fields`: more of a config."""
    import transformers

    raw = {**loaded.hf_config, **fields}
    config = transformers.AutoConfig.for_model(**raw)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    prefix = f"{model.base_model_prefix}."
    state = {name if name.startswith("lm_head.") else prefix + name: weight.to(dtype)
             for name, weight in loaded.weights.items() if not name.startswith("rope_freqs")}  # fmt: skip
    missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    lost = [name for name in missing if name != "lm_head.weight"]
    assert not lost and not unexpected, f"{lost} missing, {unexpected} unexpected"
    return model.eval()
