from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from tiny_gpt2 import NO_EOS, TINY, Driver, hf_config, one_thread, request, save_model, tiny_weights
from torch import Tensor

from engine_proc.backends import native_parts
from engine_proc.backends.base import EngineRequest
from engine_proc.backends.native import NativeBackend
from engine_proc.backends.native_parts import Kernels
from engine_proc.backends.placement import choose_device, choose_dtype, cpu_has_bf16
from engine_proc.models.builtin import random_weights
from engine_proc.models.gpt2 import GPT2Config
from engine_proc.models.loader import load_model
from engine_proc.runner.model_runner import bucket, pass_limit
from harness.common.errors import ConfigError
from harness.common.protocol import Sampling
from harness.common.stamps import FinishReason, Reason

NEW = 12
PLAIN = Kernels(packed_linear=False, compiled_decode=False, bucket_passes=False)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def make(model: str, batch: int = 4, prefill_batch: int = 4, dtype: str = "float32", **more: object) -> NativeBackend:
    clock = itertools.count(1).__next__
    return NativeBackend(model, "cpu", dtype, batch, prefill_batch, clock, **more)  # type: ignore[arg-type]


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(TINY.vocab_size) for _ in range(length)] for length in lengths]


def requests(texts: Sequence[Sequence[int]], new: int = NEW, sampling: Sampling = NO_EOS) -> list[EngineRequest]:
    return [request(row, text, new, sampling) for row, text in enumerate(texts)]


def alone(model: str, texts: Sequence[Sequence[int]], new: int = NEW, **more: object) -> list[list[int]]:
    backend = make(model, 1, 1, **more)  # type: ignore[arg-type]
    return [Driver(backend).run([request(0, text, new)])[0] for text in texts]


MIXED = prompts(1, 7, 7, 127, 128, 129, 200, 3, 31, 7)


def test_tokens_do_not_depend_on_batch_mates(tiny: str) -> None:
    together = Driver(make(tiny, 4, 2)).run(requests(MIXED))
    assert [together[row] for row in range(len(MIXED))] == alone(tiny, MIXED)
    assert len({tuple(tokens) for tokens in together.values()}) == len(MIXED)  # the model does read its prompts


@pytest.mark.parametrize("kernels", [Kernels(), Kernels(True, False), Kernels(False, True)], ids=str)
def test_each_kernel_agrees_with_its_plain_twin(tiny: str, kernels: Kernels) -> None:
    seen: dict[Kernels, list[Tensor]] = {}
    for which in (kernels, PLAIN):
        logits = seen.setdefault(which, [])
        backend = make(tiny, kernels=which, logits_observer=lambda _, step, logits=logits: logits.append(step.clone()))
        Driver(backend).run(requests(MIXED))
    assert len(seen[kernels]) == len(seen[PLAIN]) > NEW
    for ours, plain in zip(seen[kernels], seen[PLAIN], strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-4, rtol=1e-4)


def test_logits_are_computed_for_last_positions_only(tiny: str) -> None:
    shapes: list[tuple[list[int], tuple[int, ...]]] = []
    backend = make(tiny, 3, 3, logits_observer=lambda rows, step: shapes.append((rows, tuple(step.shape))))
    Driver(backend).run(requests(prompts(5, 9, 5), new=2))
    assert shapes == [([0, 1, 2], (3, TINY.vocab_size))] * 2


def test_a_prefill_cut_into_passes_gives_the_same_tokens(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Driver(make(tiny, 10, 10)).run(requests(MIXED))
    for limit in (1, 64, 130):
        monkeypatch.setitem(native_parts.MAX_PASS_TOKENS, "cpu", limit)
        assert Driver(make(tiny, 10, 10)).run(requests(MIXED)) == whole


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 31, 32, 33, 511, 512, 513, 576, 577, 2047, 2048])
def test_a_bucket_holds_its_tokens_and_is_one_that_warm_up_runs(num_tokens: int) -> None:
    padded = bucket(num_tokens)
    step = 1 if num_tokens <= 16 else 16 if num_tokens <= 512 else 64
    assert num_tokens <= padded < num_tokens + step
    assert bucket(padded) == padded and padded % step == 0


