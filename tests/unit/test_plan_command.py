"""`isorate plan`: what it says of a load, what it writes, and that the helper processes answer as the engine would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine_proc.limits import read_limits
from engine_proc.models.gpt2 import GPT2Config
from harness.cli.options import GROUPS, plan_parser
from harness.cli.plan_command import plan_load
from harness.common.errors import ConfigError, RunError
from harness.common.plan_file import load_plan
from harness.config.run_config import RunConfig
from harness.plan import model_helper
from helpers import run_cli

HELLO: dict[str, Any] = {"prompt_repeats": 256, "unique_prompts": True, "num_requests": 256, "submit_interval_ms": 1}


def described(capsys: pytest.CaptureFixture[str], **options: Any) -> dict[str, object]:
    assert plan_load(RunConfig(**options), as_json=True) == 0
    parsed: dict[str, object] = json.loads(capsys.readouterr().out)
    return parsed


def test_the_published_load_has_its_published_tokens(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """66,304 prompt tokens in all, 259 each: counted by the helper process, whose tokenizer is the engine's."""
    out = tmp_path / "plan.npz"
    block = described(capsys, **HELLO, max_new_tokens=1, pretok=True, out=out)
    assert block["prompt_tokens"] == 66_304
    assert block["nominal_rate"] == 1000.0
    lengths = block["prompt_lengths"]
    assert isinstance(lengths, dict) and (lengths["min"], lengths["max"]) == (259, 259)
    plan = load_plan(out)
    assert plan.sha256() == block["sha256"] and plan.pretokenized


def test_the_text_fits_80_columns_and_has_the_first_rows(tmp_path: Path) -> None:
    trace = tmp_path / "a trace with a long name, to see how lines are broken \x1b[31m.jsonl"
    trace.write_text(
        "".join(f'{{"offset_ns": {i * 10**6}, "input_length": 2000, "output_length": 9}}\n' for i in range(9))
    )
    done = run_cli(["plan", "--trace", str(trace), "--out", str(tmp_path / "kept.npz")])
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout
    assert "9 rows beyond the context of 1,024 tokens" in " ".join(done.stdout.split())
    assert done.stdout.count("2,000           9") == 5
    assert load_plan(tmp_path / "kept.npz").num_requests == 9


def test_a_closed_loop_is_described_by_its_gates_and_not_as_a_burst(capsys: pytest.CaptureFixture[str]) -> None:
    loop = {"think_time": "5", "max_concurrency": 2, "num_requests": 3, "prompt_kind": "random", "input_len": "3"}
    assert plan_load(RunConfig(engine="null", **loop), as_json=False) == 0
    text = capsys.readouterr().out
    assert "closed loop, 2 users, think time 5.00 ms" in text and "5.000000 ms after 0's end" in text
    assert not any(word in text for word in ("burst", "Span", "Gaps", "Dispersion"))


def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("precious")
    with pytest.raises(ConfigError, match="already"):
        plan_load(RunConfig(out=tmp_path / "kept"), as_json=True)
    assert (tmp_path / "kept").read_text() == "precious"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        plan_load(RunConfig(out=tmp_path / "none" / "plan.npz"), as_json=True, helper=lambda *_: "[1]\n")


def test_plan_takes_every_option_of_a_load_and_none_of_another_thing() -> None:
    fields = {action.dest for action in plan_parser("isorate")._actions}
    assert {option.field for option in GROUPS["Traces"]} <= fields
    assert {"rate", "num_requests", "schedule", "prompts", "seed", "engine", "model", "out", "json"} <= fields
    assert fields.isdisjoint({"pacer", "temperature", "device", "engine_cores", "warmup_runs", "quiet"})


# The helper processes


def test_the_limits_of_the_default_model_are_those_of_its_shape() -> None:
    shape = GPT2Config()
    assert read_limits("native", "builtin:gpt2") == (shape.max_positions, shape.vocab_size, [50256])
    assert read_limits("null", "builtin:gpt2").max_model_len == 1 << 20
    assert read_limits("module:factory", "builtin:gpt2").max_model_len is None


def test_the_helper_process_blames_the_input_with_one_line() -> None:
    with pytest.raises(ConfigError, match="no/such") as error:
        model_helper.ask_limits("native", "./no/such")
    assert "\n" not in str(error.value)


def test_the_helper_tokenizer_goes_there_and_back() -> None:
    link = model_helper.HelperTokenizer("native", "builtin:gpt2")
    texts = ["Hello Hello [7]", "\u00e9\n\x00", ""]
    assert link.detokenize(link.tokenize(texts)) == texts
    assert link.vocabulary() == (50257, (50256,), 1024)


def test_an_answer_with_a_text_missing_is_an_error() -> None:
    with pytest.raises(RunError, match="answered 1 of 2 lines"):
        model_helper.ask_tokens("m", ["a", "b"], lambda *_: "[1]\n")


def test_texts_come_back_in_order_and_equal_ones_are_asked_once() -> None:
    asked = []

    def helper(module: str, args: object, text: str) -> str:
        asked.extend(text.splitlines())
        return "".join(f"[{len(json.loads(line))}]\n" for line in text.splitlines())

    rows = model_helper.ask_tokens("m", ["aaa", "b", "aaa", ""], helper)
    assert [row.tolist() for row in rows] == [[3], [1], [3], [0]]
    assert asked == ['"aaa"', '"b"', '""']
