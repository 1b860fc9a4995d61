"""`RunConfig`: what a run was asked to do, checked once and never changed. Flags map to its fields one to one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.common.errors import ConfigError
from harness.common.limits import MAX_NEW_TOKENS, MAX_SUBMITTERS
from harness.config.arrival_flags import DECIDED_BY_PLAN as ARRIVALS_BY_PLAN
from harness.config.arrival_flags import check_arrival_flags, implied_arrival
from harness.config.engine_flags import MODEL_ONLY, check_engine_flags
from harness.config.errors import describe, flag_of
from harness.config.prompt_flags import CONSTRUCTION, check_prompt_flags
from harness.config.prompt_flags import DECIDED_BY_PLAN as PROMPTS_BY_PLAN
from harness.config.topology import Topology, check_topology_flags
from harness.config.trace_flags import check_trace_flags
from harness.config.values import (
    Batch,
    Cores,
    Count,
    DeviceName,
    Duration,
    EngineName,
    Factor,
    FilePath,
    Labels,
    LengthText,
    LimitsFile,
    Memory,
    ModelName,
    Rate,
    Repeats,
    Seconds,
    Seed,
    Slos,
    StopIds,
    StopStrings,
    Text,
    ThinkTime,
    Toggle,
    Tokens,
    Turns,
    Window,
)
from harness.host.cores import allowed_cpus, require_allowed

DEFAULT_INTERVAL_MS = 350.0  # about half of one core for the default engine (measured: 180 ms a request)
DEFAULT_NUM_REQUESTS = 64


class RunConfig(BaseModel):
    """All settings of a run. Raises ConfigError, one line naming the flag and what it allows, for anything else.

    `num_requests` None: as many as `prompts`, `dataset` or `plan` hold, or as fit `duration_s` or the steps of `rate`.
    Exactly one of `submit_interval_ms` (0: burst), `rate` (requests per second; text: a ramp or steps,
    `harness.config.rate_text`) and `think_time` (ms as text; closed loop) is set, none with `plan` or `trace`.
    `max_concurrency`: users of a closed loop, else the most requests in flight. `trace_window` is in seconds into the
    trace, its end None where it has none. Seeds that are None are `seed`; `harness.plan.seeds` keeps what they seed
    apart. Cores are sorted CPU numbers, None: the default placement decides. Settings of the engine that are None are
    the engine's to choose (`harness.session.child_specs`); `kv_memory` is in bytes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False, protected_namespaces=())

    # Load
    schedule: Literal["absolute", "relative"] = "absolute"
    arrival: Literal["constant", "poisson", "gamma", "weibull", "mmpp", "ramp", "steps", "sine", "burst"] = "constant"
    submit_interval_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    rate: Rate | None = None
    max_concurrency: Count | None = None
    think_time: ThinkTime | None = None
    num_requests: Count | None = None
    duration_s: Duration | None = None
    spacing: Literal["even", "poisson"] | None = None
    burstiness: Annotated[float, Field(ge=0.01)] | None = None
    weibull_shape: Annotated[float, Field(ge=0.1, le=1000, allow_inf_nan=False)] | None = None
    mmpp_on_s: Annotated[float, Field(ge=0.001, le=1e6, allow_inf_nan=False)] | None = None
    mmpp_off_s: Annotated[float, Field(ge=0.001, le=1e6, allow_inf_nan=False)] | None = None
    mmpp_off_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    sine_amplitude: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    sine_period_s: Annotated[float, Field(ge=0.001, le=1e7, allow_inf_nan=False)] | None = None
    plan: FilePath | None = None
    pacer: Literal["auto", "python", "compiled"] = "auto"
    wait: Literal["auto", "sleep", "hybrid", "spin"] = "auto"
    payload: Literal["inline", "index"] = "inline"
    # Traces
    trace: FilePath | None = None
    trace_format: Text | None = None
    trace_unit: Literal["s", "ms", "us", "ns"] | None = None
    trace_window: Window | None = None
    trace_speed: Factor | None = None
    trace_limit: Count | None = None
    trace_empty: Literal["keep", "skip"] | None = None
    trace_block_size: Tokens | None = None
    trace_multiplier: Factor | None = None
    trace_labels: Labels | None = None
    sort: bool = False
    lengths: Literal["keep", "scale", "clip", "skip"] | None = None
    max_model_len: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    # Prompts
    prompt: Text = "Hello"
    prompt_repeats: Annotated[Repeats, Field(min_length=1)] = (32,)
    unique_prompts: bool = False
    prompts: FilePath | None = None
    prompt_kind: Literal["repeat", "random", "corpus", "dataset"] | None = None
    corpus: FilePath | None = None
    prefix_groups: Count | None = None
    prefix_len: Tokens | None = None
    dataset: FilePath | None = None
    dataset_format: Literal["auto", "sharegpt", "spec_bench", "humaneval", "gsm8k", "jsonl", "csv", "parquet"] = "auto"
    prompt_field: Text | None = None
    output_field: Text | None = None
    turns: Turns = 1
    session_think_ms: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None
    input_len: LengthText | None = None
    output_len: LengthText | None = None
    pretok: bool = False
    tokenize_workers: int = Field(0, ge=0, le=1024)
    max_new_tokens: int = Field(4, ge=0, le=MAX_NEW_TOKENS)
    temperature: float = Field(0.0, ge=0, le=1000, allow_inf_nan=False)
    top_k: int = Field(0, ge=0, le=2**31 - 1)
    top_p: float = Field(1.0, gt=0, le=1, allow_inf_nan=False)
    min_p: float = Field(0.0, ge=0, le=1, allow_inf_nan=False)
    seed: int = Field(0, ge=0, le=2**63 - 1)
    arrival_seed: Seed | None = None
    prompt_seed: Seed | None = None
    length_seed: Seed | None = None
    stop_on_eos: bool = True
    stop_ids: StopIds = ()
    stop: StopStrings = ()
    abort_after_ms: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] | None = None
    # Engine
    engine: EngineName = "native"
    model: ModelName = "builtin:gpt2"
    device: DeviceName = "cpu"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_batch_size: Batch = 16
    prefill_max_batch_size: Batch = 16
    prefill_max_tokens: Tokens | None = None
    chunked_prefill: Toggle = None
    scheduling: Literal["prefill_first", "decode_first"] | None = None
    block_size: Annotated[int, Field(ge=1, le=4096)] | None = None
    kv_blocks: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    kv_memory: Memory = None
    prefix_cache: Toggle = None
    paged_attn: Toggle = None
    cuda_graph: Toggle = None
    compile: Toggle = None
    overlap: Toggle = None
    nvtx: Toggle = None
    torch_threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    # How the engine's process runs Python
    switch_interval_ms: Annotated[float, Field(ge=0.001, le=10_000, allow_inf_nan=False)] | None = None
    ingress: Literal["thread", "polled"] = "thread"
    gc: Literal["freeze", "on", "off"] = "freeze"
    tokenize_call: Literal["encode", "encode_batch"] = "encode"
    # Null engine
    null_hold_gil: bool = False
    null_service_ms: float = Field(0.0, ge=0, le=1e6, allow_inf_nan=False)
    null_service: Literal["sleep", "spin", "ideal"] = "sleep"
    null_crash_at_step: Annotated[int, Field(ge=1, le=2**62)] | None = None
    null_hang_at_step: Annotated[int, Field(ge=1, le=2**62)] | None = None
    null_start_delay_s: float = Field(0.0, ge=0, le=1e6, allow_inf_nan=False)
    # Processes and cores
    engine_cores: Cores | None = None
    topology: Topology = "separate"
    submitter_cores: Cores | None = None
    harness_cores: Cores | None = None
    io_cores: Cores | None = None
    probes: Toggle = True
    rt: bool = False
    mlock: bool = False
    hold_cpu_latency: bool = False
    submitters: int = Field(1, ge=1, le=MAX_SUBMITTERS)
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
    verbose: bool = False
    limits: LimitsFile | None = None
    slo: Slos = ()

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(describe(error, type(self).model_fields)) from None

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, values: Any) -> Any:
        if not isinstance(values, dict) or any(values.get(name) is not None for name in ("plan", "trace")):
            return values
        filled = dict(values)
        closed = filled.get("think_time") is not None
        if filled.get("arrival") is None and not closed:
            filled["arrival"] = implied_arrival(filled) or "constant"
        arrival = filled.get("arrival")
        timed = closed or arrival in ("ramp", "steps")
        if filled.get("submit_interval_ms") is None and filled.get("rate") is None and not timed:
            filled["submit_interval_ms"] = 0.0 if arrival == "burst" else DEFAULT_INTERVAL_MS
        ends = filled.get("duration_s") is not None or arrival == "steps"
        from_file = filled.get("prompts") is not None or filled.get("dataset") is not None
        if filled.get("num_requests") is None and not from_file and not ends:
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
        if self.schedule == "relative" and (self.max_concurrency or self.think_time):
            name = "max_concurrency" if self.max_concurrency else "think_time"
            raise ConfigError(f"{flag_of(name)} and --schedule relative exclude each other: {_OPEN_ONLY}")
        if self.plan is self.trace is self.think_time is None:
            check_arrival_flags(self)
        check_trace_flags(self)
        if self.submitters > 1 and (self.max_concurrency or self.think_time):
            name = "max_concurrency" if self.max_concurrency else "think_time"
            raise ConfigError(f"{flag_of(name)} and --submitters exclude each other: one submitter sees all ends")
        if self.submitters > 1 and self.schedule == "relative":
            raise ConfigError(
                "--submitters: a relative schedule waits for one's own previous send call, so it has one submitter"
            )
        check_topology_flags(self)
        check_engine_flags(self)
        check_prompt_flags(self)
        allowed = allowed_cpus()
        for name in ("engine_cores", "submitter_cores", "harness_cores", "io_cores"):
            require_allowed(getattr(self, name) or (), allowed, flag_of(name))
        return self

    def _given(self, name: str) -> bool:
        """Whether the user set this field to something that has an effect, or could have."""
        value = getattr(self, name)
        if name in MODEL_ONLY or isinstance(value, bool):
            return bool(value != type(self).model_fields[name].default)
        return name in self.model_fields_set and value is not None