@pytest.mark.parametrize(
    ("num_tokens", "most", "limit"),
    [(1, 2048, 512), (1535, 2048, 512), (1536, 2048, 2048), (100, 64, 64), (1000, 1 << 20, 1 << 20)],
)
def test_a_step_of_middling_size_goes_in_short_passes_on_a_cpu(num_tokens: int, most: int, limit: int) -> None:
    assert pass_limit(num_tokens, most) == limit


def test_padding_a_prefill_to_a_bucket_changes_no_logit(tiny: str) -> None:
    seen: dict[bool, list[Tensor]] = {}
    for buckets in (True, False):
        logits = seen.setdefault(buckets, [])
        backend = make(
            tiny, dtype="bfloat16", kernels=Kernels(bucket_passes=buckets),
            logits_observer=lambda _, step, logits=logits: logits.append(step.clone()),
        )  # fmt: skip
        if not backend.describe()["packed_linear"]:
            pytest.skip("passes are padded where bfloat16 is packed, and this CPU has no product for it")
        assert backend.describe()["bucket_passes"] is buckets
        backend.warm_up()
        Driver(backend).run(requests(MIXED[:4], new=1))
    scale = seen[False][0].abs().max().item()
    torch.testing.assert_close(seen[True][0], seen[False][0], atol=0.02 * scale, rtol=0.0)


def test_bfloat16_runs_and_stays_near_float32(tiny: str) -> None:
    first: dict[str, Tensor] = {}
    for dtype in ("float32", "bfloat16"):
        backend = make(
            tiny, dtype=dtype, logits_observer=lambda _, step, dtype=dtype: first.setdefault(dtype, step.clone())
        )
        done = Driver(backend).run(requests(MIXED[:4]))
        assert [len(done[row]) for row in range(4)] == [NEW] * 4
    scale = first["float32"].abs().max()
    assert 0 < (first["float32"] - first["bfloat16"]).abs().max() < 0.1 * scale


def test_prefill_step_and_decode_step_report_what_they_did(tiny: str) -> None:
    driver = Driver(make(tiny, 2, 2))
    for item in requests(prompts(5, 6, 7), new=3):
        driver.backend.add(item)
    first, second = driver.step(), driver.step()
    assert (first.admitted, first.prefill_tokens, first.decode_rows, first.kv_blocks_used) == ([0, 1], 11, 0, 2)
    assert (second.admitted, second.prefill_tokens, second.decode_rows) == ([], 0, 2)
    assert 0 < first.batch_ns < first.tokens_ns < second.batch_ns < second.tokens_ns
    third, fourth = driver.step(), driver.step()
    assert [event.finish for event in third.tokens] == [FinishReason.LENGTH] * 2
    assert fourth.admitted == [2]


def test_max_new_tokens_ends_a_request_with_length(tiny: str) -> None:
    driver = Driver(make(tiny))
    done = driver.run([request(row, [1, 2], new) for row, new in enumerate((1, 2, 5))])
    assert [len(done[row]) for row in range(3)] == [1, 2, 5]
    assert set(driver.finish.values()) == {FinishReason.LENGTH}
    assert not driver.backend.has_work()


def test_the_whole_context_can_be_used_to_the_last_token(tiny: str) -> None:
    limit = TINY.max_positions
    assert make(tiny).capacity().max_model_len == limit
    done = Driver(make(tiny)).run([request(0, [1] * (limit - 1), 1), request(1, [2], limit - 1)])
    assert [len(done[0]), len(done[1])] == [1, limit - 1]


