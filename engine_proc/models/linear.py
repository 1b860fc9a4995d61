"""One linear layer, with its weight packed once for oneDNN and for few rows, or as the plain twin for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from engine_proc.kernels.few_rows import FewRows

#: Activations that oneDNN can apply inside the matrix product: name -> `algorithm` of its GELU.
FUSED_GELU = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this build of torch has the packed product for this device and dtype. oneDNN refuses bfloat16 on a CPU
    without AVX-512 or the like."""
    ops = torch.ops.mkldnn
    return (
        device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and hasattr(ops, "_reorder_linear_weight")
        and hasattr(ops, "_linear_pointwise")
        and (dtype is not torch.bfloat16 or bool(ops._is_mkldnn_bf16_supported()))
    )


class Linear:
    """y = x W^T + b for x of shape [tokens, in].

    `weight` is [out, in]. Packed, oneDNN's blocked layout is made once instead of in every call (a decode step of 16
    rows: 41 -> 18 ms in bf16), and the plain weight is not kept. Where `few_rows` has a kernel there is a second
    layout, for a decode step's few rows: it costs the weights' memory once more.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, packed: bool, wide: bool = False) -> None:
        """`wide`: results in float32, rounded to the weights' dtype all the same."""
        self._packed = packed
        self._wide = wide
        self._few = _few_rows(weight, bias, wide) if packed else None
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if packed else weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, out]."""
        few = self._for_few(x)
        if few is not None:
            return few(x)
        if self._packed:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        else:
            out = F.linear(x, self._weight, self._bias)
        return out.float() if self._wide else out

    def _for_few(self, x: Tensor) -> FewRows | None:
        """The product for few rows, where it is the one to take; a compiled graph does not have it."""
        few = self._few
        return few if few is not None and x.shape[0] in few.rows and not torch.compiler.is_compiling() else None

    def activated(self, x: Tensor, activation: str) -> Tensor:
        """The activation of the product, [tokens, out]; one of ACTIVATIONS."""
        few = self._for_few(x) if FUSED_GELU.get(activation) == "tanh" else None
        if few is not None:
            return few(x, gelu=True)
        if self._packed and activation in FUSED_GELU:
            algorithm = FUSED_GELU[activation]
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "gelu", [], algorithm)
        return ACTIVATIONS[activation](self(x))

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + the product, [tokens, out]."""
        few = self._for_few(x)
        if few is not None:
            return few(x, residual=residual)
        if self._packed:
            return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._weight, self._bias, "add")
        return residual + self(x)


def _few_rows(weight: Tensor, bias: Tensor | None, wide: bool) -> FewRows | None:
    try:
        from engine_proc.kernels.few_rows import FewRows
    except ImportError:  # no numba here
        return None
    return FewRows(weight, bias, wide) if FewRows.takes(weight, wide) else None


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
}
