"""The native engine on a CUDA device: against itself on the CPU, graphs on and off, overlap on and off."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_gpt2 import Driver, request, save_model
from tiny_llama import save_variant
from torch import Tensor

from engine_proc.backends.native import NativeBackend
from harness.common.errors import ConfigError
from harness.common.protocol import Sampling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

PROMPTS = [[(7 * row + 3 * i) % 97 for i in range(length)] for row, length in enumerate((1, 7, 7, 127, 129, 200, 31))]
NEW_TOKENS = 12
SAMPLED = [Sampling(0.9, 0, 1.0, 3, False), Sampling(1.0, 5, 0.9, 4, False, min_p=0.01), Sampling(stop_on_eos=False)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(Path(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = Path(tmp_path_factory.mktemp("llama"))
    save_variant(folder, "llama")
    return str(folder)


def run(
    model: str, device: str, dtype: str, batch_size: int, samplings: list[Sampling] | None = None, **options: Any
) -> tuple[dict[int, list[int]], list[Tensor], Driver]:
    first: list[Tensor] = []

    def observe(_: list[int], logits: Tensor) -> None:
        if not first:
            first.append(logits.cpu())

    options = {"kv_blocks": 200, **options}
    backend = NativeBackend(
        model, device, dtype, batch_size, batch_size, time.monotonic_ns, logits_observer=observe, **options
    )
    backend.warm_up()
    driver = Driver(backend)
    each = samplings or [Sampling(stop_on_eos=False)]
    tokens = driver.run(
        [request(row, prompt, NEW_TOKENS, each[row % len(each)]) for row, prompt in enumerate(PROMPTS)]
    )
    assert backend.pool.num_used == 0
    backend.close()
    return tokens, first, driver


@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("paged_attn", [True, False])
def test_float32_tokens_are_those_of_the_cpu(tiny: str, llama: str, batch_size: int, paged_attn: bool) -> None:
    for model in (tiny, llama):
        on_gpu, gpu_logits, _ = run(model, "cuda", "float32", batch_size, paged_attn=paged_attn)
        on_cpu, cpu_logits, _ = run(model, "cpu", "float32", batch_size)
        assert on_gpu == on_cpu
        torch.testing.assert_close(gpu_logits[0], cpu_logits[0], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("samplings", [None, SAMPLED], ids=["greedy", "mixed"])
@pytest.mark.parametrize("options", [{}, {"kv_blocks": 30, "prefill_max_tokens": 40}], ids=["roomy", "tight"])
@pytest.mark.parametrize("batch_size", [3, 8])
def test_graphs_and_overlap_change_no_token(
    tiny: str, llama: str, samplings: list[Sampling] | None, options: dict[str, Any], batch_size: int
) -> None:
    for model in (tiny, llama):
        plain, _, _ = run(model, "cuda", "float32", batch_size, samplings, **options)
        for switches in ({"cuda_graph": True}, {"overlap": True}, {"cuda_graph": True, "overlap": True}):
            tokens, _, driver = run(model, "cuda", "float32", batch_size, samplings, **options, **switches)
            assert tokens == plain, switches
            assert sum(step.late_captures for step in driver.steps) == 0


def test_a_replay_over_a_pool_of_nan_is_the_eager_step(tiny: str) -> None:
    """Row 37: what padded rows and unused slots hold never reaches a real row."""
    plain, _, _ = run(tiny, "cuda", "float32", 8)
    backend = NativeBackend(tiny, "cuda", "float32", 8, 8, time.monotonic_ns, kv_blocks=200, cuda_graph=True)
    backend._parts.cache.fill(float("nan"))
    backend.warm_up()
    backend._parts.cache.fill(float("nan"))
    done = Driver(backend).run(
        [request(row, prompt, NEW_TOKENS, Sampling(stop_on_eos=False)) for row, prompt in enumerate(PROMPTS)]
    )
    assert done == plain
    assert backend.describe()["graphs"]


def test_ranges_change_no_token(tiny: str) -> None:
    assert run(tiny, "cuda", "float32", 4, nvtx=True)[0] == run(tiny, "cuda", "float32", 4)[0]


def test_compiled_layers_change_no_token(tiny: str) -> None:
    assert run(tiny, "cuda", "float32", 4, compile=True)[0] == run(tiny, "cuda", "float32", 4)[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_gives_every_token_and_stays_near_float32(tiny: str, dtype: str) -> None:
    tokens, logits, _ = run(tiny, "cuda:0", dtype, 8)
    _, exact, _ = run(tiny, "cuda:0", "float32", 8)
    assert [len(tokens[row]) for row in range(len(PROMPTS))] == [NEW_TOKENS] * len(PROMPTS)
    assert (logits[0] - exact[0]).abs().max() < 0.1 * exact[0].abs().max()


def test_an_ordinal_that_does_not_exist_is_refused(tiny: str) -> None:
    with pytest.raises(ConfigError, match=f"cuda:{torch.cuda.device_count()}"):
        NativeBackend(tiny, f"cuda:{torch.cuda.device_count()}", "auto", 1, 1, time.monotonic_ns)


def test_a_kv_cache_that_the_device_cannot_hold_is_refused(tiny: str) -> None:
    with pytest.raises(ConfigError, match="kv_blocks"):
        NativeBackend(tiny, "cuda", "float32", 1, 1, time.monotonic_ns, kv_blocks=10**12)
