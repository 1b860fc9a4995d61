"""Which flags go with which arrival process. No flag is accepted and ignored: one without an effect is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.common.errors import ConfigError
from harness.config.errors import flag_of
from harness.config.rate_text import RateForm, parse_steps, rate_form

if TYPE_CHECKING:
    from harness.config.run_config import RunConfig


class Parameters(NamedTuple):
    """What a process is told. own: settings that only some processes know; needed: those without a default.

    rate: the form that `--rate` must have, None where there is no rate. draws: the process is random, None: it is with
    `--spacing poisson` only.
    """

    own: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    rate: RateForm | None = "number"
    draws: bool | None = True


#: In the order in which the help names them; `harness.plan.processes` has the generator of each.
PARAMETERS: Mapping[str, Parameters] = MappingProxyType({
    "constant": Parameters(draws=False),
    "poisson": Parameters(),
    "gamma": Parameters(("burstiness",), ("burstiness",)),
    "weibull": Parameters(("weibull_shape",), ("weibull_shape",)),
    "mmpp": Parameters(("mmpp_on_s", "mmpp_off_s", "mmpp_off_rate")),
    "ramp": Parameters(("spacing",), ("rate", "duration_s"), "ramp", None),
    "steps": Parameters(("spacing",), ("rate",), "steps", None),
    "sine": Parameters(("spacing", "sine_amplitude", "sine_period_s"), draws=None),
    "burst": Parameters(rate=None, draws=False),
})  # fmt: skip
_OWN = tuple(dict.fromkeys(name for parameters in PARAMETERS.values() for name in parameters.own))
#: Settings that a plan file decides.
DECIDED_BY_PLAN = ("arrival", "duration_s", *_OWN, "arrival_seed")
_FORMS = {"ramp": "START:END", "steps": "RATExSECONDS,...", "number": "a number"}


def implied_arrival(values: Mapping[str, Any]) -> str | None:
    """The process that the form of `--rate` asks for where `--arrival` is not given."""
    form = rate_form(values.get("rate"))
    return None if form == "number" else form


def check_arrival_flags(config: RunConfig) -> None:
    """Raises ConfigError naming the first flag that the arrival process cannot honour."""
    for name, why in _refused(config, PARAMETERS[config.arrival]):
        raise ConfigError(f"{flag_of(name)} {why}")


def _refused(config: RunConfig, parameters: Parameters) -> Iterator[tuple[str, str]]:
    kind = f"--arrival {config.arrival}"
    for name in _OWN:
        if getattr(config, name) is not None and name not in parameters.own:
            yield name, f"means nothing with {kind}"
    for name in parameters.needed:
        if getattr(config, name) is None:
            yield "arrival", f"{config.arrival} needs {flag_of(name)}"
    yield from _rate(config, parameters, kind)
    draws = parameters.draws if parameters.draws is not None else config.spacing == "poisson"
    if config.arrival_seed is not None and not draws:
        spacing = " --spacing even" if parameters.draws is None else ""
        yield "arrival_seed", f"means nothing with {kind}{spacing}, which draws nothing"


def _rate(config: RunConfig, parameters: Parameters, kind: str) -> Iterator[tuple[str, str]]:
    interval, rate, form = config.submit_interval_ms, config.rate, parameters.rate
    if rate is not None and form is None:
        yield "rate", f"means nothing with {kind}, which sends everything at once"
    elif rate is not None and form is not None and rate_form(rate) != form:
        yield "rate", f"must be {_FORMS[form]} with {kind}, not {rate!r}"
    if interval is not None and form in ("ramp", "steps"):
        yield "submit_interval_ms", f"cannot be had with {kind}: its rate changes"
    if interval and form is None:
        yield "submit_interval_ms", f"must be 0 with {kind}"
    if interval == 0 and config.duration_s is not None:
        yield "duration_s", "means nothing with a burst, whose requests all leave at once: use --num-requests"
    if interval == 0 and config.arrival not in ("constant", "burst"):
        yield "submit_interval_ms", f"must be > 0 with {kind} (0 is --arrival burst)"
    if isinstance(rate, str) and form == "steps" and config.duration_s is not None:
        whole = float(sum(step.seconds for step in parse_steps(rate)))
        if config.duration_s > whole:
            yield "duration_s", f"is longer than the steps of --rate, which end after {whole:g} s"
    if config.arrival == "mmpp" and config.mmpp_off_rate is not None:
        mean = rate if isinstance(rate, float) else 1000.0 / interval if interval else 0.0
        if config.mmpp_off_rate > mean:
            yield "mmpp_off_rate", f"must be at most the mean rate ({mean:g} requests per second)"
