"""One linear layer, with its weight packed for oneDNN once, or as the plain twin that tests compare it with."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

#: Activations that oneDNN can apply inside the matrix product: name -> `algorithm` of its GELU.
FUSED_GELU = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}


def can_pack(device: torch.device) -> bool:
    """Whether this build of torch has the packed product for this device."""
    ops = torch.ops.mkldnn
    return (
        device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and hasattr(ops, "_reorder_linear_weight")
        and hasattr(ops, "_linear_pointwise")
    )


class Linear:
    """y = x W^T + b for x of shape [tokens, in].

    `weight` is [out, in]. Packed, oneDNN's blocked layout is made once instead of in every call (a decode step of 16
    rows: 41 -> 18 ms in bf16), and the plain weight is not kept.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, packed: bool) -> None:
        self._packed = packed
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if packed else weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, out]."""
        if self._packed:
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return F.linear(x, self._weight, self._bias)

    def activated(self, x: Tensor, activation: str) -> Tensor:
        """The activation of the product, [tokens, out]; one of ACTIVATIONS."""
        if self._packed and activation in FUSED_GELU:
            algorithm = FUSED_GELU[activation]
            return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "gelu", [], algorithm)
        return ACTIVATIONS[activation](self(x))

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + the product, [tokens, out]."""
        if self._packed:
            return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._weight, self._bias, "add")
        return residual + self(x)


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
}
