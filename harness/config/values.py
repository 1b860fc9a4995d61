"""What the text of a flag may hold: the types of `RunConfig`'s fields, with one readable complaint each."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from harness.common.errors import ConfigError
from harness.common.limits import MAX_REQUESTS
from harness.config.length_text import parse_length
from harness.config.rate_text import MAX_SECONDS, rate_value, seconds_value
from harness.config.slo_text import Slo, parse_slos
from harness.host.cores import parse_cpu_list

ENGINES = ("native", "null", "transformers")
BUILTIN_MODELS = ("builtin:gpt2", "builtin:smollm2")
MAX_REPEATS = 10_000_000
MAX_STOPS, MAX_STOP_CHARACTERS = 16, 1000
MAX_TURNS = 1_000_000
MAX_MEMORY_BYTES = 1 << 50
#: The fields of a trace whose names --trace-labels may set.
TRACE_LABELS = ("timestamp", "input_length", "output_length", "hash_ids")

_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,3})?", re.ASCII)
_WINDOW = re.compile(r"([0-9]{1,12}(?:\.[0-9]{0,18})?)?:([0-9]{1,12}(?:\.[0-9]{0,18})?)?", re.ASCII)
_MEMORY = re.compile(r"([0-9]{1,16}(?:\.[0-9]{1,6})?) ?([KMGT]i?)?B?", re.ASCII)
_THINK_TIME = re.compile(r"(exp:)?[0-9]{1,12}(\.[0-9]{0,9})?", re.ASCII)
_UNITS = {"": 1} | {
    letter + suffix: base**power
    for power, letter in enumerate("KMGT", start=1)
    for suffix, base in (("", 1000), ("i", 1024))
}


def _device(value: object) -> object:
    if isinstance(value, str) and not _DEVICE.fullmatch(value):
        raise ValueError(f"must be cpu, cuda or cuda:N, not {value!r}")
    return value


def _engine(value: object) -> object:
    if isinstance(value, str) and value not in ENGINES and not _FACTORY.fullmatch(value):
        raise ValueError(f"knows no engine {value!r}: there are {', '.join(ENGINES)} and your own as module:factory")
    return value


def _model(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value.startswith("builtin:"):
        if value not in BUILTIN_MODELS:
            raise ValueError(f"knows no model {value!r}: without a download there is {', '.join(BUILTIN_MODELS)}")
        return value
    is_gguf = value.lower().endswith(".gguf")
    is_path = is_gguf or value.startswith(("/", "./", "../")) or not _HUB_ID.fullmatch(value)
    if is_path and not (value and (Path(value).is_file() if is_gguf else Path(value).is_dir())):
        known = f"{', '.join(BUILTIN_MODELS)}, a folder or .gguf file that exists, or a hub id"
        raise ValueError(f"must be {known}, not {value!r}")
    return value


def _repeats(value: object) -> object:
    return _integers(value, f"an integer from 0 to {MAX_REPEATS} or several with commas")


def _stop_ids(value: object) -> object:
    return _integers(value, "a token id or several with commas")


def _integers(value: object, wanted: str) -> object:
    if isinstance(value, int):
        return (value,)
    if not isinstance(value, str):
        return value
    parts = [part.strip() for part in value.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", part, re.ASCII) for part in parts):
        raise ValueError(f"must be {wanted}, not {value!r}")
    return tuple(int(part) for part in parts)


def _stop(value: object) -> object:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Iterable):
        return value
    texts = tuple(texts)
    if len(texts) > MAX_STOPS:
        raise ValueError(f"may be given at most {MAX_STOPS} times, not {len(texts)}")
    for text in texts:
        utf8(text)
        if isinstance(text, str) and not 1 <= len(text) <= MAX_STOP_CHARACTERS:
            raise ValueError(f"must have from 1 to {MAX_STOP_CHARACTERS} characters, not {len(text)}")
    return texts


def _length(value: object) -> object:
    text = str(value) if type(value) is int else value
    if isinstance(text, str):
        parse_length(utf8(text))  # type: ignore[arg-type]
    return text


def _turns(value: object) -> object:
    if value == "all" or (type(value) is int and 1 <= value <= MAX_TURNS):
        return value
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value, re.ASCII) and 1 <= int(value) <= MAX_TURNS:
        return int(value)
    raise ValueError(f"must be all or an integer from 1 to {MAX_TURNS}, not {str(value)[:40]!r}")


def _think_time(value: object) -> object:
    """MS or exp:MS; the longest is what a plan may span."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = repr(value)
    if isinstance(value, str) and not _THINK_TIME.fullmatch(value):
        raise ValueError(f"must be a number of ms, or exp:MS for exponential think times of that mean, not {value!r}")
    return value


