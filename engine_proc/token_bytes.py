"""The bytes that each token adds to the output, as the tokenizer's own decoder would put them there. No torch."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Callable from a token id to its bytes; ids without an entry have none. Remembers what it was asked for.

    Two families of decoders are known: byte level (GPT-2, Llama 3, Qwen, SmolLM), where each character of a token
    stands for a byte, and sentencepiece (Llama 2, Gemma), where U+2581 is a space and <0xNN> a byte.
    """

    def __init__(self, rust: Any) -> None:
        self._rust = rust
        self._byte_level = "ByteLevel" in _decoder_types(rust.decoder)
        self._known: dict[int, bytes] = {}

    def __call__(self, token_id: int) -> bytes:
        known = self._known.get(token_id)
        if known is None:
            token = self._rust.id_to_token(token_id)
            known = self._known[token_id] = b"" if token is None else self._bytes_of(token)
        return known

    def _bytes_of(self, token: str) -> bytes:
        if self._byte_level:
            of_char = byte_of_char()
            # as the decoder does: a token with a character that stands for no byte is literal text
            mapped = [of_char.get(char) for char in token]
            return token.encode() if None in mapped else bytes(value for value in mapped if value is not None)
        byte = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace("\u2581", " ").encode()


@cache
def byte_of_char() -> dict[str, int]:
    """GPT-2's table: the printable character that stands for each byte, the other way round."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    table = {chr(value): value for value in printable}
    others = [value for value in range(256) if value not in printable]
    table.update({chr(256 + place): value for place, value in enumerate(others)})
    return table


def _decoder_types(decoder: Any) -> set[str]:
    """The types of a tokenizer's decoder and of those that it is made of; none where it has no decoder."""

    def types(node: Any) -> set[str]:
        return {str(node["type"])}.union(*(types(part) for part in node.get("decoders", [])))

    return set() if decoder is None else types(json.loads(decoder.__getstate__()))
