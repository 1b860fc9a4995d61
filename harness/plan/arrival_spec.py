"""`ArrivalSpec`: what decides the offsets of a plan, as flags say it, as session.json keeps it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any

from harness.common.clock import NS_PER_S
from harness.plan import arrivals
from harness.plan.seeds import Dimension, seed_of


@dataclass(frozen=True, slots=True)
class ArrivalSpec:
    """What decides the offsets of a plan beside the number of requests: the arrival settings of a `RunConfig`."""

    arrival: str = "constant"
    rate: float | str | None = None
    submit_interval_ms: float | None = None
    duration_s: float | None = None
    spacing: str | None = None
    burstiness: float | None = None
    weibull_shape: float | None = None
    mmpp_on_s: float | None = None
    mmpp_off_s: float | None = None
    mmpp_off_rate: float | None = None
    sine_amplitude: float | None = None
    sine_period_s: float | None = None
    seed: int = 0

    @classmethod
    def of(cls, config: Any) -> ArrivalSpec:
        """The spec of a `RunConfig`."""
        names = [item.name for item in fields(cls) if item.name != "seed"]
        values = {name: getattr(config, name) for name in names}
        return cls(**values, seed=seed_of(config, Dimension.ARRIVALS))

    def to_json(self) -> dict[str, Any]:
        """The settings that are set; an infinite burstiness as the word that the flag takes."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        return {name: str(value) if value == math.inf else value for name, value in values.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ArrivalSpec:
        """Read what `to_json` gave; unknown settings are left out. Raises TypeError or ValueError."""
        values = {item.name: data[item.name] for item in fields(cls) if item.name in data}
        if values.get("burstiness") is not None:
            values["burstiness"] = float(values["burstiness"])
        return cls(**values)

    @property
    def flag(self) -> str:
        return "--rate" if self.rate is not None else "--submit-interval-ms"

    @property
    def interval(self) -> Fraction:
        """ns between requests, or their mean, exactly."""
        if isinstance(self.rate, float | int):
            return arrivals.interval_of_rate(self.rate)
        return arrivals.interval_of_ms(self.submit_interval_ms or 0.0)

    @property
    def duration_ns(self) -> int | None:
        """Requests are due before it; None: no limit."""
        return None if self.duration_s is None else math.ceil(Fraction(repr(float(self.duration_s))) * NS_PER_S)