def test_eos_counts_as_a_token_and_ends_the_request(tiny: str, tmp_path: Path) -> None:
    tokens = alone(tiny, MIXED[:1])[0]
    eos = tokens[4]
    first_at = tokens.index(eos)
    model = save_model(tmp_path, eos_token_id=eos)
    driver = Driver(make(model))
    done = driver.run([request(0, MIXED[0], NEW, Sampling()), request(1, MIXED[0], NEW, NO_EOS)])
    assert done[0] == tokens[: first_at + 1]
    assert driver.finish[0] is FinishReason.EOS
    assert done[1] == tokens
    assert driver.finish[1] is FinishReason.LENGTH


def test_eos_as_the_very_first_token_ends_the_request_and_no_neighbour(tiny: str, tmp_path: Path) -> None:
    expected = alone(tiny, MIXED[:3])
    model = save_model(tmp_path, eos_token_id=expected[1][0])
    driver = Driver(make(model))
    done = driver.run(requests(MIXED[:3], sampling=Sampling()))
    assert done[1] == expected[1][:1]
    assert driver.finish[1] is FinishReason.EOS
    for row in (0, 2):
        assert done[row] == expected[row][: len(done[row])]
        assert driver.finish[row] is (FinishReason.LENGTH if len(done[row]) == NEW else FinishReason.EOS)


def test_eos_at_the_last_allowed_token_is_eos(tiny: str, tmp_path: Path) -> None:
    first = alone(tiny, MIXED[:1])[0][0]
    driver = Driver(make(save_model(tmp_path, eos_token_id=first)))
    driver.run([request(0, MIXED[0], 1, Sampling())])
    assert driver.finish[0] is FinishReason.EOS


def test_eos_ids_come_from_the_tokenizer_where_the_model_does_not_say(tiny: str) -> None:
    class Ends:
        eos_ids = (5, 6)

    assert make(tiny, tokenizer=Ends()).capacity().eos_ids == (5, 6)
    assert make(tiny).capacity().eos_ids == ()


