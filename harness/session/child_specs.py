"""What each child is told: from the user's settings to their specifications, with the defaults of engine parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.common.protocol import Sampling
from harness.common.specs import EngineOptions, EngineSpec, NullSpec, ProcessOptions, SubmitterSpec
from harness.config.run_config import RunConfig
from harness.host.cores import Placement
from harness.plan.closed_loop import cap_of


def engine_spec(config: RunConfig, cores: tuple[int, ...], threads: int | None = None) -> EngineSpec:
    """What the engine is told. threads: what torch computes with on a CPU unless the user says; None: one a core."""
    at_most = threads if config.device == "cpu" else None
    null = NullSpec(
        service_ns=round(config.null_service_ms * 1e6),
        spin=config.null_service == "spin",
        ideal=config.null_service == "ideal",
        hold_gil=config.null_hold_gil,
        crash_at_step=config.null_crash_at_step or 0,
        hang_at_step=config.null_hang_at_step or 0,
        start_delay_ns=round(config.null_start_delay_s * 1e9),
    )
    return EngineSpec(
        engine=config.engine,
        model=config.model,
        device=config.device,
        dtype=config.dtype,
        max_batch_size=config.max_batch_size,
        prefill_max_batch_size=config.prefill_max_batch_size,
        tokenize_workers=config.tokenize_workers,
        pretok=config.pretok,
        cores=list(cores),
        wire="python" if config.pacer == "python" else "auto",
        null=null.to_body(),
        options=replace(engine_options(config), torch_threads=config.torch_threads or at_most).to_body(),
        process=process_options(config).to_body(),
        submits=config.schedule if config.topology == "inproc" else "",
    )


def process_options(config: RunConfig) -> ProcessOptions:
    """How the engine's process runs Python."""
    return ProcessOptions(
        switch_interval_ns=round((config.switch_interval_ms or 0) * 1e6),
        ingress=config.ingress,
        gc=config.gc,
        tokenize_call=config.tokenize_call,
        probes=bool(config.probes),
        mlock=config.mlock,
        io_cores=list(config.io_cores or ()),
    )


def engine_options(config: RunConfig) -> EngineOptions:
    """What was asked of the engine's parts; what was not asked for is as in EngineOptions, overlap as the device."""
    asked: dict[str, Any] = {
        "block_size": config.block_size,
        "kv_blocks": config.kv_blocks,
        "kv_memory": config.kv_memory,
        "prefix_cache": config.prefix_cache,
        "prefill_max_tokens": config.prefill_max_tokens,
        "chunked": config.chunked_prefill,
        "policy": config.scheduling,
        "paged_attn": config.paged_attn,
        "cuda_graph": config.cuda_graph,
        "compile": config.compile,
        "overlap": config.device != "cpu" if config.overlap is None else config.overlap,
        "nvtx": config.nvtx,
        "torch_threads": config.torch_threads,
    }
    return EngineOptions(**{name: value for name, value in asked.items() if value is not None})


def sampling_of(config: RunConfig) -> Sampling:
    """How the requests of a run draw and stop; request i draws with seed `seed + i`."""
    return Sampling(
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        seed=config.seed,
        stop_on_eos=config.stop_on_eos,
        min_p=config.min_p,
        stop_ids=config.stop_ids,
        stop=config.stop,
    )


def submitter_spec(config: RunConfig, placement: Placement, shard: int = 0) -> SubmitterSpec:
    """What submitter `shard` is told. Only one with cores that no other pacer and no engine uses may spin."""
    shards = placement.shards
    return SubmitterSpec(
        pacer=config.pacer,
        wait=config.wait,
        relative=config.schedule == "relative",
        cores=list(shards[shard]),
        own_core=placement.has_own_core(shard),
        sampling=list(sampling_of(config)),
        max_concurrency=cap_of(config) or 0,
        probes=bool(config.probes) and shard == 0,  # its ring has one writer
        rt=config.rt,
        mlock=config.mlock,
        io_cores=list(config.io_cores or ()),
        shard=shard,
        shards=len(shards),
    )