def _memory(value: object) -> object:
    if isinstance(value, str):
        match = _MEMORY.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"must be a size such as 800MB or 2GiB, not {value!r}")
        value = int(float(match[1]) * _UNITS[match[2] or ""])
    if isinstance(value, int) and not 1 <= value <= MAX_MEMORY_BYTES:
        raise ValueError(f"must be from 1 byte to 1024TiB, not {value} bytes")
    return value


def _window(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _WINDOW.fullmatch(value.strip())
    start, end = (None if part is None else Decimal(part) for part in match.groups()) if match else (None, None)
    if start is end is None or (end is not None and end <= (start or 0)):
        raise ValueError(f"must be A:B, A: or :B in seconds with A < B, not {value!r}")
    return start or Decimal(0), end


def _labels(value: object) -> object:
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=")[::2] for part in value.split(",")]
    names = [name.strip() for name, _ in pairs]
    if any(name not in TRACE_LABELS or not label.strip() for name, label in pairs) or len(set(names)) < len(names):
        raise ValueError(f"must be NAME=FIELD or several with commas, NAME one of {', '.join(TRACE_LABELS)}, "
                         f"not {value!r}")  # fmt: skip
    return tuple((name.strip(), label.strip()) for name, label in pairs)


def _toggle(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if value not in ("on", "off"):
        raise ValueError(f"must be on or off, not {value!r}")
    return value == "on"


def _slos(value: object) -> object:
    return parse_slos(value) if isinstance(value, str) else value


def _cores(value: object) -> object:
    if isinstance(value, str):
        try:
            return parse_cpu_list(value)
        except ConfigError as error:
            raise ValueError(f"cannot be read: {error}") from None
    return tuple(sorted(set(value))) if isinstance(value, Iterable) else value


def _path(value: object) -> object:
    if not isinstance(value, str | Path):
        return value
    text = os.fspath(value)
    if not text or "\0" in text:
        raise ValueError("must not be empty or hold a NUL character")
    utf8(text)
    try:
        return Path(text).expanduser()
    except RuntimeError:  # ~name of a user that does not exist
        raise ValueError(f"starts with a home folder that is not known: {text!r}") from None


def _limits(value: object) -> object:
    """A limits file is read now, so that nothing starts with one that cannot be; the checks are only loaded for it."""
    path = _path(value)
    if isinstance(path, Path):
        from harness.checks.limits import read_limits
        from harness.checks.registry import CHECK_IDS

        try:
            read_limits(path, CHECK_IDS)
        except ConfigError as error:
            raise ValueError(str(error)) from None
    return path


def utf8(value: object) -> object:
    """Text that messages and files can carry."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"must be valid UTF-8, not {value!r}") from None
    return value


Text = Annotated[str, BeforeValidator(utf8)]
EngineName = Annotated[str, BeforeValidator(_engine)]
ModelName = Annotated[str, BeforeValidator(utf8), BeforeValidator(_model)]
DeviceName = Annotated[str, BeforeValidator(_device)]
FilePath = Annotated[Path, BeforeValidator(_path)]
LimitsFile = Annotated[Path, BeforeValidator(_limits)]
Slos = Annotated[tuple[Slo, ...], BeforeValidator(_slos)]
Cores = Annotated[tuple[int, ...], BeforeValidator(_cores), Field(min_length=1)]
Repeats = Annotated[tuple[Annotated[int, Field(ge=0, le=MAX_REPEATS)], ...], BeforeValidator(_repeats)]
StopIds = Annotated[tuple[Annotated[int, Field(ge=0, le=2**31 - 1)], ...], BeforeValidator(_stop_ids)]
StopStrings = Annotated[tuple[str, ...], BeforeValidator(_stop)]
Turns = Annotated[int | str, BeforeValidator(_turns)]
LengthText = Annotated[str, BeforeValidator(_length)]
ThinkTime = Annotated[str, BeforeValidator(_think_time)]
Memory = Annotated[int | None, BeforeValidator(_memory)]
Window = Annotated[tuple[Decimal, Decimal | None], BeforeValidator(_window)]
Labels = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_labels)]
Factor = Annotated[Decimal, Field(gt=0, le=Decimal(1_000_000_000), allow_inf_nan=False, max_digits=30)]
Toggle = Annotated[bool | None, BeforeValidator(_toggle)]
Count = Annotated[int, Field(ge=1, le=MAX_REQUESTS)]
Batch = Annotated[int, Field(ge=1, le=65_536)]
Tokens = Annotated[int, Field(ge=1, le=1_000_000)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Rate = Annotated[float | str, BeforeValidator(rate_value)]
Duration = Annotated[float, BeforeValidator(seconds_value), Field(gt=0, le=MAX_SECONDS, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)]