@pytest.mark.parametrize("victim", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("after_steps", [0, 1, 2, 4])
def test_abort_at_any_time_and_a_late_arrival_disturb_nobody(tiny: str, victim: int, after_steps: int) -> None:
    texts = MIXED[1:7]
    expected = alone(tiny, texts)
    driver = Driver(make(tiny, 3, 2))
    for item in requests(texts[:5]):
        driver.backend.add(item)
    for _ in range(after_steps):
        driver.step()
    assert driver.backend.abort(victim)
    assert not driver.backend.abort(victim)
    done = driver.run([request(5, texts[5], NEW)])
    assert victim not in driver.finish
    assert len(done.get(victim, [])) <= after_steps
    survivors = [row for row in range(6) if row != victim]
    assert [done[row] for row in survivors] == [expected[row] for row in survivors]


def test_a_row_that_was_aborted_or_finished_can_come_again_with_another_prompt(tiny: str) -> None:
    expected = alone(tiny, MIXED[:2])
    backend = make(tiny)
    backend.add(request(0, MIXED[3], NEW))
    backend.step()
    assert backend.abort(0)
    assert Driver(backend).run([request(0, MIXED[0], NEW)])[0] == expected[0]
    assert Driver(backend).run([request(0, MIXED[1], NEW)])[0] == expected[1]


def test_sampled_tokens_depend_on_the_seed_and_not_on_batch_mates(tiny: str) -> None:
    warm = [Sampling(1.0, 0, 1.0, seed, False) for seed in (1, 2, 1)]
    text = MIXED[3]
    together = Driver(make(tiny)).run(
        [*(request(row, text, NEW, sampling) for row, sampling in enumerate(warm)), request(9, MIXED[4], NEW)]
    )
    assert together[0] == together[2] != together[1]
    lone = Driver(make(tiny, 1, 1)).run([request(0, text, NEW, warm[0])])
    assert lone[0] == together[0]
    assert together[9] == alone(tiny, MIXED[4:5])[0]


def test_a_request_larger_than_the_cache_fails_alone_and_at_once(tiny: str) -> None:
    """Row 7: needs of one block less than the pool, all of it, and one more."""
    driver = Driver(make(tiny, kv_blocks=8))
    done = driver.run([request(row, [1] * 120, new) for row, new in enumerate((10, 9, 8, 1))])  # the last is not cached
    assert [(f.row, f.reason, f.a, f.b) for f in driver.steps[0].failed] == [(0, Reason.TOO_LARGE_FOR_CACHE, 9, 8)]
    assert [len(done[row]) for row in (1, 2, 3)] == [9, 8, 1]


def test_a_step_with_nothing_but_a_failure_is_reported_and_ends_the_work(tiny: str) -> None:
    driver = Driver(make(tiny, kv_blocks=8))
    assert driver.run([request(0, [1] * 200, 9)]) == {}
    assert len(driver.steps) == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kv_blocks": 0}, "kv_blocks"), ({"kv_blocks": -1}, "kv_blocks"), ({"kv_blocks": 10**12}, "kv_blocks"),
        ({"kv_memory": 1}, "kv_memory"), ({"kv_blocks": 4, "kv_memory": 10**6}, "kv_memory"),
        ({"block_size": 0}, "block_size"), ({"prefill_max_tokens": -1}, "max_tokens"), ({"policy": "fair"}, "policy"),
    ],
)  # fmt: skip
def test_an_impossible_cache_or_schedule_is_named(tiny: str, options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make(tiny, **options)


def test_kv_memory_counts_bytes_with_the_padding_block(tiny: str) -> None:
    block_bytes = 2 * TINY.layers * TINY.hidden * 16 * 4
    backend = make(tiny, kv_memory=5 * block_bytes + 1)
    assert backend.describe()["kv_blocks"] == 4
    assert backend.describe()["kv_bytes"] == 5 * block_bytes


@pytest.mark.parametrize("name", ["cuda_graph", "nvtx"])
def test_what_needs_cuda_is_refused_without_it(tiny: str, name: str) -> None:
    if torch.cuda.is_available() and name == "nvtx":
        pytest.skip("there is a CUDA device")
    with pytest.raises(ConfigError, match=name):
        make(tiny, **{name: True})


def test_warm_up_leaves_no_work_and_no_trace_in_the_tokens(tiny: str) -> None:
    observed: list[list[int]] = []
    backend = make(tiny, logits_observer=lambda rows, _: observed.append(rows))
    backend.warm_up()
    assert not backend.has_work()
    assert observed == []
    done = Driver(backend).run(requests(MIXED[:4]))
    assert [done[row] for row in range(4)] == alone(tiny, MIXED[:4])


def test_close_gives_the_model_back_and_leaves_no_work(tiny: str) -> None:
    backend = make(tiny)
    backend.add(request(0, [1], 1))
    backend.close()
    assert not backend.has_work()


def test_describe_is_json_and_names_weights_dtype_and_threads(tiny: str) -> None:
    text = json.loads(json.dumps(make(tiny).describe()))
    assert text["weights"] == "safetensors"
    assert text["dtype"] == "float32"
    assert text["threads"] >= 1


def test_random_weights_are_gpt2s_and_the_same_for_any_number_of_threads() -> None:
    config = GPT2Config(vocab_size=1000, max_positions=64, hidden=64, layers=3, heads=4, inner=256)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = random_weights(config)
        torch.set_num_threads(2)
        two = random_weights(config)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one[name], two[name]) for name in config.shapes())
    assert one["wte.weight"].std().item() == pytest.approx(0.02, rel=0.03)
    assert one["h.1.mlp.c_fc.weight"].std().item() == pytest.approx(0.02, rel=0.03)
    assert one["h.1.mlp.c_proj.weight"].std().item() == pytest.approx(0.02 / 6**0.5, rel=0.03)
    assert one["h.1.ln_1.weight"].eq(1).all() and one["h.1.mlp.c_fc.bias"].eq(0).all()
    assert not torch.equal(random_weights(config, seed=2)["wte.weight"], one["wte.weight"])


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_batch_size", 0), ("max_batch_size", -1), ("prefill_max_batch_size", 0), ("max_batch_size", 10**9)],
)
def test_an_impossible_batch_size_is_named(tiny: str, field: str, value: int) -> None:
    sizes = {"max_batch_size": 2, "prefill_max_batch_size": 2, field: value}
    with pytest.raises(ConfigError, match=field):
        NativeBackend(tiny, "cpu", "float32", clock=lambda: 1, **sizes)


