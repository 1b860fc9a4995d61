"""Stops and aborts in whole runs on the null engine: one end a request, and the output that belongs to it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from engine_proc.tokenize import load_tokenizer
from helpers import run_cli

pytestmark = pytest.mark.timeout(120)
QUICK = ["--engine", "null", "--allow-invalid", "--warmup-runs", "0"]


class Result:
    def __init__(self, folder: Path, stdout: str) -> None:
        self.stdout = stdout
        self.summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
        self.counts: dict[str, int] = self.summary["runs"][-1]["counts"]
        self.counters: dict[str, int] = self.summary["counters"]
        with open(folder / "requests.csv", newline="") as file:
            self.rows = list(csv.DictReader(file))
        outputs = folder / "outputs.jsonl"
        self.outputs = [json.loads(line) for line in outputs.read_text().splitlines()] if outputs.exists() else []


def run(tmp_path: Path, *args: str) -> Result:
    out = tmp_path / "out"
    done = run_cli([*QUICK, *args, "--out", str(out)], cwd=tmp_path, timeout=90)
    assert done.returncode == 0, done.stderr + done.stdout
    return Result(out, done.stdout)


def test_a_client_that_gives_up_ends_its_requests_and_keeps_what_had_come(tmp_path: Path) -> None:
    result = run(tmp_path, "--null-service-ms", "30", "--max-new-tokens", "20", "--num-requests", "20", "--rate", "50",
                 "--abort-after-ms", "200")  # fmt: skip
    assert result.counts["aborted"] == 20
    assert {row["error"] for row in result.rows} == {"the client gave up waiting"}
    tokens = [int(row["output_tokens"]) for row in result.rows]
    assert min(tokens) >= 1 and max(tokens) <= 10, "200 ms are less than 7 steps, and less than 11 where one is late"
    assert (result.counters["aborts_sent"], result.counters["aborts"], result.counters["late_aborts"]) == (20, 20, 0)


def test_every_request_of_a_crowd_ends_once_given_up_or_not(tmp_path: Path) -> None:
    """More than the engine can do: some finish, others are given up in the queue, in a batch, or just as they end."""
    result = run(tmp_path, "--null-service-ms", "1", "--max-new-tokens", "3", "--num-requests", "600", "--rate", "2000",
                 "--max-batch-size", "4", "--abort-after-ms", "60")  # fmt: skip
    counts, counters = result.counts, result.counters
    assert counts["completed"] > 0 and counts["aborted"] > 0
    assert counts["completed"] + counts["aborted"] == counts["planned"] == 600
    assert counts["lost"] == counters["repeated_results"] == counters["bad_frames"] == 0
    assert counters["terminal"] == counters["finished"] == 600
    assert counts["aborted"] == counters["aborts"] - counters["late_aborts"]
    assert result.summary["violations"]["count"] == 0


def test_a_text_that_is_given_up_while_it_is_tokenized_never_enters_the_queue(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "some words " * 400_000}) + "\n")
    result = run(tmp_path, "--prompts", str(prompts), "--tokenize-workers", "1", "--abort-after-ms", "200")
    slow = result.rows[0]
    assert slow["status"] == "aborted"
    assert int(slow["t_ingress_ns"]) - int(slow["t_send_ns"]) < 200_000_000, "it was to be with the tokenizer by then"
    assert int(slow["t_tokenized_ns"]) - int(slow["t_send_ns"]) > 200_000_000, "tokenizing was to take longer"
    assert slow["t_queued_ns"] == "0"


def test_nobody_is_given_up_unasked(tmp_path: Path) -> None:
    assert run(tmp_path, "--num-requests", "20", "--rate", "100").counters["aborts"] == 0


# Row i of the null engine gets token 31 * i + 7 * k + 1 as its k-th: row 0 gets 1, 8, 15, 22, 29 ...


def test_a_stop_id_ends_the_request_that_meets_it(tmp_path: Path) -> None:
    result = run(tmp_path, "--num-requests", "3", "--rate", "100", "--max-new-tokens", "6", "--stop-ids", "15",
                 "--save-outputs")  # fmt: skip
    assert [row["finish_reason"] for row in result.rows] == ["stop", "length", "length"]
    assert [row["output_tokens"] for row in result.rows] == ["3", "6", "6"]
    assert result.outputs[0]["token_ids"] == [1, 8, 15]
    assert result.outputs[0]["text"] == load_tokenizer("builtin:gpt2").decode([1, 8]), "without the stop"


def test_a_stop_string_over_two_tokens_ends_the_request_and_its_text_ends_before_it(tmp_path: Path) -> None:
    decode = load_tokenizer("builtin:gpt2").decode
    stop = decode([15, 22])
    result = run(tmp_path, "--num-requests", "3", "--rate", "100", "--max-new-tokens", "6", "--stop", "never", "--stop",
                 stop, "--save-outputs")  # fmt: skip
    assert [row["finish_reason"] for row in result.rows] == ["stop", "length", "length"]
    assert result.outputs[0]["token_ids"] == [1, 8, 15, 22], "its tokens were computed, and count"
    assert result.outputs[0]["text"] == decode([1, 8])
    assert result.outputs[1]["text"] == decode(result.outputs[1]["token_ids"])


def test_a_stop_id_that_no_output_can_hold_is_refused_with_the_vocabulary(tmp_path: Path) -> None:
    done = run_cli([*QUICK, "--num-requests", "3", "--stop-ids", "15,60000"], cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "isorate: --stop-ids: 60000 is outside the model's vocabulary of 50257 tokens\n"
    assert list(tmp_path.iterdir()) == []
