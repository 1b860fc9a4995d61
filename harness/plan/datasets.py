"""Conversations of a dataset: what was said in each turn, what was replied, how long the user thought."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.common.errors import ConfigError
from harness.config.length_text import MAX_LENGTH
from harness.plan.tables import Record, read_records, type_word

FORMATS = ("sharegpt", "spec_bench", "humaneval", "gsm8k", "jsonl", "csv", "parquet")
FLAG = "--dataset"

_USERS = ("human", "user")
_ASSISTANTS = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
_MESSAGE_FIELDS = ("conversations", "conversation", "messages", "items")
_THINK_FIELDS = ("think_ms", "delay")
_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_MAX_THINK_MS = 366 * 24 * 3600 * 1000


class Turn(NamedTuple):
    """said: what comes new to the engine. reply: what was recorded, its text or its length in tokens; None: nothing.

    think_ms: from the end of the turn before to this one; None where the file does not say.
    """

    said: str
    reply: str | int | None = None
    think_ms: float | None = None


class Conversation(NamedTuple):
    """where: flag, file and line. turns: at least one."""

    where: str
    turns: tuple[Turn, ...]


class Dataset(NamedTuple):
    """skipped: records without a word of a user."""

    format: str
    conversations: list[Conversation]
    skipped: int


def read_dataset(path: Path, format_: str, prompt_field: str | None, output_field: str | None) -> Dataset:
    """Read a dataset in one of FORMATS, or "auto": by its name and its first record.

    prompt_field: the field of a record that holds the prompt (or a list of turns, or of messages); output_field: the
    field that holds the output, its text or its length in tokens. None: those of the format. Raises ConfigError naming
    file, line and field.
    """
    records = read_records(path, FLAG)
    chosen = recognised(path, records[0]) if format_ == "auto" else format_
    fields = _Fields(chosen, prompt_field, output_field)
    read = [fields.conversation(record) for record in records]
    conversations = [one for one in read if one is not None]
    if not conversations:
        raise ConfigError(f"{FLAG} {path}: no record holds a prompt")
    return Dataset(chosen, conversations, len(read) - len(conversations))


def recognised(path: Path, record: Record) -> str:
    """The format of a file by its name and first record."""
    names = set(record.fields)
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".parquet"):
        return "parquet"
    if name.endswith(".csv"):
        return "csv"
    if names & {"conversations", "conversation"}:
        return "sharegpt"
    if {"task_id", "prompt", "canonical_solution"} <= names:
        return "humaneval"
    if {"question", "answer"} <= names:
        return "gsm8k"
    if {"question_id", "turns"} <= names:
        return "spec_bench"
    return "jsonl"


class _Fields:
    """Where a format keeps prompt and output."""

    def __init__(self, format_: str, prompt_field: str | None, output_field: str | None) -> None:
        own: dict[str, tuple[Sequence[str], Sequence[str]]] = {
            "sharegpt": (_MESSAGE_FIELDS, ()),
            "spec_bench": (("turns",), ()),
            "humaneval": (("prompt",), ("canonical_solution",)),
            "gsm8k": (("question",), ("answer",)),
        }
        prompts, outputs = own.get(format_, (("prompt", "turns", *_MESSAGE_FIELDS, "question", "text"), ()))
        self._prompts = prompts if prompt_field is None else (prompt_field,)
        self._outputs = outputs if output_field is None else (output_field,)
        self._output_needed = output_field is not None
        self._spelled = format_ == "csv"  # every cell is text, a number too

    def conversation(self, record: Record) -> Conversation | None:
        """The conversation of a record, None where no user says a word in it."""
        name = next((name for name in self._prompts if name in record.fields), None)
        if name is None:
            wanted = " or ".join(repr(name) for name in self._prompts)
            raise ConfigError(f"{record.where}: there is no field {wanted}; there are {_names(record)}")
        value = record.fields[name]
        where = f"{record.where}: field {name!r}"
        if isinstance(value, list) and value and isinstance(value[0], dict):
            turns = _messages(value, where)
        elif isinstance(value, list):
            turns = [Turn(_text(item, f"{where}[{place}]")) for place, item in enumerate(value)]
        else:
            turns = [Turn(_text(value, where))]
        turns = self._with_outputs(record, turns)
        return Conversation(record.where, tuple(_with_thinking(record, turns))) if turns else None

    def _with_outputs(self, record: Record, turns: list[Turn]) -> list[Turn]:
        """The same turns with the replies of the output field: a list has one each, else it is that of the last."""
        name = next((name for name in self._outputs if name in record.fields), None)
        if name is None:
            if self._output_needed:
                raise ConfigError(f"{record.where}: there is no field {self._outputs[0]!r}; there are {_names(record)}")
            return turns
        value = record.fields[name]
        where = f"{record.where}: field {name!r}"
        if isinstance(value, list):
            replies = [self._reply(item, f"{where}[{place}]") for place, item in enumerate(value)]
            answered = [turn._replace(reply=reply) for turn, reply in zip(turns, replies, strict=False)]
            return answered + turns[len(answered) :]
        return [*turns[:-1], turns[-1]._replace(reply=self._reply(value, where))] if turns else turns

    def _reply(self, value: object, where: str) -> str | int:
        """A text, or a length in tokens: an integer."""
        if self._spelled and isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            return _text(value, where)
        if not 1 <= value <= MAX_LENGTH:
            raise ConfigError(f"{where} must be a text or a length from 1 to {MAX_LENGTH}, not {str(value)[:40]!r}")
        return value


def _messages(messages: list[Any], where: str) -> list[Turn]:
    """Turns of a list of messages: what stands before a reply, joined by line ends, is what was said.

    Roles are in `from` or `role`, texts in `value` or `content`. A reply before the first word of a user is part of
    what was said; what follows the last reply is a turn without one.
    """
    turns: list[Turn] = []
    said: list[str] = []
    think: float | None = None
    any_user = False
    for place, message in enumerate(messages):
        at = f"{where}[{place}]"
        if not isinstance(message, dict):
            raise ConfigError(f"{at} must be an object, not {type_word(message)}")
        role, text = _role(message, at), _message_text(message, at)
        if role in _ASSISTANTS and any_user:
            turns.append(Turn("\n".join(said), text, think))
            said, any_user, think = [], False, None
            continue
        said.append(text)
        any_user = any_user or role in _USERS
        think = next((_think(message[name], f"{at}.{name}") for name in _THINK_FIELDS if name in message), think)
    if any_user:
        turns.append(Turn("\n".join(said), None, think))
    return turns


def _role(message: dict[str, Any], where: str) -> str:
    role = message.get("from", message.get("role"))
    if not isinstance(role, str):
        raise ConfigError(f"{where} has no role: field 'from' or 'role' must be a string")
    return role.lower()


def _message_text(message: dict[str, Any], where: str) -> str:
    name = "value" if "value" in message else "content"
    if name not in message:
        raise ConfigError(f"{where} has no text: there is neither field 'value' nor field 'content'")
    return _text(message[name], f"{where}.{name}")


def _with_thinking(record: Record, turns: list[Turn]) -> list[Turn]:
    """A number of ms holds for every turn, a list has one for each; what a message says itself stays."""
    name = next((name for name in _THINK_FIELDS if name in record.fields), None)
    value = record.fields.get(name) if name else None
    if value is None:
        return turns
    where = f"{record.where}: field {name!r}"
    if isinstance(value, list):
        if len(value) < len(turns):
            raise ConfigError(f"{where} has {len(value)} times for {len(turns)} turns")
        times = [_think(item, f"{where}[{place}]") for place, item in enumerate(value)]
    else:
        times = [_think(value, where)] * len(turns)
    return [
        turn if turn.think_ms is not None else turn._replace(think_ms=time)
        for turn, time in zip(turns, times, strict=False)
    ]


def _think(value: object, where: str) -> float:
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1.0
    except (ValueError, OverflowError):
        number = -1.0
    if not 0 <= number <= _MAX_THINK_MS:
        raise ConfigError(f"{where} must be a time in ms from 0 to {_MAX_THINK_MS}, not {str(value)[:40]!r}")
    return number


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where} must be a string, not {type_word(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{where} holds half of a surrogate pair, which UTF-8 cannot carry") from None
    return value


def _names(record: Record) -> str:
    return ", ".join(repr(name) for name in list(record.fields)[:12]) or "none"
