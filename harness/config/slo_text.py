"""How objectives are written: `ttft=500ms,tpot=50ms@p99`. No array library, so that the command line stays light."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple

#: What an objective may be about; all but TPOT count from the intended time.
SLO_METRICS = ("ttft", "tpot", "e2e")
DEFAULT_PERCENT = 99.0

_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_OBJECTIVE = re.compile(
    r"([a-z0-9]+)=([0-9]{1,12}(?:\.[0-9]{1,9})?)(ns|us|ms|s)(?:@p([0-9]{1,2}(?:\.[0-9]{1,4})?))?", re.ASCII
)
_MAX_LIMIT_NS = 10**9 * 86_400


class Slo(NamedTuple):
    """At least `percent` % of all planned requests have `metric` within `limit_ns`. metric: one of SLO_METRICS."""

    metric: str
    limit_ns: int
    percent: float

    def __str__(self) -> str:
        unit, scale = next((unit, scale) for unit, scale in reversed(_UNITS.items()) if self.limit_ns >= scale)
        return f"{self.metric}={self.limit_ns / scale:g}{unit}@p{self.percent:g}"


def parse_slos(text: str) -> tuple[Slo, ...]:
    """Read `ttft=500ms,tpot=50ms@p99`: limits with ns, us, ms or s, each with the percentile that it holds at.

    One without a percentile takes the next one to its right, the last one p99. Raises ValueError, for a flag's message.
    """
    found: list[Slo] = []
    percent = DEFAULT_PERCENT
    for part in reversed(text.split(",")):
        match = _OBJECTIVE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"must be like ttft=500ms,tpot=50ms@p99, not {part.strip()!r}")
        metric, value, unit, at = match.groups()
        if metric not in SLO_METRICS:
            raise ValueError(f"knows {', '.join(SLO_METRICS)}, not {metric!r}")
        percent = percent if at is None else float(at)
        limit = Decimal(value) * _UNITS[unit]
        if not 1 <= limit <= _MAX_LIMIT_NS or not 0 < percent < 100:
            raise ValueError(
                f"must have a limit from 1ns to 86400s and a percentile between 0 and 100, not {part.strip()!r}"
            )
        if any(slo.metric == metric for slo in found):
            raise ValueError(f"names {metric} twice")
        found.append(Slo(metric, int(limit), percent))
    return tuple(reversed(found))
