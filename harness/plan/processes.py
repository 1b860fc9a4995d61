"""Every arrival process: its settings, its generator, the law that its self-check tests. A new one is added here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple

from harness.common.clock import NS_PER_S
from harness.common.errors import ConfigError
from harness.config.arrival_flags import PARAMETERS, Parameters
from harness.config.rate_text import parse_ramp, parse_steps
from harness.plan import gap_laws
from harness.plan.arrival_spec import ArrivalSpec
from harness.plan.arrivals import MAX_SPAN_NS
from harness.plan.rate_curves import OnOffChain, RampCurve, SineCurve, StepCurve
from harness.plan.schedules import Constant, Renewal, Schedule, Varying

#: Offsets are whole ns: random gaps of a mean below this would not have their distribution any more.
MIN_MEAN_GAP_NS = 1000
_DEFAULTS = {"mmpp_on_s": 1.0, "mmpp_off_s": 4.0, "sine_amplitude": 0.5, "sine_period_s": 60.0}


class Process(NamedTuple):
    """parameters: which flags it takes. make: its generator. law: what its gaps are distributed like, None: nothing is
    drawn (unless `--spacing poisson` asks for it).
    """

    parameters: Parameters
    make: Callable[[ArrivalSpec], Schedule]
    law: str | None


def schedule_of(spec: ArrivalSpec) -> Schedule:
    """The generator that a spec describes. Raises ConfigError for rates that no plan could have."""
    return PROCESSES[spec.arrival].make(spec)


def _constant(spec: ArrivalSpec) -> Schedule:
    return Constant(spec.interval, spec.flag)


def _burst(spec: ArrivalSpec) -> Schedule:
    return Constant(Fraction(0), spec.flag)


def _poisson(spec: ArrivalSpec) -> Schedule:
    return Renewal(gap_laws.exponential(), _mean_gap(spec), spec.seed)


def _gamma(spec: ArrivalSpec) -> Schedule:
    shape = _needed(spec, "burstiness")
    if shape == math.inf:
        return Constant(spec.interval, spec.flag)
    return Renewal(gap_laws.gamma(shape), _mean_gap(spec), spec.seed)


def _weibull(spec: ArrivalSpec) -> Schedule:
    return Renewal(gap_laws.weibull(_needed(spec, "weibull_shape")), _mean_gap(spec), spec.seed)


def _mmpp(spec: ArrivalSpec) -> Schedule:
    on, off = (_setting(spec, name) * NS_PER_S for name in ("mmpp_on_s", "mmpp_off_s"))
    rate, off_rate = 1.0 / _mean_gap(spec), (spec.mmpp_off_rate or 0.0) / NS_PER_S
    on_rate = (rate * (on + off) - off_rate * off) / on
    _require_rate(on_rate, f"{spec.flag}: the rate in bursts")
    return Varying(None, False, spec.seed, OnOffChain(on_rate, off_rate, on, off, spec.seed))


def _ramp(spec: ArrivalSpec) -> Schedule:
    _needed(spec, "duration_s")
    ramp, duration = parse_ramp(str(spec.rate)), spec.duration_ns or 0
    return _varying(spec, RampCurve.of(ramp, duration), float(max(ramp)))


def _steps(spec: ArrivalSpec) -> Schedule:
    steps = parse_steps(str(spec.rate))
    return _varying(spec, StepCurve.of(steps), float(max(step.rate for step in steps)))


def _sine(spec: ArrivalSpec) -> Schedule:
    amplitude, period = _setting(spec, "sine_amplitude"), _setting(spec, "sine_period_s") * NS_PER_S
    rate = 1.0 / _mean_gap(spec)
    return _varying(spec, SineCurve(rate, amplitude, period), rate * (1.0 + amplitude) * NS_PER_S)


def _varying(spec: ArrivalSpec, curve: RampCurve | StepCurve | SineCurve, highest: float) -> Schedule:
    even = spec.spacing != "poisson"
    if not even:
        _require_rate(highest / NS_PER_S, f"{spec.flag}: the highest rate")
    return Varying(curve, even, spec.seed)


def _mean_gap(spec: ArrivalSpec) -> float:
    """ns, within what a plan can hold."""
    interval = spec.interval
    if interval > MAX_SPAN_NS:
        raise ConfigError(f"{spec.flag}: one request would take more than 366 days")
    _require_rate(float(1 / interval), f"{spec.flag}: the rate")
    return float(interval)


def _require_rate(per_ns: float, what: str) -> None:
    if per_ns * MIN_MEAN_GAP_NS > 1.0:
        most = NS_PER_S // MIN_MEAN_GAP_NS
        raise ConfigError(f"{what} of a random process must be at most {most} requests per second")


def _needed(spec: ArrivalSpec, name: str) -> float:
    """A setting that `RunConfig` always fills; a description by hand may lack it."""
    value: float | None = getattr(spec, name)
    if value is None:
        raise ConfigError(f"--arrival {spec.arrival} needs {name}")
    return value


def _setting(spec: ArrivalSpec, name: str) -> float:
    value: float | None = getattr(spec, name)
    return _DEFAULTS[name] if value is None else value


_TIME_CHANGE = "exponential after time change"
_GENERATORS: Mapping[str, tuple[Callable[[ArrivalSpec], Schedule], str | None]] = {
    "constant": (_constant, None),
    "poisson": (_poisson, "exponential"),
    "gamma": (_gamma, "gamma"),
    "weibull": (_weibull, "Weibull"),
    "mmpp": (_mmpp, _TIME_CHANGE),
    "ramp": (_ramp, None),
    "steps": (_steps, None),
    "sine": (_sine, None),
    "burst": (_burst, None),
}
PROCESSES: Mapping[str, Process] = MappingProxyType(
    {name: Process(parameters, *_GENERATORS[name]) for name, parameters in PARAMETERS.items()}
)
