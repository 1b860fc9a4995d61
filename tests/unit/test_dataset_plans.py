"""From a dataset to a plan: rows, gates and lengths of what the file holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.common.errors import ConfigError
from harness.common.plan_file import LoadPlan, load_plan
from harness.config.run_config import RunConfig
from harness.plan.complete import CompletedPlan, complete
from harness.plan.draft import Int32Array, Vocabulary
from harness.plan.drafting import make_draft
from harness.plan.seeds import Dimension, seed_of
from helpers import ROOT

DATA = ROOT.parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data folder is not beside this checkout")
SPEC_BENCH = DATA / "spec_bench" / "question.jsonl"


class WordLink:
    """A tokenizer of one token a word."""

    def tokenize(self, texts: Sequence[str]) -> list[Int32Array]:
        return [np.arange(1, 1 + len(text.split()), dtype=np.int32) for text in texts]

    def detokenize(self, rows: Sequence[Int32Array]) -> list[str]:
        return [" ".join("w" for _ in row) for row in rows]

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(100_000, (0,), 20)


def made(**values: Any) -> CompletedPlan:
    config = RunConfig(**values)
    return complete(make_draft(config), config.pretok, seed_of(config, Dimension.PROMPTS), WordLink())


def texts(plan: LoadPlan) -> list[str]:
    return [plan.payload(i).decode() for i in range(plan.num_requests)]


def jsonl(tmp_path: Path, *records: Any) -> Path:
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@needs_data
def test_spec_bench_gives_480_requests_and_560_with_all_turns(tmp_path: Path) -> None:
    one = made(dataset=SPEC_BENCH).plan
    every = made(dataset=SPEC_BENCH, turns="all", session_think_ms=1.5, rate=10).plan
    assert (one.num_requests, every.num_requests) == (480, 560) and one.after is None
    assert every.after is not None and every.think_ns is not None
    followers = np.flatnonzero(every.after >= 0)
    assert len(followers) == 80 and np.array_equal(every.after[followers], followers - 1)
    assert set(every.think_ns[followers].tolist()) == {1_500_000} and every.think_ns.sum() == 80 * 1_500_000
    rows = [json.loads(line)["turns"] for line in SPEC_BENCH.read_text("utf-8").split("\n") if line]
    assert texts(every) == ["\n".join(turns[: k + 1]) for turns in rows for k in range(len(turns))]
    every.save(tmp_path / "plan.npz")
    assert load_plan(tmp_path / "plan.npz").sha256() == every.sha256()


@needs_data
def test_the_rate_is_that_of_first_turns(tmp_path: Path) -> None:
    plan = made(dataset=SPEC_BENCH, turns=2, rate=10).plan
    assert plan.after is not None
    assert plan.offsets_ns[plan.after < 0].tolist() == [i * 100_000_000 for i in range(480)]
    assert np.all(np.diff(plan.offsets_ns) >= 0)


def test_outputs_are_as_long_as_the_recorded_ones(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"question": "a b", "answer": "one two three"}, {"question": "c", "answer": "four"})
    done = made(dataset=path, output_len="dataset")
    assert done.plan.max_new_tokens.tolist() == [3, 1]
    assert done.notes["prompts"]["format"] == "gsm8k" and done.notes["output_lengths"]["mean"] == 2.0


def test_an_output_field_may_hold_numbers(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"prompt": "a", "n": 7}, {"prompt": "b", "n": 3})
    assert made(dataset=path, output_field="n").plan.max_new_tokens.tolist() == [7, 3]


def test_a_recorded_output_beyond_the_context_is_shortened_and_counted(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"prompt": "a b c d e", "n": 700}, {"prompt": "b", "n": 3})
    done = made(dataset=path, output_field="n")
    assert done.plan.max_new_tokens.tolist() == [15, 3] and done.notes["output_lengths_cut_to_context"] == 1


def test_turns_without_an_output_are_left_out_and_said(tmp_path: Path) -> None:
    talk = [{"from": "human", "value": "q1"}, {"from": "gpt", "value": "a1 b"}, {"from": "human", "value": "q2"}]
    done = made(dataset=jsonl(tmp_path, {"conversations": talk}), turns="all", output_len="dataset")
    assert texts(done.plan) == ["q1"] and done.plan.max_new_tokens.tolist() == [2]
    assert done.notes["prompts"]["unanswered"] == 1 and "1 turns were left out" in done.lines[0]


def test_without_any_recorded_output_none_can_be_as_long(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no record holds an output"):
        made(dataset=jsonl(tmp_path, {"prompt": "a"}), output_len="dataset")


def test_other_output_lengths_go_with_a_dataset_too(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"prompt": "a"}, {"prompt": "b"})
    assert made(dataset=path, output_len=9, num_requests=3).plan.max_new_tokens.tolist() == [9, 9, 9]


def test_turns_go_out_as_token_ids_where_asked(tmp_path: Path) -> None:
    plan = made(dataset=jsonl(tmp_path, {"turns": ["a b", "c"]}), turns="all", pretok=True).plan
    assert plan.prompt_starts is not None and np.diff(plan.prompt_starts).tolist() == [2, 3]
    assert plan.after is not None and plan.after.tolist() == [-1, 0]
