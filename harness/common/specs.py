"""What the harness tells each child at start: frozen, sent as plain values over the control channel."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from harness.common.errors import ProtocolError

SpecT = TypeVar("SpecT", bound="Spec")


@dataclass(frozen=True, slots=True)
class Spec:
    """Base of the child specifications: to and from a plain dict."""

    def to_body(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_body(cls: type[SpecT], body: dict[str, Any]) -> SpecT:
        """Raises ProtocolError for a body that does not fit."""
        names = {item.name for item in fields(cls)}
        if set(body) != names:
            raise ProtocolError(f"{cls.__name__} with fields {sorted(set(body) ^ names)}")
        return cls(**body)


@dataclass(frozen=True, slots=True)
class NullSpec(Spec):
    """Script of the null engine. service_ns: time one batch takes; spin: hold the GIL for it instead of sleeping.

    ideal: sleep, and keep the schedule of a server without overhead (`engine_proc.backends.null`).
    """

    service_ns: int = 0
    spin: bool = False
    ideal: bool = False
    hold_gil: bool = False
    crash_at_step: int = 0
    hang_at_step: int = 0
    start_delay_ns: int = 0


@dataclass(frozen=True, slots=True)
class EngineOptions(Spec):
    """Sizes, policies and switchable parts of an engine with a model. None: the engine decides. kv_memory: bytes.

    The names are those of the native backend's arguments; chunked: cut prompts longer than a step; policy:
    "prefill_first" | "decode_first".
    """

    block_size: int | None = None
    kv_blocks: int | None = None
    kv_memory: int | None = None
    prefix_cache: bool = True
    prefill_max_tokens: int | None = None
    chunked: bool = True
    policy: str = "prefill_first"
    paged_attn: bool = True
    cuda_graph: bool = False
    compile: bool = False
    overlap: bool = False
    nvtx: bool = False
    torch_threads: int | None = None

    def chosen(self) -> dict[str, Any]:
        """What does not leave the choice to the engine, by name."""
        return {name: value for name, value in self.to_body().items() if value is not None}


@dataclass(frozen=True, slots=True)
class ProcessOptions(Spec):
    """How the engine's process runs Python, whatever the engine. switch_interval_ns: 0 leaves Python's own (5 ms).

    ingress: "thread", or "polled" by the step loop between steps. gc: "freeze" (what is there at READY is never looked
    at again), "on" (as Python has it), "off" (frozen, and none from then on). tokenize_call: "encode" | "encode_batch".
    """

    switch_interval_ns: int = 0
    ingress: str = "thread"
    gc: str = "freeze"
    tokenize_call: str = "encode"
    probes: bool = True
    mlock: bool = False
    io_cores: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EngineSpec(Spec):
    """What the engine process needs before the plan is known.

    options, null, process: bodies of EngineOptions, NullSpec and ProcessOptions. submits: "absolute" or "relative" for
    a thread of the engine's process that submits by that clock; empty: processes of their own do.
    """

    engine: str
    model: str
    device: str
    dtype: str
    max_batch_size: int
    prefill_max_batch_size: int
    tokenize_workers: int
    pretok: bool
    cores: list[int]
    wire: str  # "auto" | "compiled" | "python"
    null: dict[str, Any]
    options: dict[str, Any]
    process: dict[str, Any]
    submits: str = ""


@dataclass(frozen=True, slots=True)
class SubmitterSpec(Spec):
    """What a submitter process needs before the plan is known. pacer, wait: as the user asked.

    It sends requests shard, shard + shards, shard + 2 * shards ... of the plan.

    max_concurrency: most requests in flight, 0: no cap.
    rt: the pacer under SCHED_FIFO while it paces. io_cores: of libzmq's I/O thread; empty: the second of `cores`.
    """

    pacer: str
    wait: str
    relative: bool
    cores: list[int]
    own_core: bool
    sampling: list[Any]
    max_concurrency: int
    probes: bool = True
    rt: bool = False
    mlock: bool = False
    io_cores: list[int] = field(default_factory=list)
    shard: int = 0
    shards: int = 1


@dataclass(frozen=True, slots=True)
class Preparation(Spec):
    """What all need once the plan is fixed. Frames: largest request and result message in bytes.

    indexed: row numbers travel and the engine reads the requests from the plan. sampling: fields of a Sampling.
    """

    collector: str
    plan: str
    data_endpoint: str
    results_endpoint: str
    request_frame_bytes: int
    result_frame_bytes: int
    indexed: bool = False
    sampling: list[Any] = field(default_factory=list)
