"""What the children are told: the user's settings, and the engine's defaults where there are none."""

from __future__ import annotations

import os

import pytest

from harness.common.protocol import Sampling
from harness.common.specs import EngineOptions, ProcessOptions
from harness.config.run_config import RunConfig
from harness.host.cores import Placement
from harness.session.child_specs import engine_options, engine_spec, sampling_of, submitter_spec

PLACEMENT = Placement(engine=(0,), submitter=(1,), harness=(1,), asked_overlap=False, shares=(), note="")


def test_a_setting_that_nobody_made_is_the_engine_s_default() -> None:
    assert engine_options(RunConfig()) == EngineOptions()
    assert engine_options(RunConfig()).prefix_cache is True


def test_a_setting_that_was_made_is_passed_on() -> None:
    config = RunConfig(
        block_size=8, kv_memory=1000, prefix_cache="off", prefill_max_tokens=64, chunked_prefill="off",
        scheduling="decode_first", paged_attn="off", compile="on",
    )  # fmt: skip
    assert engine_options(config) == EngineOptions(
        block_size=8, kv_memory=1000, prefix_cache=False, prefill_max_tokens=64, chunked=False, policy="decode_first",
        paged_attn=False, compile=True,
    )  # fmt: skip


@pytest.mark.parametrize(("device", "overlaps"), [("cpu", False), ("cuda", True), ("cuda:1", True)])
def test_steps_overlap_where_there_is_a_device_to_wait_for(device: str, overlaps: bool) -> None:
    assert engine_options(RunConfig(device=device)).overlap is overlaps
    assert engine_options(RunConfig(device=device, overlap="off")).overlap is False


def test_what_is_left_to_the_engine_is_not_among_what_was_chosen() -> None:
    chosen = EngineOptions(kv_blocks=5).chosen()
    assert chosen["kv_blocks"] == 5 and chosen["prefix_cache"] is True
    assert not {"block_size", "kv_memory", "prefill_max_tokens"} & chosen.keys()


def test_the_engine_s_specification_carries_its_options() -> None:
    spec = engine_spec(RunConfig(block_size=8), (0,))
    assert EngineOptions.from_body(spec.options).block_size == 8


def test_how_the_engine_s_process_runs_is_passed_on() -> None:
    core = min(os.sched_getaffinity(0))
    config = RunConfig(
        switch_interval_ms=0.5, ingress="polled", gc="off", tokenize_call="encode_batch", probes="off", mlock=True,
        io_cores=[core], torch_threads=3,
    )  # fmt: skip
    asked = ProcessOptions(500_000, "polled", "off", "encode_batch", False, True, [core])
    assert ProcessOptions.from_body(engine_spec(config, (0,)).process) == asked
    assert engine_options(config).torch_threads == 3
    assert ProcessOptions.from_body(engine_spec(RunConfig(), (0,)).process) == ProcessOptions()
    assert engine_options(RunConfig()).torch_threads is None


def test_priority_and_isolation_reach_the_submitter_only_where_they_were_asked_for() -> None:
    plain = submitter_spec(RunConfig(), PLACEMENT)
    assert (plain.rt, plain.mlock, plain.io_cores, plain.probes) == (False, False, [], True)
    core = min(os.sched_getaffinity(0))
    asked = submitter_spec(RunConfig(rt=True, mlock=True, io_cores=[core], probes="off"), PLACEMENT)
    assert (asked.rt, asked.mlock, asked.io_cores, asked.probes) == (True, True, [core], False)


def test_the_submitter_is_told_all_of_the_sampling() -> None:
    config = RunConfig(temperature=0.5, top_k=3, top_p=0.9, seed=4, stop_on_eos=False, min_p=0.1, stop_ids=5, stop="x")
    sampling = Sampling(0.5, 3, 0.9, 4, False, 0.1, (5,), ("x",))
    assert sampling_of(config) == sampling
    assert Sampling.from_fields(submitter_spec(config, PLACEMENT).sampling) == sampling
