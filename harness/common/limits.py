"""How large a load may be, whether flags or a plan file describe it. Imports nothing: the command line needs it."""

from __future__ import annotations

MAX_REQUESTS = 10_000_000
MAX_SUBMITTERS = 64  # processes that send one load
MAX_NEW_TOKENS = 1_000_000  # of one request: the collector reserves room for every token that may come
MAX_PAYLOAD_BYTES = 2 * 1024**3  # of all requests together
MAX_THINK_NS = 366 * 24 * 3600 * 10**9  # between a request's end and its successor: no longer than a plan may be