_BY_PLAN = "the plan file decides the load"
_OPEN_ONLY = "the relative clock runs from send to send, whatever has ended"
_BY_ENDS = "in a closed loop a request is due when an earlier one has ended"
_BY_TRACE = "the trace decides the load"
_BY_FILE = "the prompts come from the file"
_CONFLICTS: tuple[tuple[tuple[str, str], str], ...] = (
    (("rate", "submit_interval_ms"), "both set the time between requests"),
    (("output_len", "max_new_tokens"), "both set the tokens to generate"),
    *((("think_time", name), _BY_ENDS) for name in ("rate", "submit_interval_ms", "turns", *ARRIVALS_BY_PLAN)),
    (("kv_blocks", "kv_memory"), "both set the size of the KV cache"),
    *((("plan", name), _BY_PLAN) for name in (
        "rate", "submit_interval_ms", "think_time", "num_requests", "prompts", "max_new_tokens", "pretok",
        *CONSTRUCTION, *ARRIVALS_BY_PLAN, *PROMPTS_BY_PLAN,
    )),
    *((("prompts", name), _BY_FILE) for name in CONSTRUCTION),
    (("trace_unit", "trace_multiplier"), "both say what a stamp's 1 is"),
    *((("trace", name), _BY_TRACE) for name in (
        "plan", "rate", "submit_interval_ms", "think_time", "num_requests", "prompts", "max_new_tokens", *CONSTRUCTION,
        *ARRIVALS_BY_PLAN, *(name for name in PROMPTS_BY_PLAN if name != "prompt_seed"),
    )),
)  # fmt: skip
