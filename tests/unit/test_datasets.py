"""Datasets: every format's prompts and replies to the letter, and each fault named by file, line and field."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from harness.common.errors import ConfigError
from harness.plan import files, tables
from harness.plan.datasets import Conversation, Turn, read_dataset
from helpers import ROOT

DATA = ROOT.parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data folder is not beside this checkout")

SHAREGPT = [
    {"id": "a", "conversations": [
        {"from": "human", "value": "Q1"}, {"from": "gpt", "value": "A1"},
        {"from": "human", "value": "Q2"}, {"from": "gpt", "value": "A2"}, {"from": "human", "value": "Q3"}]},
    {"id": "b", "conversations": [{"from": "gpt", "value": "before"}, {"from": "human", "value": "Q"}]},
    {"id": "c", "conversations": []},
    {"id": "d", "conversations": [{"from": "gpt", "value": "alone"}]},
]  # fmt: skip


def file_of(tmp_path: Path, content: Any, name: str = "d.jsonl") -> Path:
    path = tmp_path / name
    if isinstance(content, list) and name.endswith("l"):
        content = "".join(json.dumps(record) + "\n" for record in content)
    elif not isinstance(content, str | bytes):
        content = json.dumps(content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def turns_of(path: Path, **fields: str) -> list[tuple[Turn, ...]]:
    conversations = read_dataset(path, "auto", fields.get("prompt"), fields.get("output")).conversations
    return [one.turns for one in conversations]


@needs_data
def test_spec_bench_has_480_conversations_80_of_them_of_two_turns() -> None:
    dataset = read_dataset(DATA / "spec_bench" / "question.jsonl", "auto", None, None)
    lengths = [len(one.turns) for one in dataset.conversations]
    assert dataset.format == "spec_bench" and len(lengths) == 480 and dataset.skipped == 0
    assert (lengths.count(1), lengths.count(2)) == (400, 80)
    assert all(turn.reply is None for one in dataset.conversations for turn in one.turns)


@pytest.mark.parametrize("name", ["d.json", "d.jsonl"])
def test_sharegpt_turns_have_their_replies(tmp_path: Path, name: str) -> None:
    dataset = read_dataset(file_of(tmp_path, SHAREGPT, name), "auto", None, None)
    assert dataset.format == "sharegpt" and dataset.skipped == 2
    assert [one.turns for one in dataset.conversations] == [
        (Turn("Q1", "A1"), Turn("Q2", "A2"), Turn("Q3")),
        (Turn("before\nQ"),),
    ]


def test_messages_of_roles_and_contents_are_read_alike_and_the_system_speaks_first(tmp_path: Path) -> None:
    record = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q", "delay": 250},
                           {"role": "assistant", "content": "A"}]}  # fmt: skip
    assert turns_of(file_of(tmp_path, [record])) == [(Turn("S\nQ", "A", 250.0),)]


def test_humaneval_and_gsm8k_have_prompt_and_answer(tmp_path: Path) -> None:
    human = {"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "    return 1\n", "test": ""}
    assert turns_of(file_of(tmp_path, [human])) == [(Turn("def f():\n", "    return 1\n"),)]
    assert turns_of(file_of(tmp_path, [{"question": "2+3?", "answer": "5"}])) == [(Turn("2+3?", "5"),)]


def test_a_gzipped_file_is_read_as_what_it_holds(tmp_path: Path) -> None:
    content = gzip.compress(b'{"prompt": "a"}\n{"prompt": "b"}\n', mtime=0)
    assert turns_of(file_of(tmp_path, content, "d.jsonl.gz")) == [(Turn("a"),), (Turn("b"),)]


def test_a_csv_may_have_line_ends_in_a_cell_and_lengths_as_text(tmp_path: Path) -> None:
    path = file_of(tmp_path, '\ufefftext,n\r\n"one\r\ntwo, ""three""",7\r\nx,12\r\n', "d.csv")
    assert turns_of(path, output="n") == [(Turn('one\r\ntwo, "three"', 7),), (Turn("x", 12),)]


