"""The load plan: what is built is what is saved is what runs again, and a damaged file is refused in one line."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.common.errors import ConfigError
from harness.common.limits import MAX_THINK_NS
from harness.common.plan_file import LoadPlan, load_plan
from harness.config.run_config import RunConfig
from harness.plan import build
from harness.plan.build import describe, load_plan_for, text_plan, tokenized_plan

PUBLISHED = RunConfig(num_requests=256, prompt_repeats=256, unique_prompts=True, submit_interval_ms=1, max_new_tokens=1)


@pytest.fixture
def raw() -> LoadPlan:
    return text_plan(RunConfig(num_requests=3, prompt="é", prompt_repeats="1,2,0", rate=10))


@pytest.fixture
def tokenized(raw: LoadPlan) -> LoadPlan:
    return tokenized_plan(raw, [[1, 2], [], [50256]])


def saved(plan: LoadPlan, tmp_path: Path) -> Path:
    path = tmp_path / "plan.npz"
    plan.save(path)
    return path


def test_a_raw_plan_holds_the_texts_as_utf8(raw: LoadPlan) -> None:
    assert [raw.payload(i).decode() for i in range(3)] == ["é", "é é", ""]


def test_a_raw_plan_holds_offsets_and_new_tokens(raw: LoadPlan) -> None:
    assert raw.offsets_ns.tolist() == [0, 100_000_000, 200_000_000]
    assert raw.max_new_tokens.tolist() == [4, 4, 4]


def test_a_tokenized_plan_holds_little_endian_int32_ids(tokenized: LoadPlan) -> None:
    payloads = [np.frombuffer(tokenized.payload(i), dtype="<i4").tolist() for i in range(3)]
    assert payloads == [[1, 2], [], [50256]]


def test_tokenizing_keeps_offsets_and_new_tokens(raw: LoadPlan, tokenized: LoadPlan) -> None:
    assert np.array_equal(raw.offsets_ns, tokenized.offsets_ns)
    assert np.array_equal(raw.max_new_tokens, tokenized.max_new_tokens)
    assert tokenized.pretokenized and tokenized.texts is None


def test_tokenizing_another_number_of_prompts_is_a_bug(raw: LoadPlan) -> None:
    with pytest.raises(ValueError, match="2 lists of token ids for 3"):
        tokenized_plan(raw, [[1], [2]])


@pytest.mark.parametrize("name", ["raw", "tokenized"])
def test_a_plan_survives_its_file(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    plan: LoadPlan = request.getfixturevalue(name)
    again = load_plan_for(RunConfig(plan=saved(plan, tmp_path)))
    assert again.sha256() == plan.sha256()
    assert [again.payload(i) for i in range(3)] == [plan.payload(i) for i in range(3)]


@pytest.mark.parametrize("name", ["raw", "tokenized"])
def test_no_array_of_a_plan_can_be_written(name: str, request: pytest.FixtureRequest) -> None:
    plan: LoadPlan = request.getfixturevalue(name)
    arrays = [getattr(plan, field) for field in LoadPlan.__slots__]
    assert not any(array.flags.writeable for array in arrays if array is not None)


def test_no_array_of_a_loaded_plan_can_be_written(raw: LoadPlan, tmp_path: Path) -> None:
    again = load_plan_for(RunConfig(plan=saved(raw, tmp_path)))
    assert not again.offsets_ns.flags.writeable


def test_the_digest_tells_loads_apart_by_every_array(raw: LoadPlan, tokenized: LoadPlan) -> None:
    config = RunConfig(num_requests=3, prompt="é", prompt_repeats="1,2,0", rate=10)
    variants = [{"rate": 11}, {"max_new_tokens": 5}, {"prompt": "e"}, {"prompt_repeats": "1,2,1"}, {"num_requests": 4}]
    given = config.model_dump(exclude_unset=True)
    for name in ("submit_interval_ms",):
        given.pop(name, None)
    digests = {text_plan(RunConfig(**{**given, **variant})).sha256() for variant in variants}
    assert len(digests | {raw.sha256(), tokenized.sha256()}) == len(variants) + 2


def test_the_same_config_gives_the_same_digest() -> None:
    assert text_plan(PUBLISHED).sha256() == text_plan(PUBLISHED).sha256()


def test_texts_beyond_the_memory_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "MAX_TEXT_BYTES", 10)
    with pytest.raises(ConfigError, match="--num-requests"):
        text_plan(RunConfig())


def test_the_description_names_digest_number_rate_and_schedule(raw: LoadPlan) -> None:
    block = describe(raw, RunConfig(rate=10, schedule="relative"))
    assert block == {"sha256": raw.sha256(), "num_requests": 3, "nominal_rate": 10.0, "schedule": "relative",
                     "prompt_tokens": None, "arrival": {"arrival": "constant", "rate": 10.0, "seed": 0}}  # fmt: skip


def test_the_nominal_rate_of_a_burst_is_null(raw: LoadPlan) -> None:
    assert describe(raw, RunConfig(submit_interval_ms=0))["nominal_rate"] is None


def test_the_nominal_rate_of_an_interval_is_its_inverse(raw: LoadPlan) -> None:
    assert describe(raw, RunConfig(submit_interval_ms=4))["nominal_rate"] == 250.0


def test_the_nominal_rate_of_a_plan_file_comes_from_its_offsets(raw: LoadPlan, tmp_path: Path) -> None:
    config = RunConfig(plan=saved(raw, tmp_path))
    assert describe(load_plan_for(config), config)["nominal_rate"] == pytest.approx(10.0)


def test_the_prompt_tokens_of_a_tokenized_plan_are_counted(tokenized: LoadPlan) -> None:
    assert describe(tokenized, RunConfig())["prompt_tokens"] == 3


def test_tokenize_workers_are_refused_with_a_plan_of_token_ids(tokenized: LoadPlan, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--tokenize-workers"):
        load_plan_for(RunConfig(plan=saved(tokenized, tmp_path), tokenize_workers=2))


GOOD: dict[str, Any] = {
    "offsets_ns": np.array([0, 5], dtype=np.int64),
    "max_new_tokens": np.array([1, 1], dtype=np.int32),
    "prompt_ids": np.array([7, 8, 9], dtype=np.int32),
    "prompt_starts": np.array([0, 1, 3], dtype=np.int64),
}
GATED: dict[str, Any] = {
    "after": np.array([-1, 0], dtype=np.int32),
    "think_ns": np.array([0, MAX_THINK_NS], dtype=np.int64),
}
DAMAGE: dict[str, dict[str, Any]] = {
    "offsets go back": {"offsets_ns": np.array([5, 0], dtype=np.int64)},
    "negative offset": {"offsets_ns": np.array([-1, 0], dtype=np.int64)},
    "no request": {name: array[:0] for name, array in GOOD.items()} | {"prompt_starts": np.zeros(1, dtype=np.int64)},
    "offsets of floats": {"offsets_ns": np.array([0.0, 5.0])},
    "offsets in two dimensions": {"offsets_ns": np.zeros((2, 1), dtype=np.int64)},
    "new tokens too few": {"max_new_tokens": np.array([1], dtype=np.int32)},
    "starts too few": {"prompt_starts": np.array([0, 3], dtype=np.int64)},
    "starts go back": {"prompt_starts": np.array([0, 4, 3], dtype=np.int64)},
    "starts end early": {"prompt_starts": np.array([0, 1, 2], dtype=np.int64)},
    "no payload": {"prompt_ids": None, "prompt_starts": None},
    "ids without starts": {"prompt_starts": None},
    "two payloads": {"texts": np.zeros(2, dtype=np.uint8), "text_starts": np.array([0, 1, 2], dtype=np.int64)},
    "no offsets": {"offsets_ns": None},
    "a strange array": {"speed": np.zeros(2, dtype=np.int64)},
    "after without think times": {"after": np.array([-1, 0], dtype=np.int32)},
    "think times without after": {"think_ns": np.array([0, 0], dtype=np.int64)},
    "after itself": GATED | {"after": np.array([-1, 1], dtype=np.int32)},
    "after a later request": GATED | {"after": np.array([1, -1], dtype=np.int32)},
    "after a request that is none": GATED | {"after": np.array([-2, 0], dtype=np.int32)},
    "too few predecessors": GATED | {"after": np.array([-1], dtype=np.int32)},
    "a negative think time": GATED | {"think_ns": np.array([0, -1], dtype=np.int64)},
    "a think time beyond all plans": GATED | {"think_ns": np.array([0, MAX_THINK_NS + 1], dtype=np.int64)},
    "a think time after nothing": GATED | {"think_ns": np.array([1, 0], dtype=np.int64)},
    "a span of years": {"offsets_ns": np.array([0, 2**62], dtype=np.int64)},
}


@pytest.mark.parametrize("gates", [{}, GATED])
def test_the_plans_that_the_damaged_ones_derive_from_are_good(gates: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "plan.npz", **GOOD, **gates)
    assert load_plan_for(RunConfig(plan=tmp_path / "plan.npz")).gated == bool(gates)


def test_a_gated_plan_survives_its_file_and_tokenizing(raw: LoadPlan, tmp_path: Path) -> None:
    gates = {"after": np.array([-1, 0, -1], np.int32), "think_ns": np.array([0, 7, 0], np.int64)}
    plan = tokenized_plan(replace(raw, **gates), [[1], [2], [3]])
    again = load_plan(saved(plan, tmp_path))
    assert again.after is not None and again.think_ns is not None
    assert (again.after.tolist(), again.think_ns.tolist()) == ([-1, 0, -1], [0, 7, 0])
    assert again.sha256() == plan.sha256() != replace(plan, after=None, think_ns=None).sha256()


def test_the_digest_of_a_plan_without_gates_is_what_it_was_before_there_were_any() -> None:
    plan = LoadPlan(**GOOD)
    names = ("offsets_ns", "max_new_tokens", "prompt_ids", "prompt_starts")
    parts = [f"{name}:{GOOD[name].dtype.str}:{len(GOOD[name])};".encode() + GOOD[name].tobytes() for name in names]
    assert plan.sha256() == hashlib.sha256(b"".join(parts)).hexdigest()


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_plan_whose_arrays_do_not_fit_is_refused(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.npz"
    arrays = GOOD | DAMAGE[damage]
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    _assert_refused(path)


def _write_pickle(path: Path) -> None:
    np.savez(path, offsets_ns=np.array([{"a": 1}], dtype=object))


def _write_zip_without_arrays(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("offsets_ns", "words")


def _write_cut_short(path: Path) -> None:
    np.savez(path, **GOOD)
    os.truncate(path, path.stat().st_size // 2)


def _write_bare_array(path: Path) -> None:
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))


def _write_flipped_bytes(path: Path) -> None:
    np.savez_compressed(path, **GOOD)
    data = bytearray(path.read_bytes())
    data[60:200] = bytes(byte ^ 0xFF for byte in data[60:200])
    path.write_bytes(data)


def _write_lying_header(path: Path) -> None:
    header = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
    body = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000000,), }"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("offsets_ns.npy", header + body.ljust(117) + b"\n")


WRITERS: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("hello"),
    "a folder": lambda path: path.mkdir(),
    "absent": lambda path: None,
    "pickled objects": _write_pickle,
    "a zip of something else": _write_zip_without_arrays,
    "cut short": _write_cut_short,
    "a bare array": _write_bare_array,
    "flipped bytes": _write_flipped_bytes,
    "a header that lies": _write_lying_header,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_that_is_no_plan_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.npz"
    WRITERS[kind](path)
    _assert_refused(path)


def _assert_refused(path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plan_for(RunConfig(plan=path))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_every_single_flipped_byte_is_noticed_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "plan.npz"
    np.savez_compressed(path, **GOOD)
    data = path.read_bytes()
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :])
        try:
            load_plan(path)
        except ConfigError:
            pass
