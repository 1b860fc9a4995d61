"""Opening a GGUF file, and the tokenizer that it holds. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

from harness.common.errors import ConfigError

_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {"llama-bpe": _LLAMA3_SPLIT, "llama3": _LLAMA3_SPLIT, "llama-v3": _LLAMA3_SPLIT, "qwen2": _QWEN2_SPLIT,
           "deepseek-r1-qwen": _QWEN2_SPLIT}  # fmt: skip
_GPT2_LIKE = ("gpt-2", "gpt2", "default", "smollm", "")


def open_gguf(path: Path) -> Any:
    """The reader of a GGUF file."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ConfigError(f"{path} needs the package gguf==0.19.0, which is not installed") from error
    try:
        return GGUFReader(path)
    except Exception as error:  # a damaged file raises ValueError, IndexError, KeyError and NumPy's errors
        text = " ".join(str(error).split())[:200]
        raise ConfigError(f"cannot read {path}: {type(error).__name__}: {text}") from error


def gguf_tokenizer(path: Path) -> tuple[tokenizers.Tokenizer, tuple[int, ...]]:
    """The byte-level BPE tokenizer of a GGUF file, and the ids that end a text. Raises ConfigError for other kinds."""
    fields = open_gguf(path).fields

    def get(name: str, default: Any = None) -> Any:
        field = fields.get(f"tokenizer.ggml.{name}")
        return default if field is None else field.contents()

    kind, split, tokens = get("model"), get("pre", ""), get("tokens", [])
    if kind != "gpt2" or (split not in _GPT2_LIKE and split not in _SPLITS):
        raise ConfigError(f"{path} has a tokenizer of kind {kind!r}/{split!r}, which is not supported in GGUF: "
                          "use the model's folder with its tokenizer.json")  # fmt: skip
    vocab = {token: number for number, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in get("merges", [])]
    rust = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    rust.pre_tokenizer = _pre_tokenizer(split)
    rust.decoder = decoders.ByteLevel()
    kinds = get("token_type", [])
    named = list(zip(tokens, kinds, strict=False))
    rust.add_special_tokens([AddedToken(t, normalized=False, special=True) for t, k in named if k == _CONTROL])
    rust.add_tokens([AddedToken(t, normalized=False) for t, k in named if k == _USER_DEFINED])
    if get("add_bos_token", False):
        start = get("bos_token_id")
        rust.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{tokens[start]} $A", special_tokens=[(tokens[start], start)]
        )
    ends = [get(f"{name}_token_id") for name in ("eos", "eot")]
    return rust, tuple(dict.fromkeys(end for end in ends if isinstance(end, int)))


def gguf_chat_template(path: Path) -> str:
    """The Jinja template of a GGUF file's chats; "" where it has none."""
    field = open_gguf(path).fields.get("tokenizer.chat_template")
    return "" if field is None else str(field.contents())


def _pre_tokenizer(split: str) -> Any:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split == "smollm":  # as in the model's own tokenizer.json: no two digits in one token
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if split in _SPLITS:
        pieces = pre_tokenizers.Split(Regex(_SPLITS[split]), behavior="isolated")
        return pre_tokenizers.Sequence([pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return byte_level
