"""`RunConfig`: what a run was asked to do, checked once and never changed. Flags map to its fields one to one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from harness.common.errors import ConfigError
from harness.common.limits import MAX_NEW_TOKENS, MAX_REQUESTS
from harness.config_errors import describe, flag_of
from harness.cores import allowed_cpus, parse_cpu_list, require_allowed

DEFAULT_INTERVAL_MS = 350.0  # about half of one core for the default engine (measured: 180 ms a request)
DEFAULT_NUM_REQUESTS = 64
ENGINES = ("native", "null")
BUILTIN_MODELS = ("builtin:gpt2",)

_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,3})?", re.ASCII)


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
    is_path = value.startswith(("/", "./", "../")) or not _HUB_ID.fullmatch(value)
    if is_path and not (value and Path(value).is_dir()):
        raise ValueError(f"must be builtin:gpt2, a folder that exists or a hub id, not {value!r}")
    return value


def _repeats(value: object) -> object:
    if isinstance(value, int):
        return (value,)
    if not isinstance(value, str):
        return value
    parts = [part.strip() for part in value.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", part, re.ASCII) for part in parts):
        raise ValueError(f"must be an integer from 0 to {_MAX_REPEATS} or several with commas, not {value!r}")
    return tuple(int(part) for part in parts)


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
    _utf8(text)
    try:
        return Path(text).expanduser()
    except RuntimeError:  # ~name of a user that does not exist
        raise ValueError(f"starts with a home folder that is not known: {text!r}") from None


def _utf8(value: object) -> object:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"must be valid UTF-8, not {value!r}") from None
    return value


_MAX_REPEATS = 10_000_000
FilePath = Annotated[Path, BeforeValidator(_path)]
Cores = Annotated[tuple[int, ...], BeforeValidator(_cores), Field(min_length=1)]
Repeats = Annotated[tuple[Annotated[int, Field(ge=0, le=_MAX_REPEATS)], ...], BeforeValidator(_repeats)]
Count = Annotated[int, Field(ge=1, le=MAX_REQUESTS)]
Batch = Annotated[int, Field(ge=1, le=65_536)]
Seconds = Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)]


class RunConfig(BaseModel):
    """All settings of a run. Raises ConfigError, one line naming the flag and what it allows, for anything else.

    `num_requests` None: as many as `prompts` or `plan` hold. Exactly one of `submit_interval_ms` (0: burst) and `rate`
    (requests per second) is set, none with `plan`. Cores are sorted CPU numbers, None: the default placement decides.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False, protected_namespaces=())

    # Load
    schedule: Literal["absolute", "relative"] = "absolute"
    submit_interval_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    num_requests: Count | None = None
    plan: FilePath | None = None
    pacer: Literal["auto", "python", "compiled"] = "auto"
    wait: Literal["auto", "sleep", "hybrid"] = "auto"
    # Prompts
    prompt: Annotated[str, BeforeValidator(_utf8)] = "Hello"
    prompt_repeats: Annotated[Repeats, Field(min_length=1)] = (32,)
    unique_prompts: bool = False
    prompts: FilePath | None = None
    pretok: bool = False
    tokenize_workers: int = Field(0, ge=0, le=1024)
    max_new_tokens: int = Field(4, ge=0, le=MAX_NEW_TOKENS)
    temperature: float = Field(0.0, ge=0, le=1000, allow_inf_nan=False)
    top_k: int = Field(0, ge=0, le=2**31 - 1)
    top_p: float = Field(1.0, gt=0, le=1, allow_inf_nan=False)
    seed: int = Field(0, ge=0, le=2**63 - 1)
    stop_on_eos: bool = True
    # Engine
    engine: Annotated[str, BeforeValidator(_engine)] = "native"
    model: Annotated[str, BeforeValidator(_utf8), BeforeValidator(_model)] = "builtin:gpt2"
    device: Annotated[str, BeforeValidator(_device)] = "cpu"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_batch_size: Batch = 16
    prefill_max_batch_size: Batch = 16
    prefix_cache: Literal[False] = False
    # Null engine
    null_hold_gil: bool = False
    null_service_ms: float = Field(0.0, ge=0, le=1e6, allow_inf_nan=False)
    null_service: Literal["sleep", "spin"] = "sleep"
    null_crash_at_step: Annotated[int, Field(ge=1, le=2**62)] | None = None
    null_hang_at_step: Annotated[int, Field(ge=1, le=2**62)] | None = None
    null_start_delay_s: float = Field(0.0, ge=0, le=1e6, allow_inf_nan=False)
    # Processes and cores
    engine_cores: Cores | None = None
    submitter_cores: Cores | None = None
    harness_cores: Cores | None = None
    collector_dir: FilePath = Path("/dev/shm")
    start_timeout_s: Seconds = 300.0
    stall_timeout_s: Seconds | None = None
    drain_timeout_s: Seconds | None = None
    # Runs
    warmup_runs: int = Field(1, ge=0, le=10_000)
    warmup_requests: Count = 8
    repeat_runs: int = Field(1, ge=1, le=10_000)
    # Output
    out: FilePath | None = None
    save_outputs: bool = False
    allow_invalid: bool = False
    quiet: bool = False

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(describe(error, type(self).model_fields)) from None

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("plan") is not None:
            return values
        filled = dict(values)
        if filled.get("submit_interval_ms") is None and filled.get("rate") is None:
            filled["submit_interval_ms"] = DEFAULT_INTERVAL_MS
        if filled.get("num_requests") is None and filled.get("prompts") is None:
            filled["num_requests"] = DEFAULT_NUM_REQUESTS
        return filled

    @model_validator(mode="after")
    def _check_together(self) -> RunConfig:
        for flags, reason in _CONFLICTS:
            given = [name for name in flags if self._given(name)]
            if len(given) == 2:
                raise ConfigError(f"{flag_of(given[0])} and {flag_of(given[1])} exclude each other: {reason}")
        if self.pretok and self.tokenize_workers:
            raise ConfigError("--tokenize-workers does nothing with --pretok: everything is tokenized before the run")
        self._check_engine_flags()
        allowed = allowed_cpus()
        for name in ("engine_cores", "submitter_cores", "harness_cores"):
            require_allowed(getattr(self, name) or (), allowed, flag_of(name))
        return self

    def _check_engine_flags(self) -> None:
        """No flag is accepted and ignored: null's flags need the null engine, a model's flags need a model."""
        null = self.engine == "null"
        for name in sorted(self.model_fields_set):
            if name.startswith("null_") and not null:
                raise ConfigError(f"{flag_of(name)} needs --engine null, the engine is {self.engine}")
            if null and name in _MODEL_ONLY and (name == "model" or self._given(name)):
                raise ConfigError(f"{flag_of(name)} means nothing with --engine null, which has no model")
        prefill = self.prefill_max_batch_size
        if null and "prefill_max_batch_size" in self.model_fields_set and prefill < self.max_batch_size:
            raise ConfigError("--prefill-max-batch-size below --max-batch-size means nothing with --engine null")

    def _given(self, name: str) -> bool:
        """Whether the user set this field to something that has an effect, or could have."""
        value = getattr(self, name)
        if name in _MODEL_ONLY or isinstance(value, bool):
            return bool(value != type(self).model_fields[name].default)
        return name in self.model_fields_set and value is not None


#: Flags that ask a model for something; with --engine null their defaults state what is so, other values do not.
_MODEL_ONLY = ("model", "device", "dtype", "temperature", "top_k", "top_p")

_BY_PLAN = "the plan file decides the load"
_BY_FILE = "the prompts come from the file"
_CONFLICTS: tuple[tuple[tuple[str, str], str], ...] = (
    (("rate", "submit_interval_ms"), "both set the time between requests"),
    *((("plan", name), _BY_PLAN) for name in (
        "rate", "submit_interval_ms", "num_requests", "prompts", "prompt", "prompt_repeats", "unique_prompts",
        "max_new_tokens", "pretok",
    )),
    *((("prompts", name), _BY_FILE) for name in ("prompt", "prompt_repeats", "unique_prompts")),
)  # fmt: skip
