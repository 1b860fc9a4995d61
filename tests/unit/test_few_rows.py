"""The product for few rows against the same product in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine_proc.kernels.few_rows import FewRows
from engine_proc.kernels.row_products import Product, best_product, products
from engine_proc.models.linear import Linear

F_PAD = F.pad
KINDS = tuple(products().values())

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not KINDS, reason="this CPU has no AVX-512"),
]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def layer(kind: Product, width: int, depth: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(width + depth)
    weight = torch.empty((width, depth)).normal_(0.0, depth**-0.5, generator=draw).to(kind.dtype)
    return weight, torch.empty(width).normal_(generator=draw).to(kind.dtype)


def rows(kind: Product, count: int, depth: int, seed: int = 0) -> Tensor:
    return torch.empty((count, depth)).normal_(generator=torch.Generator().manual_seed(seed)).to(kind.dtype)


def close(ours: Tensor, expected: Tensor) -> None:
    """One rounding of the exact value to bfloat16, if that is the type, and what float32 sums lose."""
    atol, rtol = (1e-4, 2.0**-8 * 1.01) if ours.dtype is torch.bfloat16 else (2e-6, 2e-6)
    torch.testing.assert_close(ours.double(), expected, rtol=rtol, atol=atol)


@each_kind
@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 21, 33])
@pytest.mark.parametrize(("panels", "depth"), [(1, 32), (3, 64), (24, 800)])
def test_bias_gelu_and_residual_are_applied_before_the_one_rounding(
    kind: Product, count: int, panels: int, depth: int
) -> None:
    width = panels * kind.panel
    weight, bias = layer(kind, width, depth)
    x, residual = rows(kind, count, depth), rows(kind, count, width, 1)
    product = F.linear(x.double(), weight.double())
    close(FewRows(weight, None, kind=kind)(x), product)
    few = FewRows(weight, bias, kind=kind)
    close(few(x), product + bias.double())
    close(few(x, gelu=True), F.gelu(product + bias.double(), approximate="tanh"))
    close(few(x, residual=residual), product + bias.double() + residual.double())


@each_kind
@pytest.mark.parametrize("units", [1, 3])
def test_a_depth_of_any_number_of_units_is_summed_whole(kind: Product, units: int) -> None:
    depth = units * kind.unit
    weight, _ = layer(kind, kind.panel, depth)
    close(
        FewRows(weight, None, kind=kind)(rows(kind, 3, depth)), F.linear(rows(kind, 3, depth).double(), weight.double())
    )


@each_kind
def test_wide_results_are_float32_of_any_width_and_rounded_like_the_others(kind: Product) -> None:
    weight, _ = layer(kind, 77, 64)
    x = rows(kind, 5, 64)
    out = FewRows(weight, None, wide=True, kind=kind)(x)
    assert out.dtype is torch.float32 and out.shape == (5, 77)
    assert torch.equal(out, out.to(kind.dtype).float())
    close(out.to(kind.dtype), F.linear(x.double(), weight.double()))


@each_kind
def test_rows_need_not_lie_together_and_two_threads_say_the_same(kind: Product) -> None:
    weight, bias = layer(kind, 96, 64)
    few, wide = FewRows(weight, bias, kind=kind), rows(kind, 6, 200)
    x = wide[:, 8:72]
    before = torch.get_num_threads()
    outs = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        outs.append(few(x))
    torch.set_num_threads(before)
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], few(x.contiguous()))


@each_kind
def test_rows_that_share_a_set_of_the_cache_are_moved_apart_and_say_the_same(
    kind: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are copied where they lie 4,096 bytes apart and are more than a set holds; nowhere else."""
    depth = 4096 // kind.dtype.itemsize
    few, x = FewRows(layer(kind, 2 * kind.panel, depth)[0], None, kind=kind), rows(kind, 16, depth)
    apart = F.pad(x, (0, 32))[:, :depth]
    copies: list[int] = []
    monkeypatch.setattr("engine_proc.kernels.few_rows.F.pad", lambda x, by: copies.append(len(x)) or F_PAD(x, by))
    assert torch.equal(few(x), few(apart))
    assert copies == ([16] if kind.name == "avx512" else [])
    few(x[:8])
    assert len(copies) <= 1


@each_kind
def test_a_row_comes_out_the_same_whoever_is_beside_it(kind: Product) -> None:
    weight, bias = layer(kind, 96, 640)
    few, x = FewRows(weight, bias, kind=kind), rows(kind, 16, 640)
    together = few(x)
    for count in (1, 5, 9):
        assert torch.equal(few(x[:count]), together[:count])
    assert torch.equal(few(x[9:]), together[9:])


@each_kind
def test_extreme_values_come_out_as_torch_has_them(kind: Product) -> None:
    few = FewRows(torch.eye(32).to(kind.dtype), None, kind=kind)
    line = torch.zeros((1, 32)).to(kind.dtype)
    line[0, :6] = torch.tensor([-3e38, -100.0, -10.0, 0.0, 100.0, 3e38])
    assert torch.equal(few(line), line)
    expected = F.gelu(line.double(), approximate="tanh")
    torch.testing.assert_close(few(line, gelu=True).double(), expected, rtol=2.0**-8, atol=1e-30)
    line[0, 0] = float("nan")
    assert few(line).isnan().all() and few(line, gelu=True).isnan().all()


@each_kind
@pytest.mark.parametrize("whole", ["depth", "width"])
def test_a_layer_that_is_no_whole_panel_takes_the_plain_way(kind: Product, whole: str) -> None:
    shape = (kind.panel + 1, 64) if whole == "depth" else (kind.panel + (kind.unit == 1), 3)
    weight, x = rows(kind, *shape), rows(kind, 8, shape[1])
    assert not FewRows.takes(weight)
    close(Linear(weight, None, True)(x), F.linear(x.double(), weight.double()))


@each_kind
def test_a_packed_layer_uses_it_for_few_rows_only(kind: Product) -> None:
    weight, bias = layer(kind, 96, 64)
    linear, plain = Linear(weight, bias, True), Linear(weight, bias, False)
    best = best_product(kind.dtype, 64)
    assert best is not None
    for count in (1, best.rows[0], best.rows[-1], best.rows[-1] + 1):
        x = rows(kind, count, 64)
        assert (linear._for_few(x) is not None) == (count in best.rows)
        close(linear(x), plain(x).double())
    assert plain._for_few(rows(kind, 8, 64)) is None
