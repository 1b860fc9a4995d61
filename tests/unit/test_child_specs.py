"""What the children are told: the user's settings, and the engine's defaults where there are none."""

from __future__ import annotations

import pytest

from harness.child_specs import engine_options, engine_spec, sampling_of, submitter_spec
from harness.common.protocol import Sampling
from harness.common.specs import EngineOptions
from harness.config import RunConfig
from harness.cores import Placement

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


def test_the_submitter_is_told_all_of_the_sampling() -> None:
    config = RunConfig(temperature=0.5, top_k=3, top_p=0.9, seed=4, stop_on_eos=False, min_p=0.1, stop_ids=5, stop="x")
    sampling = Sampling(0.5, 3, 0.9, 4, False, 0.1, (5,), ("x",))
    assert sampling_of(config) == sampling
    assert Sampling.from_fields(submitter_spec(config, PLACEMENT).sampling) == sampling
