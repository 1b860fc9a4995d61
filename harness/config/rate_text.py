"""What `--rate` may hold beside a number: `5:50` for a ramp, `5x30s,10x2m` for steps. Exact fractions, no NumPy."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Literal, NamedTuple

RateForm = Literal["number", "ramp", "steps"]

MAX_RATE = 10**9
MAX_STEPS = 10_000
MAX_SECONDS = 366 * 24 * 3600

_NUMBER = r"(?:[0-9]{1,12}(?:\.[0-9]{0,12})?|\.[0-9]{1,12})"
_RAMP = re.compile(rf"({_NUMBER}):({_NUMBER})", re.ASCII)
_STEP = re.compile(rf"({_NUMBER})x({_NUMBER})(ms|s|m|h)?", re.ASCII)
_SECONDS = re.compile(rf"({_NUMBER})(ms|s|m|h)", re.ASCII)
_UNITS = {None: Fraction(1), "ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600)}


class Ramp(NamedTuple):
    """Requests per second at the start and at the end."""

    start: Fraction
    end: Fraction


class Step(NamedTuple):
    """So many requests per second for so many seconds."""

    rate: Fraction
    seconds: Fraction


def rate_form(value: object) -> RateForm:
    """Which form a value of `--rate` has, whether or not it is a good one."""
    if not isinstance(value, str):
        return "number"
    return "ramp" if ":" in value else "steps" if "x" in value else "number"


def rate_value(value: object) -> object:
    """A number as float, other forms as their text without blanks. Raises ValueError."""
    form = rate_form(value)
    if form == "number":
        return _number(value)
    text = str(value).replace(" ", "")
    if form == "ramp":
        parse_ramp(text)
    else:
        parse_steps(text)
    return text


def parse_ramp(text: str) -> Ramp:
    """`START:END`. Raises ValueError."""
    match = _RAMP.fullmatch(text)
    if match is None:
        raise ValueError(f"must be START:END for a ramp, both requests per second such as 1:50, not {text!r}")
    ramp = Ramp(Fraction(match[1]), Fraction(match[2]))
    if not 0 < max(ramp) <= MAX_RATE:
        raise ValueError(f"must reach a rate > 0 and at most {MAX_RATE} in a ramp, not {text!r}")
    return ramp


def parse_steps(text: str) -> tuple[Step, ...]:
    """`RATExSECONDS[,...]`, with s, ms, m or h after the seconds. Raises ValueError."""
    parts = text.split(",")
    if len(parts) > MAX_STEPS:
        raise ValueError(f"must have at most {MAX_STEPS} steps, not {len(parts)}")
    steps = []
    for part in parts:
        match = _STEP.fullmatch(part)
        if match is None:
            raise ValueError(f"must be RATExSECONDS with commas for steps, such as 5x30s,10x30s; {part!r} is none")
        step = Step(Fraction(match[1]), Fraction(match[2]) * _UNITS[match[3]])
        if step.rate > MAX_RATE or step.seconds == 0:
            raise ValueError(f"must have steps of at most {MAX_RATE} requests per second and > 0 s, not {part!r}")
        steps.append(step)
    if not any(step.rate for step in steps):
        raise ValueError(f"must have a step with a rate > 0, not {text!r}")
    if sum(step.seconds for step in steps) > MAX_SECONDS:
        raise ValueError("must have steps of at most 366 days in all")
    return tuple(steps)


def seconds_value(value: object) -> object:
    """Seconds as a number; text may carry ms, s, m or h."""
    match = _SECONDS.fullmatch(value.strip()) if isinstance(value, str) else None
    return value if match is None else float(Fraction(match[1]) * _UNITS[match[2]])


def _number(value: object) -> float:
    wanted = "must be a finite number > 0, START:END (--arrival ramp) or RATExSECONDS,... (--arrival steps)"
    try:
        rate = float(value)  # type: ignore[arg-type]  # what cannot be a number raises
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{wanted}, not {_shown(value)}") from None
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"{wanted}, not {_shown(value)}")
    return rate


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
