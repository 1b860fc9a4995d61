"""RunConfig: every bound has an error that names the flag and what it allows; nothing is accepted and ignored."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from engine_proc.models import source
from harness.cli.options import GROUPS
from harness.common.errors import ConfigError
from harness.config.engine_flags import CACHE_ONLY, CUDA_ONLY, PARTS
from harness.config.errors import flag_of
from harness.config.run_config import RunConfig
from harness.config.values import BUILTIN_MODELS


def refused(**values: Any) -> str:
    """The one line that these settings are refused with."""
    with pytest.raises(ConfigError) as caught:
        RunConfig(**values)
    line = str(caught.value)
    assert "\n" not in line
    return line


#: What is no length, and what the message must hold.
BAD_LENGTHS: list[tuple[Any, str]] = [
    ("", "uniform:A:B"), ("x", "uniform:A:B"), ("-1", "uniform:A:B"), ("1.5", "uniform:A:B"), ("nan", "uniform:A:B"),
    (0, "from 1 to"), ("0", "from 1 to"), ("1000001", "from 1 to"), ("9" * 5000, "uniform:A:B"),
    ("uniform:1", "uniform:A:B"), ("uniform:0:5", "from 1 to"), ("uniform:5:4", "A <= B"), ("uniform:1.5:4", "whole"),
    ("uniform:1:2:3:4", "uniform:A:B"), ("normal:1", "normal:M:S"), ("normal:0:5", "mean"),
    ("normal:5:-1", "normal:M:S"), ("normal:5:1:9:2", "MIN above"), ("normal:5:1:0:2", "from 1 to"),
    ("normal:5:1:1.5:2", "whole"), ("lognormal:0.5:5", "mean"),
    ("lognormal:inf:5", "lognormal:M:S"), ("zipf:1", "above 1"), ("zipf:", "zipf:A"),
    ("file:", "file:PATH"), ("poisson:5", "file:PATH"), ("\udcff", "UTF-8"),
]  # fmt: skip
#: A value beyond each bound, and what the message must hold beside the flag.
BEYOND: list[tuple[str, Any, str]] = [
    ("schedule", "later", "'absolute' or 'relative'"),
    ("submit_interval_ms", -1, ">= 0"),
    ("submit_interval_ms", "nan", "finite"),
    ("submit_interval_ms", "inf", "finite"),
    ("rate", 0, "> 0"),
    ("rate", -3, "> 0"),
    ("rate", "nan", "finite"),
    ("rate", "inf", "finite"),
    ("rate", "fast", "number"),
    ("rate", "1:", "START:END"),
    ("rate", "0:0", "> 0"),
    ("rate", "-1:5", "START:END"),
    ("rate", "1:1e99", "START:END"),
    ("rate", "5x", "RATExSECONDS"),
    ("rate", "5x30s,", "RATExSECONDS"),
    ("rate", "5x0s", "> 0 s"),
    ("rate", "0x30s", "> 0"),
    ("rate", "1x9000h", "366 days"),
    ("arrival", "poison", "'poisson'"),
    ("duration_s", 0, "> 0"),
    ("duration_s", "nan", "finite"),
    ("duration_s", "5 parsecs", "number"),
    ("duration_s", 10**9, "<="),
    ("spacing", "odd", "'even'"),
    ("burstiness", 0, ">="),
    ("burstiness", "nan", ">="),
    ("weibull_shape", 0, "from 0.1 to"),
    ("mmpp_on_s", 0, "from 0.001 to"),
    ("mmpp_off_s", "inf", "finite"),
    ("mmpp_off_rate", -1, ">= 0"),
    ("sine_amplitude", 1.5, "from 0 to 1"),
    ("sine_period_s", 0, "from 0.001 to"),
    ("arrival_seed", -1, "from 0 to"),
    ("prompt_seed", 2**63, "from 0 to"),
    ("length_seed", "x", "integer"),
    ("max_concurrency", 0, "from 1 to"),
    ("max_concurrency", "1.5", "integer"),
    ("max_concurrency", 10**12, "from 1 to"),
    ("think_time", "-1", "number of ms"),
    ("think_time", "nan", "number of ms"),
    ("think_time", "exp:", "number of ms"),
    ("think_time", "gauss:5", "number of ms"),
    ("think_time", "9" * 13, "number of ms"),
    ("num_requests", 0, "from 1 to"),
    ("num_requests", -1, "from 1 to"),
    ("num_requests", "1.5", "integer"),
    ("num_requests", 10**12, "from 1 to"),
    ("num_requests", "9" * 5000, "from 1 to"),
    ("pacer", "rust", "'python'"),
    ("payload", "pickle", "'inline' or 'index'"),
    ("wait", "busy", "'hybrid'"),
    ("prompt_repeats", "", "from 0 to"),
    ("prompt_repeats", "1,,2", "from 0 to"),
    ("prompt_repeats", "3,-1", "from 0 to"),
    ("prompt_repeats", -1, "from 0 to"),
    ("prompt_repeats", 10**9, "from 0 to"),
    ("tokenize_workers", -1, "from 0 to"),
    ("tokenize_workers", 10**6, "from 0 to"),
    ("max_new_tokens", -1, "from 0 to"),
    ("max_new_tokens", 10**9, "from 0 to"),
    ("temperature", -0.1, "from 0 to"),
    ("temperature", "nan", "finite"),
    ("top_k", -1, "from 0 to"),
    ("top_p", 0, "> 0 and <= 1"),
    ("top_p", 1.01, "<= 1"),
    ("min_p", -0.1, "from 0 to 1"),
    ("min_p", 1.5, "from 0 to 1"),
    ("min_p", "nan", "finite"),
    ("stop_ids", "", "token id"),
    ("stop_ids", "1,x", "token id"),
    ("stop_ids", "-3", "token id"),
    ("stop_ids", -3, "from 0 to"),
    ("stop_ids", 2**31, "from 0 to"),
    ("slo", "ttft=5", "must be like"),
    ("slo", "itl=5ms", "knows ttft"),
    ("stop", "", "from 1 to 1000"),
    ("stop", ["a", ""], "from 1 to 1000"),
    ("stop", "x" * 1001, "from 1 to 1000"),
    ("stop", ["x"] * 17, "at most 16 times"),
    ("stop", "\udcff", "UTF-8"),
    ("abort_after_ms", 0, "> 0"),
    ("abort_after_ms", -1, "> 0"),
    ("abort_after_ms", "inf", "finite"),
    ("seed", -1, "from 0 to"),
    ("seed", 2**63, "from 0 to"),
    ("engine", "vllm", "native, null"),
    ("engine", "", "native, null"),
    ("engine", "module:", "module:factory"),
    ("model", "builtin:nope", "builtin:gpt2"),
    ("model", "/no/such/folder", "folder"),
    ("model", "", "hub id"),
    ("device", "tpu", "cuda:N"),
    ("device", "cuda:-1", "cuda:N"),
    ("dtype", "int8", "'bfloat16'"),
    ("max_batch_size", 0, "from 1 to"),
    ("prefill_max_batch_size", 0, "from 1 to"),
    ("prefill_max_tokens", 0, "from 1 to"),
    ("prefill_max_tokens", 10**9, "from 1 to"),
    ("scheduling", "random", "'decode_first'"),
    ("block_size", 0, "from 1 to"),
    ("block_size", 10**6, "from 1 to"),
    ("kv_blocks", 0, "from 1 to"),
    ("kv_blocks", -1, "from 1 to"),
    ("kv_memory", "", "2GiB"),
    ("kv_memory", "much", "2GiB"),
    ("kv_memory", "-1GB", "2GiB"),
    ("kv_memory", "nan", "2GiB"),
    ("kv_memory", "2PB", "2GiB"),
    ("kv_memory", 0, "from 1 byte"),
    ("kv_memory", "0GB", "from 1 byte"),
    ("kv_memory", "1025TiB", "1024TiB"),
    *((part, value, "on or off") for part in PARTS for value in ("yes", "", "1")),
    ("engine_cores", "0-", "list of cores"),
    ("engine_cores", "60000", "not among those"),
    ("submitter_cores", "60000", "not among those"),
    ("harness_cores", "60000", "not among those"),
    ("io_cores", "60000", "not among those"),
    ("torch_threads", 0, "from 1 to"),
    ("torch_threads", 10**6, "from 1 to"),
    ("switch_interval_ms", 0, "from 0.001 to"),
    ("switch_interval_ms", 1e9, "from 0.001 to"),
    ("switch_interval_ms", "nan", "finite"),
    ("topology", "both", "'separate' or 'inproc'"),
    ("ingress", "process", "'polled'"),
    ("gc", "never", "'freeze'"),
    ("tokenize_call", "decode", "'encode_batch'"),
    ("probes", "some", "on or off"),
    ("submitters", 0, "from 1 to 64"),
    ("submitters", 65, "from 1 to 64"),
    ("collector_dir", "", "empty"),
    ("start_timeout_s", 0, "> 0"),
    ("start_timeout_s", "inf", "finite"),
    ("stall_timeout_s", 0, "> 0"),
    ("drain_timeout_s", -1, "> 0"),
    ("warmup_runs", -1, "from 0 to"),
    ("warmup_requests", 0, "from 1 to"),
    ("repeat_runs", 0, "from 1 to"),
    ("out", "", "empty"),
    ("trace", "", "empty"),
    ("trace_format", "\udcff", "UTF-8"),
    ("trace_unit", "minutes", "'ms'"),
    *(("trace_window", value, "A:B") for value in ("", ":", "5", "5:5", "6:5", "-1:5", "a:b", "nan:")),
    ("trace_speed", 0, "> 0"),
    ("trace_speed", "-1", "> 0"),
    ("trace_speed", "nan", "finite"),
    ("trace_speed", "inf", "finite"),
    ("trace_speed", "fast", "> 0"),
    ("trace_limit", 0, "from 1 to"),
    ("trace_empty", "drop", "'skip'"),
    ("trace_block_size", 0, "from 1 to"),
    ("trace_multiplier", 0, "> 0"),
    *(("trace_labels", value, "NAME=FIELD") for value in ("", "a=b", "timestamp=", "timestamp=a,timestamp=b")),
    ("lengths", "cut", "'clip'"),
    ("max_model_len", 0, "from 1 to"),
    ("prompts", "", "empty"),
    ("prompt_kind", "poem", "'random'"),
    ("prompt_seed", -1, "from 0 to"),
    ("dataset", "", "empty"),
    ("dataset_format", "alpaca", "'gsm8k'"),
    ("prompt_field", "\udcff", "UTF-8"),
    ("output_field", "\udcff", "UTF-8"),
    *(("turns", value, "all or an integer from 1") for value in ("", "0", -1, "1.5", "9" * 500, True, "some")),
    ("session_think_ms", -1, "from 0 to"),
    ("session_think_ms", "nan", "finite"),
    ("length_seed", 2**63, "from 0 to"),
    ("corpus", "", "empty"),
    ("prefix_groups", 0, "from 1 to"),
    ("prefix_len", 0, "from 1 to"),
    *((flag, value, allowed) for flag in ("input_len", "output_len") for value, allowed in BAD_LENGTHS),
    ("plan", "", "empty"),
    ("limits", "", "empty"),
    ("prompt", "\udcff", "UTF-8"),
    ("out", "\udcff", "UTF-8"),
]
BEYOND_NULL: list[tuple[str, Any, str]] = [
    ("null_service_ms", -1, "from 0 to"),
    ("null_service_ms", "nan", "finite"),
    ("null_service", "nap", "'ideal'"),
    ("null_crash_at_step", 0, "from 1 to"),
    ("null_hang_at_step", 0, "from 1 to"),
    ("null_start_delay_s", -1, "from 0 to"),
]


@pytest.mark.parametrize(("field", "value", "allowed"), BEYOND)
def test_a_value_beyond_a_bound_names_the_flag_and_the_range(field: str, value: Any, allowed: str) -> None:
    line = refused(**{field: value})
    assert line.startswith(flag_of(field)) and allowed in line


@pytest.mark.parametrize(("field", "value", "allowed"), BEYOND_NULL)
def test_a_null_engine_value_beyond_a_bound_names_the_flag_and_the_range(field: str, value: Any, allowed: str) -> None:
    line = refused(engine="null", **{field: value})
    assert line.startswith(flag_of(field)) and allowed in line


def test_every_field_with_a_bound_is_in_the_tables_above() -> None:
    unbounded = {"unique_prompts", "pretok", "stop_on_eos", "null_hold_gil", "save_outputs", "allow_invalid", "quiet",
                 "rt", "mlock", "hold_cpu_latency", "sort", "verbose"}  # fmt: skip
    assert {name for name, _, _ in BEYOND + BEYOND_NULL} | unbounded == set(RunConfig.model_fields)


def test_every_field_has_exactly_one_flag_on_the_command_line() -> None:
    fields = [option.field for options in GROUPS.values() for option in options]
    assert sorted(fields) == sorted(RunConfig.model_fields)


def test_the_flag_that_errors_name_is_one_that_the_command_line_knows() -> None:
    options = {option.field: option.spellings for options in GROUPS.values() for option in options}
    assert all(flag_of(name) in options[name] for name in RunConfig.model_fields)


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(refused(num_requests="9" * 5000)) < 200


def test_the_default_is_one_request_every_350_ms_64_times() -> None:
    config = RunConfig()
    assert (config.submit_interval_ms, config.rate, config.num_requests) == (350.0, None, 64)


def test_a_rate_takes_the_place_of_the_interval() -> None:
    config = RunConfig(rate="20")
    assert (config.submit_interval_ms, config.rate) == (None, 20.0)


def test_interval_zero_is_a_burst_and_allowed() -> None:
    assert RunConfig(submit_interval_ms=0).submit_interval_ms == 0


def test_rate_and_interval_exclude_each_other() -> None:
    line = refused(rate=1, submit_interval_ms=250)
    assert "--rate" in line and "--submit-interval-ms" in line


def test_a_prompt_file_decides_the_number_of_requests_unless_told() -> None:
    assert RunConfig(prompts="f").num_requests is None
    assert RunConfig(prompts="f", num_requests=7).num_requests == 7


@pytest.mark.parametrize(
    ("field", "value"),
    [("rate", 1), ("submit_interval_ms", 250), ("num_requests", 64), ("prompts", "f"), ("prompt", "Hello"),
     ("prompt_repeats", "32"), ("unique_prompts", True), ("max_new_tokens", 4), ("pretok", True),
     ("input_len", 5), ("output_len", 5), ("length_seed", 1), ("prompt_kind", "random"), ("prompt_seed", 1),
     ("corpus", "f"), ("prefix_groups", 2), ("prefix_len", 2),
     ("dataset", "f"), ("dataset_format", "csv"), ("prompt_field", "q"), ("output_field", "a"), ("turns", 2),
     ("session_think_ms", 1)],
)  # fmt: skip
def test_a_plan_refuses_what_it_decides_and_names_both(field: str, value: Any) -> None:
    line = refused(plan="plan.npz", **{field: value})
    assert "--plan" in line and flag_of(field) in line


def test_a_plan_leaves_rate_interval_and_number_open() -> None:
    config = RunConfig(plan="plan.npz")
    assert (config.rate, config.submit_interval_ms, config.num_requests) == (None, None, None)


@pytest.mark.parametrize(("field", "value"), [("prompt", "x"), ("prompt_repeats", "3"), ("unique_prompts", True)])
def test_a_prompt_file_refuses_the_constructed_prompt_and_names_both(field: str, value: Any) -> None:
    line = refused(prompts="f", **{field: value})
    assert "--prompts" in line and flag_of(field) in line


def test_tokenize_workers_are_refused_with_pretok() -> None:
    assert "--tokenize-workers" in refused(pretok=True, tokenize_workers=2)


def test_a_call_of_the_tokenizer_that_nobody_makes_is_refused() -> None:
    assert "--pretok" in refused(pretok=True, tokenize_call="encode_batch")
    assert RunConfig(pretok=True, tokenize_call="encode").pretok


def test_a_polled_ingress_has_no_workers_to_hand_texts_to() -> None:
    line = refused(ingress="polled", tokenize_workers=1)
    assert "--tokenize-workers" in line and "--ingress" in line


@pytest.mark.parametrize("engine", ["null", "my.module:make"])
def test_torch_s_threads_are_set_for_our_own_engines_only(engine: str) -> None:
    line = refused(engine=engine, torch_threads=2)
    assert line.startswith("--torch-threads") and engine in line
    assert RunConfig(torch_threads=2).torch_threads == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [("model", "builtin:gpt2"), ("device", "cuda"), ("dtype", "float32"), ("temperature", 1.0), ("top_k", 5),
     ("top_p", 0.5), ("min_p", 0.1), ("prefill_max_batch_size", 2), ("block_size", 16), ("kv_blocks", 10),
     ("kv_memory", "1GB"), ("prefill_max_tokens", 100), ("scheduling", "prefill_first"),
     *((part, "on") for part in PARTS)],
)  # fmt: skip
def test_the_null_engine_refuses_what_only_a_model_can_do(field: str, value: Any) -> None:
    line = refused(engine="null", **{field: value})
    assert line.startswith(flag_of(field)) and "--engine null" in line


@pytest.mark.parametrize(
    ("field", "value"),
    [("device", "cpu"), ("dtype", "auto"), ("temperature", 0), ("stop_on_eos", False), ("prefill_max_batch_size", 16),
     ("stop_ids", (5,)), ("stop", ("x",)), ("abort_after_ms", 3), *((part, False) for part in PARTS)],
)  # fmt: skip
def test_the_null_engine_accepts_what_states_how_it_is(field: str, value: Any) -> None:
    assert getattr(RunConfig(engine="null", **{field: value}), field) == value


@pytest.mark.parametrize("engine", ["native", "my.module:make"])
@pytest.mark.parametrize(
    ("field", "value"),
    [("null_hold_gil", True), ("null_service_ms", 1), ("null_service", "spin"), ("null_crash_at_step", 3),
     ("null_hang_at_step", 3), ("null_start_delay_s", 1)],
)  # fmt: skip
def test_null_flags_need_the_null_engine(engine: str, field: str, value: Any) -> None:
    line = refused(engine=engine, **{field: value})
    assert line.startswith(flag_of(field)) and "--engine null" in line


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", 0.5), ("top_k", 5), ("top_p", 0.5), ("min_p", 0.5), ("kv_memory", "1GB"), ("block_size", 3),
     ("cuda_graph", "on"), ("compile", "on"), ("overlap", "on"), ("nvtx", "on"), ("paged_attn", "off"),
     ("chunked_prefill", "off"), ("prefill_max_batch_size", 2)],
)  # fmt: skip
def test_the_transformers_engine_refuses_what_it_cannot_do(field: str, value: Any) -> None:
    line = refused(engine="transformers", **{field: value})
    assert line.startswith(flag_of(field)) and "--engine transformers" in line


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", 0), ("kv_blocks", 10), ("block_size", 4), ("prefill_max_tokens", 9), ("stop", ("x",)),
     ("scheduling", "decode_first"), ("prefix_cache", False), ("paged_attn", True), ("chunked_prefill", True),
     ("cuda_graph", False), ("dtype", "float32"), ("stop_on_eos", False), ("max_batch_size", 3)],
)  # fmt: skip
def test_the_transformers_engine_accepts_what_it_can_do(field: str, value: Any) -> None:
    assert getattr(RunConfig(engine="transformers", **{field: value}), field) == value


@pytest.mark.parametrize("field", CUDA_ONLY)
def test_what_needs_cuda_is_refused_without_it_in_one_clear_line(field: str) -> None:
    line = refused(**{field: "on"})
    assert line == f"{flag_of(field)} needs a CUDA device (--device cuda), the device is cpu"
    assert getattr(RunConfig(device="cuda:1", **{field: "on"}), field) is True
    assert getattr(RunConfig(**{field: "off"}), field) is False


def test_an_engine_of_ones_own_gets_every_setting() -> None:
    settings: dict[str, Any] = dict.fromkeys(PARTS, True) | {"block_size": 3, "kv_memory": 1000, "temperature": 1.0}
    config = RunConfig(engine="my.module:make", **settings)
    assert {name: getattr(config, name) for name in settings} == settings


def test_the_number_of_blocks_and_their_memory_exclude_each_other() -> None:
    line = refused(kv_blocks=10, kv_memory="1GB")
    assert "--kv-blocks" in line and "--kv-memory" in line


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("800MB", 800 * 10**6), ("2GiB", 2 << 30), ("1.5 GB", 1_500_000_000), ("4096", 4096), ("4096B", 4096),
     ("3K", 3000), ("1TiB", 1 << 40), (5, 5)],
)  # fmt: skip
def test_a_size_is_bytes_or_has_a_unit(text: Any, nbytes: int) -> None:
    assert RunConfig(kv_memory=text).kv_memory == nbytes


def test_parts_of_the_engine_that_nobody_asked_for_are_left_open() -> None:
    assert {getattr(RunConfig(), name) for name in (*PARTS, *CACHE_ONLY)} == {None}


def test_stops_are_one_or_several() -> None:
    assert RunConfig(stop="a").stop == ("a",)
    assert RunConfig(stop=["a", "b\n"]).stop == ("a", "b\n")
    assert RunConfig(stop_ids="5, 7").stop_ids == (5, 7)
    assert RunConfig(stop_ids=5).stop_ids == (5,)


def test_a_gguf_file_that_exists_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "small.gguf").touch()
    assert RunConfig(model=str(tmp_path / "small.gguf")).model == str(tmp_path / "small.gguf")
    assert "--model" in refused(model="absent.gguf")


def test_an_engine_of_ones_own_is_a_module_and_a_factory() -> None:
    assert RunConfig(engine="my.module:make").engine == "my.module:make"


def test_the_models_without_a_download_are_those_that_the_engine_has() -> None:
    assert tuple(f"{source.BUILTIN_PREFIX}{name}" for name in source.BUILTIN_MODELS) == BUILTIN_MODELS


@pytest.mark.parametrize("model", ["gpt2", "openai-community/gpt2"])
def test_a_hub_id_is_taken_as_it_is(model: str) -> None:
    assert RunConfig(model=model).model == model


def test_a_local_model_is_a_folder_that_exists(tmp_path: Path) -> None:
    assert RunConfig(model=str(tmp_path)).model == str(tmp_path)


def test_a_local_model_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "--model" in refused(model=str(tmp_path / "file"))


def test_cores_are_read_as_taskset_lists() -> None:
    core = min(os.sched_getaffinity(0))
    assert RunConfig(engine_cores=f"{core},{core}-{core}:2").engine_cores == (core,)


def test_prompt_repeats_take_a_number_or_several() -> None:
    assert RunConfig(prompt_repeats="256").prompt_repeats == (256,)
    assert RunConfig(prompt_repeats="1, 2,0").prompt_repeats == (1, 2, 0)


def test_a_setting_that_does_not_exist_is_refused() -> None:
    assert "'speed'" in refused(speed=1)


def test_a_config_never_changes() -> None:
    with pytest.raises(Exception, match="frozen"):
        RunConfig().rate = 3.0  # type: ignore[misc]


def test_a_config_survives_json() -> None:
    config = RunConfig(
        rate=3, engine_cores=[min(os.sched_getaffinity(0))], out="x", prompt_repeats="1,2", kv_memory="1GiB",
        prefix_cache="off", stop=["a", "b"], stop_ids="1,2", scheduling="decode_first",
    )  # fmt: skip
    given = json.loads(json.dumps(config.model_dump(mode="json", exclude_unset=True)))
    assert RunConfig(**given) == config
