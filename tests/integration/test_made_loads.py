"""Loads made to length in whole runs: what the engine counts is what was asked for."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from harness.common.plan_file import load_plan
from helpers import run_cli

pytestmark = pytest.mark.timeout(120)
QUICK = ["--engine", "null", "--allow-invalid", "--warmup-runs", "0", "--quiet"]


def run(tmp_path: Path, *args: str) -> tuple[Path, list[dict[str, str]]]:
    out = tmp_path / "out"
    done = run_cli([*QUICK, *args, "--out", str(out)], cwd=tmp_path, timeout=90)
    assert done.returncode == 0, done.stderr + done.stdout
    with open(out / "requests.csv", newline="") as file:
        return out, list(csv.DictReader(file))


def test_the_engine_counts_exactly_the_tokens_that_were_asked_for(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("Rough winds do shake the darling buds of May,\nAnd summer's lease hath all too short a date" * 9)
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("input,output\n" + "".join(f"{5 + i},{1 + i % 7}\n" for i in range(40)))
    out, rows = run(
        tmp_path, "--corpus", str(corpus), "--input-len", f"file:{lengths}#input", "--output-len",
        f"file:{lengths}#output", "--prefix-len", "20", "--prefix-groups", "2", "--num-requests", "40", "--rate", "500",
    )  # fmt: skip
    assert [int(row["prompt_tokens"]) for row in rows] == [25 + i for i in range(40)]
    assert [int(row["output_tokens"]) for row in rows] == [1 + i % 7 for i in range(40)]
    assert {row["status"] for row in rows} == {"completed"}
    summary = json.loads((out / "summary.json").read_text())
    assert summary["plan"]["prefix"] == {"groups": 2, "tokens": 20}
    assert summary["plan"]["output_lengths"]["max"] == 7


def test_random_prompts_are_token_ids_that_a_saved_plan_repeats(tmp_path: Path) -> None:
    out, rows = run(tmp_path, "--prompt-kind", "random", "--input-len", "lognormal:40:30", "--num-requests", "30",
                    "--rate", "500")  # fmt: skip
    plan = load_plan(out / "plan.npz")
    assert plan.prompt_starts is not None and plan.prompt_ids is not None
    assert [int(row["prompt_tokens"]) for row in rows] == np.diff(plan.prompt_starts).tolist()
    assert {row["status"] for row in rows} == {"completed"} and len(rows) == 30
    assert 0 <= plan.prompt_ids.min() < plan.prompt_ids.max() < 50256, "50256 ends a text"


def test_later_turns_come_a_think_time_after_the_end_of_the_turn_before(tmp_path: Path) -> None:
    talks = tmp_path / "talks.jsonl"
    records = [{"turns": ["one two", "three", "four five six"][: 1 + i % 3]} for i in range(9)]
    talks.write_text("".join(json.dumps(record) + "\n" for record in records))
    out, rows = run(tmp_path, "--dataset", str(talks), "--turns", "all", "--session-think-ms", "20", "--rate", "200",
                    "--null-service-ms", "2")  # fmt: skip
    intended, finished = (np.array([int(row[f"t_{name}_ns"]) for row in rows]) for name in ("intended", "finished"))
    after = load_plan(out / "plan.npz").after
    assert after is not None and len(rows) == 18
    later = np.flatnonzero(after >= 0)
    assert len(later) == 9 and np.array_equal(intended[later], finished[after[later]] + 20_000_000)
    firsts = intended[after < 0]
    assert np.array_equal(firsts - firsts[0], np.arange(9) * 5_000_000)
    assert [int(row["prompt_tokens"]) for row in rows[3:6]] == [2, 4, 8]
    arrivals = json.loads((out / "summary.json").read_text())["runs"][-1]["arrivals"]
    assert arrivals["plan"]["rate"] == pytest.approx(200)
