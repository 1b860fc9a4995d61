"""Turns pydantic's complaints about a setting into one line that names the flag and the range it allows."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import annotated_types
from pydantic import ValidationError
from pydantic.fields import FieldInfo

#: Fields whose flag is not the name with dashes, less a unit of seconds.
_FLAGS = {
    "stop_on_eos": "--no-stop-on-eos",
}
_LONGEST_VALUE = 60


def flag_of(field: str) -> str:
    """The command line flag of a `RunConfig` field."""
    return _FLAGS.get(field, "--" + field.removesuffix("_s").replace("_", "-"))


def describe(error: ValidationError, fields: Mapping[str, FieldInfo]) -> str:
    """One line for the first complaint of `error`."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        return f"there is no setting {name!r}"
    flag = flag_of(name)
    if first["type"] == "value_error":
        return f"{flag} {first['ctx']['error']}"
    if first["type"] == "literal_error":
        return f"{flag} must be {first['ctx']['expected']}, not {_shown(first['input'])}"
    if name not in fields:
        return f"{flag}: {first['msg']}"
    return f"{flag} must be {_allowed(fields[name])}, not {_shown(first['input'])}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def _allowed(field: FieldInfo) -> str:
    """What a field takes, from its type and bounds: "an integer from 1 to 16", "a finite number > 0"."""
    kind, bounds = _kind_and_bounds(field.annotation, list(field.metadata))
    lows = [bound for bound in bounds if isinstance(bound, annotated_types.Ge)]
    highs = [bound.le for bound in bounds if isinstance(bound, annotated_types.Le)]
    above = [f"> {_number(bound.gt)}" for bound in bounds if isinstance(bound, annotated_types.Gt)]
    if lows and highs:
        return f"{kind} from {_number(lows[0].ge)} to {_number(highs[0])}"
    limits = above + [f">= {_number(low.ge)}" for low in lows] + [f"<= {_number(high)}" for high in highs]
    return f"{kind} {' and '.join(limits)}".strip()


def _kind_and_bounds(annotation: Any, bounds: list[Any]) -> tuple[str, list[Any]]:
    """The word for the innermost type, and the bounds on the way there."""
    kinds: dict[Any, str] = {
        int: "an integer",
        float: "a finite number",
        Decimal: "a finite number",
        bool: "true or false",
    }
    if annotation in kinds:
        return kinds[annotation], bounds
    for inner in typing.get_args(annotation):
        if typing.get_origin(annotation) is typing.Annotated and not isinstance(inner, type):
            bounds = bounds + list(getattr(inner, "metadata", [inner]))
    for inner in typing.get_args(annotation):
        if inner is not type(None) and (inner in kinds or typing.get_args(inner)):
            return _kind_and_bounds(inner, bounds)
    return "text", bounds


def _number(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
