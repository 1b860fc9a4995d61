"""perf_analyzer's fixed schedule: `data` holds payloads as an OpenAI server takes them, each with its ms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.plan.traces.rows import Format, Reading, RowError, TraceRow, need, stamp, text, tokens

_OUTPUT_FIELDS = ("max_completion_tokens", "max_tokens")


def _read(record: Mapping[str, Any], reading: Reading) -> Iterator[TraceRow]:
    data = need(record, "data")
    if not isinstance(data, list):
        raise RowError("field 'data' must be a list")
    for index, entry in enumerate(data):
        try:
            yield _row(entry, reading)
        except RowError as error:
            raise RowError(f"data[{index}] {error}") from None


def _row(entry: object, reading: Reading) -> TraceRow:
    if not isinstance(entry, dict):
        raise RowError("must be an object")
    payload = _only(entry, "payload")
    if not isinstance(payload, dict):
        raise RowError("field 'payload' must hold an object")
    output = next((name for name in _OUTPUT_FIELDS if name in payload), _OUTPUT_FIELDS[-1])
    return TraceRow(stamp({"timestamp": _only(entry, "timestamp")}, "timestamp", reading), None,
                    tokens(payload, output), prompt=_prompt(payload))  # fmt: skip


def _only(entry: Mapping[str, Any], name: str) -> object:
    """The one value of a list of one; perf_analyzer's files wrap every value so."""
    value = need(entry, name)
    if not isinstance(value, list):
        return value
    if len(value) != 1:
        raise RowError(f"field '{name}' must hold one value, not {len(value)}")
    return value[0]


def _prompt(payload: Mapping[str, Any]) -> str:
    """The text of a payload: its prompt, or the contents of its messages, a line each."""
    for name in ("prompt", "text_input"):
        if name in payload:
            return text(payload[name], f"payload.{name}")
    messages = payload.get("messages")
    if not isinstance(messages, list):
        raise RowError("field 'payload' has neither 'prompt', 'text_input' nor 'messages'")
    contents = [message.get("content") if isinstance(message, dict) else None for message in messages]
    if not all(isinstance(content, str) for content in contents):
        raise RowError("field 'payload.messages' must hold objects with a string 'content'")
    return text("\n".join(str(content) for content in contents), "payload.messages")


def _recognise(head: Mapping[str, Any]) -> bool:
    return isinstance(head.get("data"), list)


PERF_ANALYZER = Format("perf-analyzer", "perf_analyzer fixed schedule (JSON)", "json", "ms", _read, _recognise, 0)
