"""Which form of a linear layer a device and a dtype get."""

from __future__ import annotations

import pytest
import torch

from engine_proc.models.linear import can_pack

CPU = torch.device("cpu")


class Ops:
    """torch.ops.mkldnn on a CPU whose oneDNN takes no bfloat16."""

    _reorder_linear_weight = _linear_pointwise = None

    @staticmethod
    def _is_mkldnn_bf16_supported() -> bool:
        return False


def test_a_cpu_without_a_product_for_bfloat16_gets_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN refuses to pack them there; the engine died at its start."""
    monkeypatch.setattr(torch.ops, "mkldnn", Ops, raising=False)
    assert not can_pack(CPU, torch.bfloat16)
    assert can_pack(CPU, torch.float32) is torch.backends.mkldnn.is_available()


def test_only_a_cpu_packs() -> None:
    assert not can_pack(torch.device("meta"), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_can_be_packed_is_packed(dtype: torch.dtype) -> None:
    if not can_pack(CPU, dtype):
        pytest.skip(f"no packed product for {dtype} here")
    assert torch.ops.mkldnn._reorder_linear_weight(torch.zeros(16, 16, dtype=dtype)) is not None