def test_a_parquet_file_is_read(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "d.parquet"
    parquet.write_table(pa.table({"prompt": ["a", "b"], "n": [3, 4]}), path)
    assert turns_of(path, output="n") == [(Turn("a", 3),), (Turn("b", 4),)]


def test_the_named_fields_are_read_and_no_others(tmp_path: Path) -> None:
    path = file_of(tmp_path, [{"prompt": "no", "q": ["a", "b"], "r": ["x", 5]}])
    assert turns_of(path, prompt="q", output="r") == [(Turn("a", "x"), Turn("b", 5))]


@pytest.mark.parametrize(("think", "times"), [(100, (100, 100)), ([0, 2.5], (0, 2.5)), (None, (None, None))])
def test_think_times_come_from_the_file(tmp_path: Path, think: Any, times: tuple[float | None, ...]) -> None:
    path = file_of(tmp_path, [{"turns": ["a", "b"], "think_ms": think}])
    assert tuple(turn.think_ms for turn in turns_of(path)[0]) == times


def test_parquet_cells_that_are_no_text_are_named_for_what_they_are(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "d.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(pa.table({"prompt": [b"a"]}), path)
    with pytest.raises(ConfigError, match="row 1: field 'prompt' must be a string, not bytes"):
        turns_of(path)


def test_messages_of_a_parquet_file_are_read(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "d.parquet"
    talk = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
    pytest.importorskip("pyarrow.parquet").write_table(pa.table({"messages": [talk]}), path)
    assert turns_of(path) == [(Turn("Q", "A"),)]


@pytest.mark.parametrize(
    ("name", "content", "fields", "words"),
    [
        ("d.jsonl", '{"prompt": "a"}\n{"prompt": 5}\n', {}, ("line 2", "'prompt'", "a number")),
        ("d.jsonl", '{"prompt": "a"}\n{"other": 5}\n', {}, ("line 2", "'other'")),
        ("d.jsonl", '{"prompt": "a"}\n[1]\n', {}, ("line 2", "a list")),
        ("d.jsonl", '{"prompt": "a"}\n{"pro', {}, ("line 2", "not valid JSON")),
        ("d.jsonl", '{"prompt": "a"}', {"output": "n"}, ("line 1", "'n'")),
        ("d.jsonl", '{"prompt": "a", "n": 0}', {"output": "n"}, ("line 1", "'n'", "from 1 to")),
        ("d.jsonl", '{"prompt": "a", "n": 1' + "0" * 40 + "}", {"output": "n"}, ("'n'", "from 1 to")),
        ("d.jsonl", '{"prompt": "a", "n": 1' + "0" * 5000 + "}", {"output": "n"}, ("line 1", "not valid JSON")),
        ("d.csv", "prompt\na\0b\n", {"output": "n"}, ("'n'",)),
        ("d.jsonl", '{"prompt": "a", "n": 1.5}', {"output": "n"}, ("line 1", "'n'")),
        ("d.jsonl", '{"prompt": "a", "n": true}', {"output": "n"}, ("line 1", "a boolean")),
        ("d.jsonl", '{"prompt": "\\ud800"}', {}, ("line 1", "surrogate")),
        ("d.jsonl", '{"turns": ["a", 5]}', {}, ("line 1", "'turns'[1]")),
        ("d.jsonl", '{"turns": ["a", "b"], "think_ms": [1]}', {}, ("1 times for 2 turns",)),
        ("d.jsonl", '{"prompt": "a", "think_ms": -1}', {}, ("'think_ms'", "from 0")),
        ("d.jsonl", '{"prompt": "a", "delay": "NaN"}', {}, ("'delay'", "from 0")),
        ("d.jsonl", '{"conversations": [{"from": "human"}]}', {}, ("'conversations'[0]", "no text")),
        ("d.jsonl", '{"conversations": [{"value": "x"}]}', {}, ("'conversations'[0]", "no role")),
        ("d.jsonl", '{"conversations": [{"from": "human", "value": "x"}, 3]}', {}, ("'conversations'[1]", "a number")),
        ("d.jsonl", '{"turns": []}', {}, ("no record holds a prompt",)),
        ("d.jsonl", "", {}, ("no record",)),
        ("d.jsonl", b'{"prompt": "\xff"}', {}, ("line 1", "UTF-8")),
        ("d.json", "[", {}, ("not valid JSON",)),
        ("d.json", "[" * 100_000, {}, ("not valid JSON",)),
        ("d.json", '[{"prompt": "a"}, "b"]', {}, ("record 2", "a string")),
        ("d.csv", "prompt,n\na\n", {}, ("line 2", "1 cells")),
        ("d.csv", 'prompt\n"a', {}, ("not valid CSV",)),
        ("d.csv", "prompt\n", {}, ("no record",)),
        ("d.csv", "prompt,prompt\na,b\n", {}, ("line 1", "'prompt'", "twice")),
        ("d.csv", "x\na\n", {"prompt": "q"}, ("line 2", "'q'", "'x'")),
        ("d.csv", "prompt,n\na,0\n", {"output": "n"}, ("line 2", "'n'")),
        ("d.jsonl.gz", b"not gzip", {}, ("gzip",)),
        ("d.jsonl.gz", gzip.compress(b'{"prompt": "a"}', mtime=0)[:-9], {}, ("gzip",)),
        ("d.parquet", b"PAR1 no", {}, ("arquet",)),
    ],
)
def test_a_fault_is_named_by_file_line_and_field(
    tmp_path: Path, name: str, content: str | bytes, fields: dict[str, str], words: tuple[str, ...]
) -> None:
    path = file_of(tmp_path, content, name)
    with pytest.raises(ConfigError) as caught:
        turns_of(path, **fields)
    line = str(caught.value)
    assert line.startswith(f"--dataset {path}") and "\n" not in line and len(line) < 400
    assert all(word in line for word in words), line


def test_a_gzipped_file_cannot_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of(tmp_path, gzip.compress(b'{"prompt": "a"}\n' * 1000), "d.jsonl.gz")
    monkeypatch.setattr(files, "MAX_TEXT_BYTES", 1000)
    with pytest.raises(ConfigError, match="exceeds 1000 bytes"):
        turns_of(path)


def test_a_conversation_says_where_it_was_read(tmp_path: Path) -> None:
    path = file_of(tmp_path, '\n{"prompt": "a"}\n')
    assert read_dataset(path, "auto", None, None).conversations == [
        Conversation(f"--dataset {path}, line 2", (Turn("a"),))
    ]


def test_a_gzip_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of(tmp_path, gzip.compress(bytes(1_000_000)), "d.jsonl.gz")
    monkeypatch.setattr(tables, "_ROOMY_BYTES", 1000)
    with pytest.raises(ConfigError, match="more than 50 times its size"):
        turns_of(path)


def test_a_parquet_dictionary_is_counted_as_what_its_cells_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa, path = pytest.importorskip("pyarrow"), tmp_path / "d.parquet"
    cells = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["x" * 10_000]))
    pytest.importorskip("pyarrow.parquet").write_table(pa.table({"prompt": cells}), path)
    assert len(turns_of(path)) == 1000  # 10 MB
    monkeypatch.setattr(tables, "_ROOMY_BYTES", 1_000_000)
    with pytest.raises(ConfigError, match="more than 50 times its size"):
        turns_of(path)


@pytest.mark.parametrize("kind", ["no such date", "no such span", "no such text", "ns", "no such zone"])
def test_parquet_cells_that_python_cannot_hold_are_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    pa, path = pytest.importorskip("pyarrow"), tmp_path / "d.parquet"
    raw = pa.array([b"\xff"], pa.binary())
    column = {
        "no such date": pa.array([2**30], pa.date32()),
        "no such span": pa.array([2**62], pa.duration("s")),
        "no such text": pa.StringArray.from_buffers(1, raw.buffers()[1], raw.buffers()[2]),
        "ns": pa.array([1], pa.timestamp("ns")),
        "no such zone": pa.array([1], pa.timestamp("us", tz="No/Where")),
    }[kind]
    pytest.importorskip("pyarrow.parquet").write_table(pa.table({"prompt": ["a"], "other": column}), path)
    with pytest.raises(ConfigError, match=r"d\.parquet: cannot be read as Parquet"):
        turns_of(path)


def test_a_parquet_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    pa, path = pytest.importorskip("pyarrow"), tmp_path / "d.parquet"
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["prompt", "prompt"])
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
    with pytest.raises(ConfigError, match="'prompt' is there twice"):
        turns_of(path)
