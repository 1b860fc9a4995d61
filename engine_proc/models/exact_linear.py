"""The twin of `Linear` whose products are added up in float64: what is left is the rounding of what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_proc.models.linear import ACTIVATIONS, Linear

if TYPE_CHECKING:
    from engine_proc.kernels.exact_rows import ExactRows

#: With more rows a float64 matrix product is faster than `ExactRows`.
MOST_ROWS = 4


class ExactLinear(Linear):
    """y = x W^T + b, computed in float64 and rounded once to the dtype of x. Twice the memory of float32, and
    that of `ExactRows`, and about three times the time of the packed product: a measure for the engine, not a way to
    serve. A sum with the residual has the residual's dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None, wide: bool = False) -> None:
        """`weight` [out, in] and `bias` of any dtype; kept as float64. `wide`: results in float32."""
        super().__init__(weight.double(), None if bias is None else bias.double(), packed=False, wide=wide)
        self._rows = _exact_rows(weight)

    def __call__(self, x: Tensor) -> Tensor:
        out = self._product(x).to(x.dtype)
        return out.float() if self._wide else out

    def activated(self, x: Tensor, activation: str) -> Tensor:
        return ACTIVATIONS[activation](self._product(x)).to(x.dtype)

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        return (residual + self._product(x)).to(residual.dtype)

    def _product(self, x: Tensor) -> Tensor:
        """[tokens, out] in float64."""
        x = x.to(torch.float64)
        if self._rows is None or x.shape[0] > MOST_ROWS:
            return F.linear(x, self._weight, self._bias)
        return self._rows(x) if self._bias is None else self._rows(x) + self._bias


def _exact_rows(weight: Tensor) -> ExactRows | None:
    if weight.device.type != "cpu":
        return None
    try:
        from engine_proc.kernels.exact_rows import ExactRows
    except ImportError:  # no numba here
        return None
    return ExactRows(weight)


def make_linear(weight: Tensor, bias: Tensor | None, packed: bool, exact: bool, wide: bool = False) -> Linear:
    """The form that was asked for; `exact` wins over `packed`."""
    return ExactLinear(weight, bias, wide) if exact else Linear(weight, bias, packed, wide)
