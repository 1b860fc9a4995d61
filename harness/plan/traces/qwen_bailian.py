"""Qwen-Bailian's usage traces: Mooncake's fields, but seconds, blocks of 16 tokens, and the chat of each request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.plan.traces.mooncake import read_labelled
from harness.plan.traces.rows import Format


def _recognise(head: Mapping[str, Any]) -> bool:
    return "timestamp" in head and "input_length" in head and "chat_id" in head


QWEN_BAILIAN = Format("qwen-bailian", "Qwen-Bailian JSON Lines", "json", "s", read_labelled, _recognise, 16)
