"""Prompts: the published construction, and files whose every fault is named by file, line and field."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.common.errors import ConfigError
from harness.config.run_config import RunConfig
from harness.plan import files
from harness.plan.build import build_texts
from harness.plan.prompts import construct, read_prompts
from helpers import ROOT

DATA = ROOT.parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data folder is not beside this checkout")


def file_of(tmp_path: Path, content: bytes | str, name: str = "prompts.txt") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refused(path: Path) -> str:
    """The one line that this file is refused with; it names the file."""
    with pytest.raises(ConfigError) as caught:
        read_prompts(path)
    line = str(caught.value)
    assert "\n" not in line and str(path) in line
    return line


def test_the_published_construction() -> None:
    assert construct("Hello", (3,), 2, unique=True) == ["Hello Hello Hello [0]", "Hello Hello Hello [1]"]


def test_without_unique_all_prompts_are_equal() -> None:
    assert construct("Hello", (2,), 3, unique=False) == ["Hello Hello"] * 3


def test_several_repeats_are_cycled_over_the_requests() -> None:
    assert construct("a", (1, 2, 3), 5, unique=False) == ["a", "a a", "a a a", "a", "a a"]


def test_zero_repeats_are_an_empty_prompt() -> None:
    assert construct("Hello", (0,), 1, unique=False) == [""]


def test_prompts_beyond_the_memory_limit_are_refused_before_they_are_built() -> None:
    with pytest.raises(ConfigError, match="--prompt-repeats"):
        construct("Hello", (10_000_000,), 10_000_000, unique=True)


def test_plain_text_is_one_prompt_a_line(tmp_path: Path) -> None:
    assert read_prompts(file_of(tmp_path, "one\n two \nthree")).texts == ["one", " two ", "three"]


def test_blank_lines_of_plain_text_are_skipped_and_counted(tmp_path: Path) -> None:
    result = read_prompts(file_of(tmp_path, "one\n\n  \ntwo\n"))
    assert (result.texts, result.blank_lines) == (["one", "two"], 2)


def test_a_trailing_newline_is_no_blank_line(tmp_path: Path) -> None:
    assert read_prompts(file_of(tmp_path, "one\n")).blank_lines == 0


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    assert read_prompts(file_of(tmp_path, b"\xef\xbb\xbfone\n")).texts == ["one"]


def test_a_byte_order_mark_does_not_hide_json_lines(tmp_path: Path) -> None:
    assert read_prompts(file_of(tmp_path, b'\xef\xbb\xbf{"prompt": "one"}\n')).texts == ["one"]


def test_crlf_line_ends_are_no_part_of_the_prompt(tmp_path: Path) -> None:
    assert read_prompts(file_of(tmp_path, "one\r\ntwo\r\n")).texts == ["one", "two"]


def test_other_unicode_line_separators_do_not_end_a_line(tmp_path: Path) -> None:
    assert read_prompts(file_of(tmp_path, "a\u2028b\x0cc\n")).texts == ["a\u2028b\x0cc"]


@pytest.mark.parametrize(
    ("line", "text"),
    [({"prompt": "p"}, "p"), ({"turns": ["t", "u"]}, "t"), ("s", "s"), ({"prompt": "p", "turns": ["t"]}, "p"),
     ({"prompt": ""}, ""), ("", "")],
)  # fmt: skip
def test_json_lines_hold_a_prompt_the_first_turn_or_a_string(tmp_path: Path, line: object, text: str) -> None:
    assert read_prompts(file_of(tmp_path, json.dumps(line) + "\n", "p.jsonl")).texts == [text]


def test_the_name_decides_the_format(tmp_path: Path) -> None:
    assert read_prompts(file_of(tmp_path, '"a"\n', "p.jsonl")).format == "jsonl"
    assert read_prompts(file_of(tmp_path, '"a"\n', "p.JSON")).format == "jsonl"
    assert read_prompts(file_of(tmp_path, '"a"\n', "p.txt")).texts == ['"a"']


def test_a_brace_as_first_character_decides_the_format(tmp_path: Path) -> None:
    assert read_prompts(file_of(tmp_path, '\n {"prompt": "a"}\n', "p.txt")).texts == ["a"]


@pytest.mark.parametrize(
    ("line", "words"),
    [("not json", "not valid JSON"), ("[1", "not valid JSON"), ("{}", "'prompt'"), ('{"prompt": 3}', "'prompt'"),
     ('{"prompt": null}', "null"), ('{"turns": "t"}', "'turns'"), ('{"turns": []}', "'turns'"),
     ('{"turns": [3]}', "'turns[0]'"), ("[1]", "a list"), ("true", "a boolean"), ("3", "a number"),
     ('{"prompt": "\\ud800"}', "surrogate"), ("[" * 200_000, "not valid JSON"), ("1" * 10_000, "not valid JSON")],
)  # fmt: skip
def test_a_bad_json_line_is_named_by_number_and_field(tmp_path: Path, line: str, words: str) -> None:
    message = refused(file_of(tmp_path, f'{{"prompt": "good"}}\n\n{line}\n', "p.jsonl"))
    assert "line 3" in message and words in message


def test_a_line_of_invalid_utf8_is_named(tmp_path: Path) -> None:
    message = refused(file_of(tmp_path, b"good\nbad \xff\n"))
    assert "line 2" in message and "UTF-8" in message


def test_utf16_is_refused_as_invalid_utf8(tmp_path: Path) -> None:
    assert "UTF-8" in refused(file_of(tmp_path, "one\n".encode("utf-16")))


def test_a_surrogate_pair_in_json_is_one_character(tmp_path: Path) -> None:
    assert read_prompts(file_of(tmp_path, '"\\ud83d\\ude00"\n', "p.jsonl")).texts == ["\U0001f600"]


@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff", " \r\n"])
def test_a_file_without_prompts_is_refused(tmp_path: Path, content: str) -> None:
    assert "no prompt" in refused(file_of(tmp_path, content))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "absent.txt")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "directory" in refused(tmp_path)


def test_a_device_is_refused() -> None:
    assert "not a file" in refused(Path("/dev/zero"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path, "one\n")
    path.chmod(0)
    assert "Permission denied" in refused(path)


def test_a_file_beyond_the_memory_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_TEXT_BYTES", 10)
    assert "exceeds 10 bytes" in refused(file_of(tmp_path, "x" * 11))


def test_the_file_gives_as_many_requests_as_it_has_prompts(tmp_path: Path) -> None:
    assert build_texts(RunConfig(prompts=file_of(tmp_path, "a\nb\nc\n"))) == ["a", "b", "c"]


def test_more_requests_than_prompts_cycle_over_the_file(tmp_path: Path) -> None:
    config = RunConfig(prompts=file_of(tmp_path, "a\nb\nc\n"), num_requests=5)
    assert build_texts(config) == ["a", "b", "c", "a", "b"]


def test_fewer_requests_than_prompts_take_the_first(tmp_path: Path) -> None:
    assert build_texts(RunConfig(prompts=file_of(tmp_path, "a\nb\nc\n"), num_requests=2)) == ["a", "b"]


@needs_data
def test_spec_bench_has_480_first_turns() -> None:
    path = DATA / "spec_bench" / "question.jsonl"
    rows = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
    assert read_prompts(path).texts == [row["turns"][0] for row in rows]
    assert len(rows) == 480


@needs_data
def test_sonnets_are_read_line_by_line() -> None:
    assert len(read_prompts(DATA / "sonnet" / "sonnet.txt").texts) == 84


@needs_data
def test_a_trace_is_not_mistaken_for_prompts() -> None:
    message = refused(DATA / "bad_inputs" / "b18_bad_timestamp.jsonl")
    assert "line 1" in message and "'prompt'" in message


@needs_data
def test_a_windows_file_loses_its_mark_its_returns_and_its_blank_last_line() -> None:
    result = read_prompts(DATA / "bad_inputs" / "x2_bom_crlf.csv")
    assert len(result.texts) == 3 and result.blank_lines == 1
    assert result.texts[0].startswith("TIMESTAMP") and not any("\r" in text for text in result.texts)
