"""Products in float64: right to the last bit of float32, where oneDNN's float32 ones are several off."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tiny_gpt2 import NO_EOS, Driver, save_model
from tiny_llama import VARIANTS, save_variant
from torch import Tensor

from engine_proc.backends.base import EngineRequest
from engine_proc.backends.native import NativeBackend
from engine_proc.backends.native_parts import Kernels
from engine_proc.models.exact_linear import MOST_ROWS, ExactLinear, make_linear
from engine_proc.models.linear import Linear
from engine_proc.models.loader import build_model, load_model
from harness.common.clock import monotonic_ns
from harness.common.errors import ConfigError

IN, OUT, ROWS = 1536, 7, 5


@pytest.fixture
def operands() -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and bias; one value of x is so large that float32 sums lose the others' last bits."""
    generator = torch.Generator().manual_seed(4)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((ROWS, IN), (OUT, IN), (OUT,)))
    x[:, 3] = 3000.0
    return x, weight, bias


def summed(x: Tensor, weight: Tensor, bias: Tensor, row: int, out: int) -> float:
    """The product to the last bit of float64, by math.fsum."""
    products = [a * b for a, b in zip(x[row].tolist(), weight[out].tolist(), strict=True)]  # exact: 24 bits times 24
    return math.fsum([*products, bias[out].item()])


def test_a_product_is_the_nearest_float32_to_the_exact_sum(operands: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, bias = operands
    truth = torch.tensor([[summed(x, weight, bias, row, out) for out in range(OUT)] for row in range(ROWS)]).float()
    assert ExactLinear(weight, bias)(x).equal(truth)
    if torch.backends.mkldnn.is_available():
        assert not Linear(weight, bias, packed=True)(x).equal(truth)  # or this test would show nothing


@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("rows", [1, MOST_ROWS])
def test_very_few_rows_have_a_kernel_that_is_as_exact(
    operands: tuple[Tensor, Tensor, Tensor], rows: int, narrow: bool
) -> None:
    pytest.importorskip("numba")
    x, weight, bias = operands
    x = x[:rows]
    if narrow:
        weight = weight.to(torch.bfloat16).float()
    layer = ExactLinear(weight, bias)
    assert layer._rows is not None and layer._rows.narrow is narrow
    truth = torch.tensor([[summed(x, weight, bias, row, out) for out in range(OUT)] for row in range(rows)]).float()
    assert layer(x).equal(truth)


def test_a_residual_is_added_before_the_only_rounding(operands: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, bias = operands
    residual = torch.full((ROWS, OUT), 1e5)
    exact = x.double() @ weight.double().t() + bias.double() + residual.double()
    assert ExactLinear(weight, bias).added(x, residual).equal(exact.float())


def test_an_activation_is_of_the_unrounded_product(operands: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, bias = operands
    exact = torch.nn.functional.silu(x.double() @ weight.double().t() + bias.double())
    assert ExactLinear(weight, bias).activated(x, "silu").equal(exact.float())


def test_bfloat16_stays_bfloat16_and_a_head_s_results_are_float32(operands: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, bias = (operand.to(torch.bfloat16) for operand in operands)
    narrow, wide = (make_linear(weight, bias, packed=True, exact=True, wide=wide)(x) for wide in (False, True))
    assert (narrow.dtype, wide.dtype) == (torch.bfloat16, torch.float32)
    assert wide.equal(narrow.float())


def test_an_engine_with_exact_products_packs_nothing_and_gives_the_same_tokens(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "tiny")
    tokens = []
    for kernels in (Kernels(), Kernels(exact_linear=True)):
        backend = NativeBackend(folder, "cpu", "float32", 2, 2, monotonic_ns, kv_blocks=32, kernels=kernels)
        tokens.append(Driver(backend).run([EngineRequest(0, [5, 6, 7, 8], 12, NO_EOS)])[0])
        said = backend.describe()
        assert said["exact_linear"] is kernels.exact_linear
        assert not (said["exact_linear"] and said["packed_linear"])
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("name", ["gpt2", *VARIANTS])
def test_a_wide_stream_is_float64_between_layers_and_float32_in_attention(tmp_path: Path, name: str) -> None:
    folder = save_model(tmp_path / name) if name == "gpt2" else str(tmp_path / name)
    if name != "gpt2":
        save_variant(tmp_path / name, name)
    loaded = load_model(folder)
    ids, positions = torch.arange(5, 17), torch.arange(12)
    seen: set[torch.dtype] = set()

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """No token but the one itself: what goes in comes out."""
        seen.update((q.dtype, k.dtype, v.dtype))
        return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1).flatten(1)

    logits = []
    for wide in (False, True):
        model = build_model(loaded, torch.device("cpu"), torch.float32, packed=False, exact=True, wide_stream=wide)
        with torch.inference_mode():
            hidden = model.hidden(ids, positions, attend)
            logits.append(model.logits(hidden))
        assert hidden.dtype is (torch.float64 if wide else torch.float32)
    assert seen == {torch.float32}
    assert logits[1].dtype is torch.float32
    assert not logits[0].equal(logits[1])
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)


def test_a_wide_stream_without_exact_products_is_refused(tmp_path: Path) -> None:
    kernels, folder = Kernels(wide_stream=True), save_model(tmp_path / "tiny")
    with pytest.raises(ConfigError, match="wide_stream needs exact_linear"):
        NativeBackend(folder, "cpu", "float32", 2, 2, monotonic_ns, kv_blocks=32, kernels=kernels)
