"""Random numbers of a plan: one stream a dimension, so that one can be drawn anew while the others stay as they are."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


class Dimension(IntEnum):
    """What is drawn. The number is the spawn key of the stream: a plan changes where one of them changes."""

    ARRIVALS = 0
    PROMPTS = 1
    LENGTHS = 2


_FIELDS = {
    Dimension.ARRIVALS: "arrival_seed",
    Dimension.PROMPTS: "prompt_seed",
    Dimension.LENGTHS: "length_seed",
}


def seed_of(config: Any, dimension: Dimension) -> int:
    """The seed of a dimension in a `RunConfig`: its own where it is given, else `--seed`."""
    own: int | None = getattr(config, _FIELDS[dimension])
    return int(config.seed if own is None else own)


def seed_sequence(seed: int, dimension: Dimension, *more: int) -> np.random.SeedSequence:
    """The root of a stream; `more` tells several streams of one dimension apart."""
    return np.random.SeedSequence(seed, spawn_key=(int(dimension), *more))


def generator(seed: int, dimension: Dimension, *more: int) -> np.random.Generator:
    """NumPy's generator on such a stream. What it makes of a seed may change with NumPy: the plan file keeps it."""
    return np.random.Generator(np.random.PCG64(seed_sequence(seed, dimension, *more)))


class Uniforms:
    """Numbers strictly between 0 and 1, in 52 bits.

    Taken from PCG64's raw words by arithmetic of our own: NumPy promises the words of a bit generator for good, but not
    what `Generator` makes of them (NEP 19).
    """

    def __init__(self, seed: int, dimension: Dimension, *more: int) -> None:
        self._bits = np.random.PCG64(seed_sequence(seed, dimension, *more))

    def draw(self, count: int) -> FloatArray:
        """The next `count` numbers, float64."""
        raw = np.asarray(self._bits.random_raw(count), dtype=np.uint64)
        uniform: FloatArray = ((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        return uniform