def test_a_device_or_dtype_that_is_not_there_is_a_config_error() -> None:
    for name in ("tpu", "cuda:x", "cuda:-1", "", "cpu:0", *(() if torch.cuda.is_available() else ("cuda", "cuda:0"))):
        with pytest.raises(ConfigError, match="device"):
            choose_device(name)
    for name in ("float64", "int8", "", "float16"):
        with pytest.raises(ConfigError, match="dtype"):
            choose_dtype(name, torch.device("cpu"))


@pytest.mark.parametrize(("flags", "has"), [("fpu avx512_bf16 x", True), ("amx_bf16", True), ("avx512f", False)])
def test_auto_dtype_goes_by_the_cpu_flags(tmp_path: Path, flags: str, has: bool) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nflags\t\t: {flags}\n")
    assert cpu_has_bf16(cpuinfo) is has
    assert not cpu_has_bf16(tmp_path / "none")
    assert choose_dtype("auto", torch.device("cpu")) is (torch.bfloat16 if cpu_has_bf16() else torch.float32)


def _weights_without(name: str) -> dict[str, Tensor]:
    return {key: value for key, value in tiny_weights(TINY).items() if key != name}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"model_type": "gpt2", "architectures": ["GPT2ForTokenClassification"]}, "GPT2ForTokenClassification"),
        ({"model_type": "odd", "architectures": None, "auto_map": {"AutoModel": "x.py"}}, "auto_map"),
        ({"model_type": ["x"], "architectures": None}, "supported"),
        ({"n_head": 5}, "shape"),
        ({"n_layer": "many"}, "number"),
        ({"n_embd": 64}, "shape"),
        ({"activation_function": "mystery"}, "mystery"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"n_layer": 3}, "lack"),
        ({"tie_word_embeddings": False}, "lm_head"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_config_that_cannot_run_is_named_in_one_line(tmp_path: Path, fields: dict[str, object], named: str) -> None:
    save_model(tmp_path, TINY, **fields)
    with pytest.raises(ConfigError, match=named) as error:
        load_model(str(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickle_weights_are_refused_and_never_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(hf_config(TINY)))
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(ConfigError, match="pickle"):
        load_model(str(tmp_path))


def test_missing_and_damaged_weights_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(hf_config(TINY)))
    with pytest.raises(ConfigError, match=r"model\.safetensors is missing"):
        load_model(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{not json at all")
    with pytest.raises(ConfigError, match="cannot read"):
        load_model(str(tmp_path))
    save_model(tmp_path, TINY, _weights_without("h.1.mlp.c_fc.bias"))
    with pytest.raises(ConfigError, match=r"h\.1\.mlp\.c_fc\.bias"):
        load_model(str(tmp_path))


def test_an_index_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(hf_config(TINY)))
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"wte.weight": "../x.safetensors"}}')
    with pytest.raises(ConfigError, match="weight_map"):
        load_model(str(tmp_path))


def test_an_untied_head_is_used(tmp_path: Path, tiny: str) -> None:
    weights = tiny_weights(TINY)
    weights["lm_head.weight"] = weights["wte.weight"].flip(0)
    model = save_model(tmp_path, TINY, weights, tie_word_embeddings=False)
    tied = alone(tiny, MIXED[:1], new=1)[0][0]
    assert alone(model, MIXED[:1], new=1)[0][0] == TINY.vocab_size - 1 - tied
