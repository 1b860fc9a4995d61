"""Flags about prompts and lengths: every one has an effect or is refused with the flag that rules it out."""

from __future__ import annotations

from typing import Any

import pytest

from harness.common.errors import ConfigError
from harness.config.errors import flag_of
from harness.config.prompt_flags import kind_of
from harness.config.run_config import RunConfig

RANDOM = {"prompt_kind": "random", "input_len": "8"}
DATASET = {"dataset": "f.jsonl"}
CORPUS = {"corpus": "f.txt", "input_len": "8"}


def refused(**values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        RunConfig(**values)
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "kind"),
    [({}, "repeat"), ({"prompts": "f"}, "file"), (CORPUS, "corpus"), (RANDOM, "random"), (DATASET, "dataset")],
)
def test_the_other_flags_say_where_prompts_come_from(values: dict[str, Any], kind: str) -> None:
    assert kind_of(RunConfig(**values)) == kind


@pytest.mark.parametrize("kind", ["random", "corpus"])
def test_prompts_that_are_made_need_a_length(kind: str) -> None:
    assert "--input-len" in refused(prompt_kind=kind, **({"corpus": "f"} if kind == "corpus" else {}))


def test_a_corpus_needs_its_file() -> None:
    assert "--corpus FILE" in refused(prompt_kind="corpus", input_len=8)


@pytest.mark.parametrize("base", [RANDOM, CORPUS, DATASET])
@pytest.mark.parametrize(("field", "value"), [("prompt", "x"), ("prompt_repeats", 3), ("unique_prompts", True)])
def test_the_construction_means_nothing_beside_another_source(base: dict[str, Any], field: str, value: Any) -> None:
    assert refused(**base, **{field: value}).startswith(flag_of(field))


@pytest.mark.parametrize("field", ["prompt_repeats", "unique_prompts"])
def test_a_length_and_a_count_of_repeats_exclude_each_other(field: str) -> None:
    line = refused(input_len=8, **{field: True if field == "unique_prompts" else 3})
    assert flag_of(field) in line and "--input-len" in line


def test_output_length_and_new_tokens_exclude_each_other() -> None:
    line = refused(output_len=8, max_new_tokens=4)
    assert "--output-len" in line and "--max-new-tokens" in line


@pytest.mark.parametrize(
    ("base", "field", "value"),
    [({"prompts": "f"}, "input_len", 8), ({"prompts": "f"}, "prompt_kind", "repeat"), (RANDOM, "corpus", "f"),
     (RANDOM, "prompts", "f"), (RANDOM, "tokenize_workers", 1), ({}, "prefix_len", 4), ({}, "prefix_groups", 4),
     (RANDOM, "prefix_groups", 4), ({}, "prompt_seed", 0), ({"prompts": "f"}, "prompt_seed", 1), ({}, "length_seed", 0),
     (RANDOM, "length_seed", 1), ({"output_len": "file:x"}, "length_seed", 1),
     ({}, "turns", 2), ({}, "dataset_format", "csv"), ({}, "prompt_field", "q"), ({}, "output_field", "a"),
     ({}, "session_think_ms", 0), (DATASET, "session_think_ms", 5), (DATASET, "input_len", 8),
     (DATASET, "prompts", "f"), (DATASET, "corpus", "f"), (DATASET, "prompt_seed", 1),
     (DATASET, "prefix_len", 4), ({}, "output_len", "dataset"),
     ({}, "input_len", "dataset"), ({**DATASET, "schedule": "relative"}, "turns", 2),
     ({**DATASET, "output_len": 5}, "output_field", "a"), ({**DATASET, "max_new_tokens": 5}, "output_field", "a")],
)  # fmt: skip
def test_a_flag_without_an_effect_is_refused(base: dict[str, Any], field: str, value: Any) -> None:
    assert flag_of(field) in refused(**{**base, field: value})


def test_a_seed_of_drawn_lengths_is_taken() -> None:
    assert RunConfig(output_len="uniform:1:9", length_seed=7).length_seed == 7


def test_a_dataset_decides_the_number_of_requests_unless_told() -> None:
    assert RunConfig(**DATASET).num_requests is None
    assert RunConfig(**DATASET, num_requests=7).num_requests == 7


def test_all_turns_can_be_asked_for_by_word_and_by_number() -> None:
    assert [RunConfig(**DATASET, turns=turns).turns for turns in ("all", "3", 3)] == ["all", 3, 3]


def test_the_output_field_may_be_named_beside_what_it_implies() -> None:
    assert RunConfig(**DATASET, output_field="a", output_len="dataset").output_field == "a"
