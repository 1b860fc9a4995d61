"""Whole runs on the null engine with real processes and sockets: what the result folder says is what happened."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from engine_proc.backends.null import scripted_token
from harness.common.plan_file import load_plan
from harness.common.stamps import SEPARATE_LEDGER
from harness.measures.contention import SessionProbes
from helpers import run_cli

pytestmark = pytest.mark.timeout(120)
#: Without probes, which take most of a second to compile; one run has them.
QUICK = ["--engine", "null", "--allow-invalid", "--probes", "off"]


class Result:
    """A result folder, read with the standard library and NumPy alone."""

    def __init__(self, folder: Path, stdout: str) -> None:
        self.folder = folder
        self.stdout = stdout
        self.summary = json.loads((folder / "summary.json").read_text(), parse_constant=_refuse)
        with open(folder / "requests.csv", newline="") as file:
            self.rows = list(csv.DictReader(file))

    def measured(self) -> list[dict[str, str]]:
        warmup = {str(i) for i, run in enumerate(self.summary["runs"]) if run["warmup"]}
        return [row for row in self.rows if row["run"] not in warmup]

    def column(self, name: str) -> np.ndarray:
        return np.array([int(row[name]) for row in self.measured()])

    def last_run(self) -> dict[str, object]:
        run: dict[str, object] = self.summary["runs"][-1]
        return run


def _refuse(constant: str) -> float:
    raise AssertionError(f"summary.json holds {constant}")


def run(tmp_path: Path, *args: str, code: int = 0) -> Result:
    out = tmp_path / "out"
    done = run_cli([*QUICK, *args, "--out", str(out)], cwd=tmp_path, timeout=90)
    assert done.returncode == code, done.stderr + done.stdout
    return Result(out, done.stdout)


@pytest.fixture(scope="module")
def absolute(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("absolute")
    return run(folder, "--rate", "500", "--num-requests", "400", "--max-new-tokens", "3", "--null-service-ms", "0.3",
               "--repeat-runs", "2", "--save-outputs", "--probes", "on")  # fmt: skip


def test_every_request_completes_and_is_counted_once(absolute: Result) -> None:
    for measured in absolute.summary["runs"][1:]:
        assert measured["counts"]["planned"] == measured["counts"]["sent"] == measured["counts"]["completed"] == 400


def test_probes_name_every_thread_and_say_how_often_they_looked(absolute: Result) -> None:
    seen = absolute.last_run()["contention"]
    assert isinstance(seen, dict)
    assert {"step-loop", "wire", "ingress", "gil-probe"} <= seen["threads"]["engine"].keys()
    assert {"receiver", "hiccups"} <= seen["threads"]["harness"].keys() and "pacer" in seen["threads"]["submitter"]
    assert seen["gil_wait"]["count"] >= 10 and seen["gil_wait"]["lost"] == 0
    assert seen["gc_submitter"]["count"] == 0
    probes = SessionProbes.load(absolute.folder / "probes.npz")
    assert len(probes.rings["gil"].rows) >= seen["gil_wait"]["count"]


def test_a_run_without_probes_says_so(tmp_path: Path) -> None:
    result = run(tmp_path, "--rate", "200", "--num-requests", "20", "--max-new-tokens", "1")
    assert result.last_run()["contention"] is None
    assert not (result.folder / "probes.npz").exists()


def test_both_chains_hold_and_parts_sum_to_ttft_on_every_row(absolute: Result) -> None:
    assert len(absolute.rows) == 8 + 2 * 400
    for row in absolute.rows:
        for chain in SEPARATE_LEDGER.chains:
            stamps = [int(row[f"{name}_ns"]) for name in chain]
            assert stamps == sorted(stamps) and stamps[0] > 0
        parts = [int(row[f"{part.end}_ns"]) - int(row[f"{part.start}_ns"]) for part in SEPARATE_LEDGER.parts]
        assert min(parts) >= 0
        assert sum(parts) == int(row["t_delivered_ns"]) - int(row["t_intended_ns"])


def test_percentiles_of_the_summary_equal_numpys_on_the_csv(absolute: Result) -> None:
    rows = [row for row in absolute.rows if row["run"] == absolute.rows[-1]["run"]]
    ttft = np.array([int(row["t_delivered_ns"]) - int(row["t_intended_ns"]) for row in rows])
    figures = absolute.last_run()["metrics"]["ttft"]
    for name, percentile in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("p99_9", 99.9)):
        assert figures[name] == pytest.approx(np.percentile(ttft, percentile) / 1e6, rel=1e-12)


def test_the_absolute_clock_keeps_the_plan_to_the_nanosecond(absolute: Result) -> None:
    plan = load_plan(absolute.folder / "plan.npz")
    intended = absolute.column("t_intended_ns")[:400]
    assert np.array_equal(intended - intended[0], plan.offsets_ns - plan.offsets_ns[0])


def test_each_row_gets_its_own_tokens(absolute: Result) -> None:
    lines = [json.loads(line) for line in (absolute.folder / "outputs.jsonl").read_text().splitlines()]
    assert len(lines) >= 800
    last = [line for line in lines if line["run"] == lines[-1]["run"]]
    first_row = 8 + 400
    for line in last:
        row = first_row + line["request"]
        assert line["token_ids"] == [scripted_token(row, k, 50257) for k in range(3)]
        assert isinstance(line["text"], str)


def test_piped_output_holds_no_escape_codes(absolute: Result) -> None:
    assert "\x1b" not in absolute.stdout
    assert "TTFT" in absolute.stdout


def test_the_relative_clock_starts_each_gap_at_the_end_of_the_send_before(tmp_path: Path) -> None:
    result = run(tmp_path, "--schedule", "relative", "--rate", "500", "--num-requests", "200")
    intended, sent = result.column("t_intended_ns"), result.column("t_sent_ns")
    assert np.array_equal(intended[1:], sent[:-1] + 2_000_000)
    assert result.last_run()["metrics"]["drift"]["count"] == 200


def test_a_burst_sends_everything_at_t0(tmp_path: Path) -> None:
    result = run(tmp_path, "--submit-interval-ms", "0", "--num-requests", "300")
    assert len(set(result.column("t_intended_ns"))) == 1
    assert result.summary["plan"]["nominal_rate"] is None
    assert result.last_run()["counts"]["completed"] == 300


@pytest.mark.parametrize("mode", [["--pretok"], ["--tokenize-workers", "2"], []])
def test_prompt_tokens_are_the_same_however_they_are_tokenized(tmp_path: Path, mode: list[str]) -> None:
    result = run(tmp_path, *mode, "--unique-prompts", "--prompt-repeats", "256,3", "--num-requests", "20",
                 "--submit-interval-ms", "1")  # fmt: skip
    assert result.column("prompt_tokens").sum() == 10 * 259 + 10 * 6


def test_pretokenized_requests_have_no_tokenize_part(tmp_path: Path) -> None:
    result = run(tmp_path, "--pretok", "--num-requests", "10", "--rate", "100")
    assert np.array_equal(result.column("t_ingress_ns"), result.column("t_tokenized_ns"))


def test_a_bad_request_is_rejected_alone_and_its_neighbours_complete(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    texts = ["before", "", "after", "word " * 1_060_000, "last"]
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    result = run(tmp_path, "--prompts", str(prompts), "--rate", "100", "--warmup-runs", "0")
    assert [row["status"] for row in result.measured()] == [
        "completed", "rejected", "completed", "rejected", "completed",
    ]  # fmt: skip
    assert "no tokens" in result.measured()[1]["error"]
    assert "exceed the context" in result.measured()[3]["error"]


def test_zero_new_tokens_is_an_empty_completion(tmp_path: Path) -> None:
    result = run(tmp_path, "--max-new-tokens", "0", "--num-requests", "5", "--rate", "100")
    assert [(row["status"], row["finish_reason"], row["output_tokens"]) for row in result.measured()] == [
        ("completed", "empty", "0")
    ] * 5


def test_the_saved_plan_repeats_the_very_same_load(tmp_path: Path) -> None:
    first = run(tmp_path, "--pretok", "--rate", "200", "--num-requests", "50", "--unique-prompts")
    again = tmp_path / "again"
    again.mkdir()
    second = run(again, "--plan", str(first.folder / "plan.npz"))
    assert second.summary["plan"]["sha256"] == first.summary["plan"]["sha256"]
    assert second.last_run()["counts"]["completed"] == 50


def test_the_plain_twins_measure_the_same_load_but_no_gil_wait(tmp_path: Path) -> None:
    result = run(tmp_path, "--pacer", "python", "--rate", "200", "--num-requests", "100")
    assert result.last_run()["counts"]["completed"] == 100
    assert np.array_equal(result.column("t_wire_ns"), result.column("t_ingress_ns"))
    assert "GIL wait" in result.stdout
    assert result.last_run()["metrics"].get("gil_wait") is None


def test_an_overload_ends_at_the_drain_timeout_with_the_rest_unfinished(tmp_path: Path) -> None:
    result = run(tmp_path, "--rate", "100", "--num-requests", "50", "--null-service-ms", "500", "--warmup-runs", "0",
                 "--max-batch-size", "1", "--drain-timeout-s", "0.5")  # fmt: skip
    counts = result.last_run()["counts"]
    assert counts["unfinished"] > 40
    assert counts["completed"] + counts["unfinished"] == 50


def test_an_engine_of_the_users_own_runs_behind_the_same_stamps(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from engine_proc.backends.null import NullBackend\n"
        "from harness.common.specs import NullSpec\n"
        "def make(spec, clock):\n"
        "    return NullBackend(NullSpec(), spec.max_batch_size, 50257, clock)\n"
    )
    out = tmp_path / "out"
    done = run_cli(
        ["--engine", "mine:make", "--rate", "100", "--num-requests", "10", "--out", str(out), "--allow-invalid"],
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert Result(out, done.stdout).last_run()["counts"]["completed"] == 10
