"""A trace on its way: file, plan, run, requests.csv. Nothing between may move a request by a nanosecond."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from harness.common.plan_file import load_plan
from helpers import run_cli

OFFSETS = [0, 1, 1000, 7_000_003, 7_000_003, 123_456_789]


@pytest.mark.timeout(90)
def test_a_round_trip_keeps_every_offset_to_the_nanosecond(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lengths = [(3, 1), (5, 2), (0, 1), (4, 0), (2, 1), (2**20, 1)]
    trace.write_text("".join(
        json.dumps({"timestamp_ns": 1_700_000_000 * 10**9 + offset, "input_length": n, "output_length": m}) + "\n"
        for offset, (n, m) in zip(OFFSETS, lengths, strict=True)
    ))  # fmt: skip
    out = tmp_path / "out"
    done = run_cli(["--engine", "null", "--trace", trace, "--warmup-runs", "0", "--allow-invalid", "--out", out])
    assert done.returncode == 0, done.stderr
    assert "1 row beyond the context" in done.stderr and "1 row without prompt tokens" in done.stderr
    with open(out / "requests.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    intended = [int(row["t_intended_ns"]) for row in rows]
    assert [one - intended[0] for one in intended] == OFFSETS
    assert load_plan(out / "plan.npz").offsets_ns.tolist() == OFFSETS
    assert [row["status"] for row in rows] == [
        "completed",
        "completed",
        "rejected",
        "completed",
        "completed",
        "rejected",
    ]
    block = json.loads((out / "summary.json").read_text())["plan"]
    assert block["trace"]["rows"] == block["num_requests"] == len(OFFSETS)
    assert block["trace"]["beyond_context"] == 1
