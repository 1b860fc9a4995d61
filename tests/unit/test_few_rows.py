"""The product for few rows against the same product in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine_proc.few_rows import FewRows, is_available
from engine_proc.models.linear import FEW_ROWS, Linear

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not is_available(), reason="this CPU has no VDPBF16PS"),
]


def layer(width: int, depth: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(width + depth)
    weight = torch.empty((width, depth)).normal_(0.0, depth**-0.5, generator=draw).bfloat16()
    return weight, torch.empty(width).normal_(generator=draw).bfloat16()


def rows(count: int, depth: int, seed: int = 0) -> Tensor:
    return torch.empty((count, depth)).normal_(generator=torch.Generator().manual_seed(seed)).bfloat16()


def close(ours: Tensor, expected: Tensor) -> None:
    """One rounding to bfloat16 of the exact value, and what float32 sums lose."""
    torch.testing.assert_close(ours.double(), expected, rtol=2.0**-8 * 1.01, atol=1e-4)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 21])
@pytest.mark.parametrize(("width", "depth"), [(32, 2), (96, 64), (768, 770)])
def test_bias_gelu_and_residual_are_applied_before_the_one_rounding(count: int, width: int, depth: int) -> None:
    weight, bias = layer(width, depth)
    x, residual = rows(count, depth), rows(count, width, 1)
    product = F.linear(x.double(), weight.double())
    close(FewRows(weight, None)(x), product)
    few = FewRows(weight, bias)
    close(few(x), product + bias.double())
    close(few(x, gelu=True), F.gelu(product + bias.double(), approximate="tanh"))
    close(few(x, residual=residual), product + bias.double() + residual.double())


def test_wide_results_are_float32_of_any_width_and_rounded_like_the_others() -> None:
    weight, _ = layer(77, 64)
    out = FewRows(weight, None, wide=True)(rows(5, 64))
    assert out.dtype is torch.float32 and out.shape == (5, 77)
    assert torch.equal(out, out.bfloat16().float())
    close(out, F.linear(rows(5, 64).double(), weight.double()))


def test_rows_need_not_lie_together_and_two_threads_say_the_same() -> None:
    weight, bias = layer(96, 64)
    few, wide = FewRows(weight, bias), rows(6, 200)
    x = wide[:, 8:72]
    before = torch.get_num_threads()
    outs = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        outs.append(few(x))
    torch.set_num_threads(before)
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], few(x.contiguous()))


def test_extreme_values_come_out_as_torch_has_them() -> None:
    few = FewRows(torch.eye(32).bfloat16(), None)
    line = torch.zeros((1, 32)).bfloat16()
    line[0, :6] = torch.tensor([-3e38, -100.0, -10.0, 0.0, 100.0, 3e38])
    assert torch.equal(few(line), line)
    expected = F.gelu(line.double(), approximate="tanh")
    torch.testing.assert_close(few(line, gelu=True).double(), expected, rtol=2.0**-8, atol=1e-30)
    line[0, 0] = float("nan")
    assert few(line).isnan().all() and few(line, gelu=True).isnan().all()


@pytest.mark.parametrize("shape", [(33, 64), (32, 3)])
def test_a_layer_that_is_no_whole_panel_takes_the_plain_way(shape: tuple[int, int]) -> None:
    weight = rows(*shape)
    assert not FewRows.takes(weight)
    x = rows(FEW_ROWS[0], shape[1])
    close(Linear(weight, None, True)(x), F.linear(x.double(), weight.double()))


def test_a_packed_layer_uses_it_for_few_rows_only() -> None:
    weight, bias = layer(96, 64)
    linear, plain = Linear(weight, bias, True), Linear(weight, bias, False)
    for count in (1, FEW_ROWS[0], FEW_ROWS[-1], FEW_ROWS[-1] + 1):
        x = rows(count, 64)
        assert (linear._for_few(x) is not None) == (count in FEW_ROWS)
        close(linear(x), plain(x).double())
    assert plain._for_few(rows(8, 64)) is None
