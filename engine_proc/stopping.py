"""Stop strings and stop ids of one request. Used by the step loop, so that every backend has them. No torch.

The output is matched as bytes, not as text: a character that two tokens share is whole as soon as its last byte is
there, and UTF-8 is self-synchronizing, so bytes match exactly where the decoded text does. What has come out since the
last match could begin is kept, no more, so a request costs the same for each token however long it gets.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.common.protocol import Sampling

#: The bytes that a token adds to the output.
TokenBytes = Callable[[int], bytes]


class StopMatcher:
    """Watches the output of one request. owned by: step loop"""

    def __init__(self, sampling: Sampling, token_bytes: TokenBytes) -> None:
        self._ids = frozenset(sampling.stop_ids)
        self._stops = tuple(text.encode() for text in sampling.stop)
        self._keep = max((len(stop) for stop in self._stops), default=1) - 1
        self._tail = b""
        self._token_bytes = token_bytes

    def feed(self, token_id: int) -> bool:
        """Take the next token of the output; whether the output ends with it."""
        if token_id in self._ids:
            return True
        if not self._stops:
            return False
        text = self._tail + self._token_bytes(token_id)
        self._tail = text[len(text) - self._keep :] if len(text) > self._keep else text
        return any(stop in text for stop in self._stops)


def watch(sampling: Sampling, token_bytes: TokenBytes) -> StopMatcher | None:
    """A matcher, or None for a request that asks for none."""
    return StopMatcher(sampling, token_bytes) if sampling.stop_ids or sampling.stop else None
