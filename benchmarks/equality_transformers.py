"""`--engine transformers` with its logits laid open. Imports transformers' continuous batching."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from benchmarks.equality_cases import Observer
from engine_proc.backends.base import StepOutput
from engine_proc.backends.transformers_cb import TransformersBackend
from engine_proc.backends.transformers_model import load_transformers_model
from harness.common.specs import EngineOptions


class ObservedTransformers(TransformersBackend):
    """Calls `observe` with the rows that a step gave a token, and the logits [rows, vocab] that the model gave."""

    def __init__(self, model: str, batch: int, options: EngineOptions, observe: Observer) -> None:
        loaded = load_transformers_model(model, "cpu", "float32")
        super().__init__(loaded, batch, options, time.monotonic_ns)
        self._observe = observe
        self._seen: Tensor = torch.empty(0)
        loaded.module.register_forward_hook(self._keep)

    def _keep(self, module: Any, inputs: Any, output: Any) -> None:
        self._seen = output.logits[0]

    def step(self) -> StepOutput:
        output = super().step()
        rows = [event.row for event in output.tokens]
        if rows:
            assert len(self._seen) >= len(rows), "the model gave logits for every token that was drawn"
            logits = self._seen[: len(rows)]
            # Greedy: the logits of a row are those of its token, or the order is not the one thought of.
            assert logits.argmax(dim=1).tolist() == [event.token_id for event in output.tokens]
            self._observe(rows, logits)
        return output
