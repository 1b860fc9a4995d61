"""The native engine on a CUDA device against itself on the CPU."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from tiny_gpt2 import Driver, request, save_model
from torch import Tensor

from engine_proc.backends.native import NativeBackend
from harness.common.errors import ConfigError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

PROMPTS = [[(7 * row + 3 * i) % 97 for i in range(length)] for row, length in enumerate((1, 7, 7, 127, 129, 200, 31))]
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(Path(tmp_path_factory.mktemp("tiny")))


def run(model: str, device: str, dtype: str, batch_size: int) -> tuple[dict[int, list[int]], list[Tensor]]:
    first: list[Tensor] = []

    def observe(_: list[int], logits: Tensor) -> None:
        if not first:
            first.append(logits.cpu())

    backend = NativeBackend(model, device, dtype, batch_size, batch_size, time.monotonic_ns, logits_observer=observe)
    backend.warm_up()
    tokens = Driver(backend).run([request(row, prompt, NEW_TOKENS) for row, prompt in enumerate(PROMPTS)])
    backend.close()
    return tokens, first


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_float32_tokens_are_those_of_the_cpu(tiny: str, batch_size: int) -> None:
    on_gpu, gpu_logits = run(tiny, "cuda", "float32", batch_size)
    on_cpu, cpu_logits = run(tiny, "cpu", "float32", batch_size)
    assert on_gpu == on_cpu
    torch.testing.assert_close(gpu_logits[0], cpu_logits[0], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_gives_every_token_and_stays_near_float32(tiny: str, dtype: str) -> None:
    tokens, logits = run(tiny, "cuda:0", dtype, 8)
    _, exact = run(tiny, "cuda:0", "float32", 8)
    assert [len(tokens[row]) for row in range(len(PROMPTS))] == [NEW_TOKENS] * len(PROMPTS)
    assert (logits[0] - exact[0]).abs().max() < 0.1 * exact[0].abs().max()


def test_an_ordinal_that_does_not_exist_is_refused(tiny: str) -> None:
    with pytest.raises(ConfigError, match=f"cuda:{torch.cuda.device_count()}"):
        NativeBackend(tiny, f"cuda:{torch.cuda.device_count()}", "auto", 1, 1, time.monotonic_ns)
