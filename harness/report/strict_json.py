"""JSON that every parser reads: no NaN, no infinity, no lone surrogate."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def strict(value: Any) -> Any:
    """`value` with NumPy scalars as numbers, non-finite floats as None, anything else unknown as text."""
    if isinstance(value, Mapping):
        return {_text(str(key)): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [strict(item) for item in value]
    if isinstance(value, np.generic):
        return strict(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    return _text(str(value))


def strict_dumps(value: Any) -> str:
    """Indented strict JSON with a final newline."""
    return json.dumps(strict(value), indent=2, allow_nan=False) + "\n"


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
