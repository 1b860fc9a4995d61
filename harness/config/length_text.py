"""How lengths are written on the command line. Imports nothing heavy: a mistyped flag is answered at once."""

from __future__ import annotations

import re
from typing import NamedTuple

from harness.common.limits import MAX_NEW_TOKENS

#: The longest prompt or output that can be asked for; the engine's context is nearly always shorter.
MAX_LENGTH = MAX_NEW_TOKENS
#: Kinds that a seed decides.
DRAWN = ("uniform", "normal", "lognormal", "zipf")
#: As long as what a dataset recorded; only outputs can be.
RECORDED = "dataset"
FORMS = "N, uniform:A:B, normal:M:S, lognormal:M:S, zipf:A (the last three also with :MIN:MAX) or file:PATH"

INTEGER = re.compile(r"[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)


class LengthSpec(NamedTuple):
    """A parsed length. kind: fixed | uniform | normal | lognormal | zipf | file | dataset.

    a, b: its parameters in tokens (of zipf: its exponent). low, high: bounds that drawn lengths are moved to.
    path, column: of a file.
    """

    kind: str
    a: float = 0.0
    b: float = 0.0
    low: int = 1
    high: int = MAX_LENGTH
    path: str = ""
    column: str = ""

    @property
    def fixed(self) -> bool:
        return self.kind == "fixed"


def parse_length(text: str) -> LengthSpec:
    """Raises ValueError, the rest of a sentence that begins with the flag, for what is no length."""
    if INTEGER.fullmatch(text):
        return LengthSpec("fixed", float(_bounded(int(text), text)))
    if text == RECORDED:
        return LengthSpec(RECORDED)
    kind, _, rest = text.partition(":")
    if kind == "file" and rest:
        path, _, column = rest.partition("#")
        return LengthSpec("file", path=path, column=column)
    parts = rest.split(":")
    wanted = {"uniform": (2, 0), "normal": (2, 2), "lognormal": (2, 2), "zipf": (1, 2)}.get(kind)
    if wanted is None or len(parts) not in (wanted[0], sum(wanted)) or not all(map(_NUMBER.fullmatch, parts)):
        raise ValueError(f"must be {FORMS}, not {text!r}")
    numbers = [float(part) for part in parts[: wanted[0]]]
    bounds = parts[wanted[0] :] or ["1", str(MAX_LENGTH)]
    if not all(map(INTEGER.fullmatch, bounds)):
        raise ValueError(f"takes whole numbers as MIN and MAX, not {text!r}")
    low, high = (_bounded(int(bound), text) for bound in bounds)
    if low > high:
        raise ValueError(f"has a MIN above its MAX: {text!r}")
    _check_parameters(kind, numbers, parts, text)
    return LengthSpec(kind, numbers[0], (*numbers, 0.0)[1], low, high)


def _bounded(value: int, text: str) -> int:
    if not 1 <= value <= MAX_LENGTH:
        raise ValueError(f"takes lengths from 1 to {MAX_LENGTH}, not {text!r}")
    return value


def _check_parameters(kind: str, numbers: list[float], parts: list[str], text: str) -> None:
    if kind == "uniform":
        if not all(map(INTEGER.fullmatch, parts)):
            raise ValueError(f"uniform:A:B takes whole numbers, not {text!r}")
        a, b = (_bounded(int(part), text) for part in parts)
        if a > b:
            raise ValueError(f"uniform:A:B takes A <= B, not {text!r}")
    elif kind == "zipf":
        if numbers[0] <= 1:
            raise ValueError(f"zipf:A takes an exponent above 1, not {text!r}")
    elif not (1 <= numbers[0] <= MAX_LENGTH and numbers[1] <= MAX_LENGTH):
        raise ValueError(f"{kind}:M:S takes a mean and a deviation of at most {MAX_LENGTH}, the mean at least 1, "
                         f"not {text!r}")  # fmt: skip
