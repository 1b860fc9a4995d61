"""The texts of a load: the published construction, or a file of prompts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.common.errors import ConfigError
from harness.plan.files import MAX_TEXT_BYTES, read_bytes


@dataclass(frozen=True, slots=True)
class PromptFile:
    """The prompts of a file in its order; `blank_lines` were skipped."""

    texts: list[str]
    blank_lines: int
    format: Literal["jsonl", "text"]


def construct(prompt: str, repeats: tuple[int, ...], count: int, unique: bool) -> list[str]:
    """The published construction: `" ".join([prompt] * repeats)`, plus ` [i]` where `unique`.

    `repeats` is cycled over the `count` requests. Raises ConfigError where the texts would exceed MAX_TEXT_BYTES.
    """
    per_repeat = len(prompt.encode()) + 1
    cycles = -(-count // len(repeats))
    if sum(repeats) * per_repeat * cycles > MAX_TEXT_BYTES:
        raise ConfigError(f"--prompt-repeats: the prompts of {count} requests would exceed {MAX_TEXT_BYTES} bytes")
    bases = [" ".join([prompt] * times) for times in repeats]
    if not unique:
        return [bases[i % len(bases)] for i in range(count)]
    return [f"{bases[i % len(bases)]} [{i}]" for i in range(count)]


def read_prompts(path: Path) -> PromptFile:
    """Read JSON Lines or plain text, one prompt a line.

    JSON Lines where the name ends in .jsonl or .json, or the first character that is no white space is `{`; else plain
    text. A line of JSON Lines is an object with `prompt` (a string; it wins) or `turns` (a list of strings, the first
    one is the prompt), or a plain string; an empty string stays, and is the engine's to reject. Blank lines are skipped
    and counted, a byte-order mark is dropped, lines end in LF or CRLF. Raises ConfigError naming file, line and field.
    """
    data = read_bytes(path, "--prompts")
    lines = data.split(b"\n")
    is_json = path.suffix.lower() in (".jsonl", ".json") or data.lstrip()[:1] == b"{"
    texts: list[str] = []
    blank_lines = 0
    for number, raw in enumerate(lines, start=1):
        where = f"--prompts {path}, line {number}"
        try:
            line = raw.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{where}: not valid UTF-8 (byte {error.start + 1} of the line)") from None
        if not line.strip():
            blank_lines += number < len(lines)  # what follows the last newline is no line
        else:
            texts.append(_from_json(line, where) if is_json else line)
    if not texts:
        raise ConfigError(f"--prompts {path}: the file holds no prompt")
    return PromptFile(texts, blank_lines, "jsonl" if is_json else "text")


def _from_json(line: str, where: str) -> str:
    """The prompt of one line of JSON. Raises ConfigError that starts with `where` and names the field."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        what = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise ConfigError(f"{where}: not valid JSON ({what})") from None
    field = "the line"
    if isinstance(value, dict):
        field, value = _field(value, where)
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {field} must be a string, not {_json_type(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: {field} holds half of a surrogate pair, which UTF-8 cannot carry") from None
    return value


def _field(record: dict[str, object], where: str) -> tuple[str, object]:
    """The field that holds the prompt, by name, and its value."""
    if "prompt" in record:
        return "field 'prompt'", record["prompt"]
    if "turns" not in record:
        raise ConfigError(f"{where}: neither field 'prompt' nor field 'turns' is there")
    turns = record["turns"]
    if not isinstance(turns, list):
        raise ConfigError(f"{where}: field 'turns' must be a list, not {_json_type(turns)}")
    if not turns:
        raise ConfigError(f"{where}: field 'turns' is an empty list")
    return "field 'turns[0]'", turns[0]


def _json_type(value: object) -> str:
    words = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return words.get(type(value), "a number")
