"""The unit guard: a mean rate that no service has, and that another unit would make ordinary, is refused."""

from __future__ import annotations

from fractions import Fraction

from harness.common.errors import ConfigError
from harness.plan.traces.times import UNITS
from harness.plan.traces.timing import Timing

#: Mean rates (1/s) that services have; beyond them a unit that nobody confirmed is refused.
USUAL_RATES = (0.01, 1000.0)
#: Rate (1/s) that no submitter keeps up: refused even where the unit was confirmed.
MAX_RATE = 100_000.0
#: Under so many rows the usual rates say nothing.
MIN_ROWS = 10


def check_rate(path: str, timing: Timing, scale: Fraction, unit: str, confirmed: bool) -> list[str]:
    """Warnings about the rate that a unit (`scale` ns) implies; `confirmed`: the user named it.

    Raises ConfigError that names the unit which the stamps probably are in.
    """
    rate = timing.mean_rate
    if rate is None:
        return []
    usual = USUAL_RATES[0] <= rate <= USUAL_RATES[1]
    likelier = likely_unit(rate, scale)
    if likelier is None or usual or (rate <= MAX_RATE and timing.rows < MIN_ROWS):
        return []
    says = f"read in {unit}, the mean rate is {rate_words(rate)} over {timing.span_ns / 1e9:.6g} s"
    probably = f"in {likelier[0]} it is {rate_words(likelier[1])}"
    if rate > MAX_RATE or not confirmed:
        insist = "" if rate > MAX_RATE else f", --trace-unit {unit} if {unit} is right"
        raise ConfigError(f"--trace {path}: {says}: the unit is probably {likelier[0]}, {probably} "
                          f"(--trace-unit {likelier[0]}{insist})")  # fmt: skip
    return [f"{says}; {probably}"]


def likely_unit(rate: float, scale: Fraction) -> tuple[str, float] | None:
    """The other unit that makes the rate a usual one, and that rate; the coarsest where several do."""
    for unit, ns in UNITS.items():
        other = rate * float(scale / ns)
        if ns != scale and USUAL_RATES[0] <= other <= USUAL_RATES[1]:
            return unit, other
    return None


def rate_words(rate: float) -> str:
    """A rate as one reads it: "3.91 million/s", "3,907/s", "0.0039/s"."""
    if rate >= 1e6:
        return f"{rate / 1e6:.3g} million/s"
    return f"{rate:,.0f}/s" if rate >= 100 else f"{rate:.3g}/s"
