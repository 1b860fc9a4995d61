"""Words of the ledger: which stamps a row has, who writes them, in which order they must stand.

Every value is int64; a stamp of 0 means "not stamped". Columns whose name starts with `t_` are CLOCK_MONOTONIC ns.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Status(IntEnum):
    """Terminal status of a request; each row ends with exactly one (NONE only while the run is going on)."""

    NONE = 0
    COMPLETED = 1
    REJECTED = 2
    REFUSED = 3
    FAILED = 4
    ABORTED = 5
    UNFINISHED = 6
    LOST = 7

    @property
    def word(self) -> str:
        return self.name.lower()


class FinishReason(IntEnum):
    """Why a completed request ended."""

    NONE = 0
    LENGTH = 1
    EOS = 2
    STOP = 3
    EMPTY = 4  # zero new tokens were asked for

    @property
    def word(self) -> str:
        return "" if self is FinishReason.NONE else self.name.lower()


class Reason(IntEnum):
    """Why a request did not complete. Stored as a number with two arguments, so that a crash keeps it."""

    NONE = 0
    EMPTY_PROMPT = 1
    TOO_LONG = 2
    ID_OUT_OF_VOCAB = 3
    NEGATIVE_MAX_NEW_TOKENS = 4
    DUPLICATE_ID = 5
    TOKENIZER_ERROR = 6
    BACKEND_ERROR = 7
    ENGINE_DIED = 8
    SUBMITTER_DIED = 9
    STALLED = 10
    DRAIN_TIMEOUT = 11
    INTERRUPTED = 12
    PARENT_DIED = 13
    NOT_SENT = 14
    SEND_WOULD_BLOCK = 15
    SEND_ERROR = 16
    NO_WORD = 17
    TOO_LARGE_FOR_CACHE = 18
    RUN_FAILED = 19
    CLIENT_GAVE_UP = 20


#: One sentence a reason; `{a}` and `{b}` are the row's two error arguments.
REASON_TEXT: dict[Reason, str] = {
    Reason.NONE: "",
    Reason.EMPTY_PROMPT: "the prompt has no tokens",
    Reason.TOO_LONG: "{a} prompt tokens and the new tokens exceed the context of {b}",
    Reason.ID_OUT_OF_VOCAB: "token id {a} is outside the vocabulary of {b}",
    Reason.NEGATIVE_MAX_NEW_TOKENS: "max_new_tokens is {a}",
    Reason.DUPLICATE_ID: "a request with this id was already seen",
    Reason.TOKENIZER_ERROR: "the tokenizer raised an error",
    Reason.BACKEND_ERROR: "the engine backend raised an error",
    Reason.ENGINE_DIED: "the engine process died",
    Reason.SUBMITTER_DIED: "the submitter process died",
    Reason.STALLED: "the engine made no progress within the stall timeout",
    Reason.DRAIN_TIMEOUT: "the drain timeout was over",
    Reason.INTERRUPTED: "the run was interrupted",
    Reason.PARENT_DIED: "the harness process died",
    Reason.NOT_SENT: "the run ended before this request was sent",
    Reason.SEND_WOULD_BLOCK: "the send call would have blocked (errno {a})",
    Reason.SEND_ERROR: "the send call failed (errno {a})",
    Reason.NO_WORD: "no word came of it although everything else was settled",
    Reason.RUN_FAILED: "the run failed",
    Reason.TOO_LARGE_FOR_CACHE: "needs {a} KV blocks, the pool has {b}",
    Reason.CLIENT_GAVE_UP: "the client gave up waiting",
}


def reason_text(code: int, a: int, b: int) -> str:
    """The sentence of a reason code with its two arguments; an unknown code is named, not hidden."""
    try:
        return REASON_TEXT[Reason(code)].format(a=a, b=b)
    except ValueError:
        return f"unknown reason {code}"


class EndReason(IntEnum):
    """Why a session ended; the harness writes it into the collector, so 0 means that the harness itself died."""

    PARENT_DIED = 0
    DONE = 1
    DRAIN_TIMEOUT = 2
    INTERRUPTED = 3
    ENGINE_DIED = 4
    SUBMITTER_DIED = 5
    STALLED = 6
    FAILED = 7  # an error of the harness itself, or a child that broke the protocol

    @property
    def word(self) -> str:
        return self.name.lower()


class SendResult(IntEnum):
    """What became of the send call of a row."""

    NOT_SENT = 0
    SENT = 1
    REFUSED = 2
    ERROR = 3


#: Columns of each writer's block; the index in the tuple is the column's place in a row.
SUBMITTER_COLUMNS = ("t_intended", "t_send", "t_sent", "send_result", "send_errno", "t_slot")
ENGINE_COLUMNS = (
    "t_wire", "t_ingress", "t_tokenize_start", "t_tokenized", "t_queued", "t_scheduled", "t_first_token",
    "t_last_token", "ingress_parked", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions",
    "preempted_ns", "engine_status", "finish_reason", "error_code", "error_a", "error_b",
)  # fmt: skip
#: t_ended: when the row's end was heard, whatever end it was; a row gated on it is due from then on.
RECEIVER_COLUMNS = (
    "t_delivered", "t_finished", "receiver_status", "received_tokens", "close_status", "close_reason", "t_ended",
)  # fmt: skip
STEP_COLUMNS = (
    "t_start", "t_batch", "t_tokens", "t_end", "prefill_tokens", "decode_rows", "kv_blocks_used", "preemptions",
    "tokens_end", "run", "prefill_rows",
)  # fmt: skip

#: Every stamp in the order of requests.csv.
STAMPS = (
    "t_intended", "t_slot", "t_send", "t_sent", "t_wire", "t_ingress", "t_tokenize_start", "t_tokenized", "t_queued",
    "t_scheduled", "t_first_token", "t_last_token", "t_delivered", "t_finished",
)  # fmt: skip


class Part(NamedTuple):
    """One part of TTFT: the time from stamp `start` to stamp `end`."""

    name: str
    start: str
    end: str


class Ledger(NamedTuple):
    """The declared chain of stamps of a topology; its parts are the adjacent differences.

    coincident: stamps that are one and the same instant in this topology, so that no part lies between them.
    """

    name: str
    parts: tuple[Part, ...]
    chains: tuple[tuple[str, ...], ...]
    coincident: tuple[str, ...] = ()


#: What a request that was due waited for a free slot (--max-concurrency) or for the word of its predecessor's end.
CAP_WAIT = "cap_wait"

SEPARATE_LEDGER = Ledger(
    name="separate",
    parts=(
        Part(CAP_WAIT, "t_intended", "t_slot"),
        Part("submit_lag", "t_slot", "t_send"),
        Part("transit", "t_send", "t_wire"),
        Part("ingress_wait", "t_wire", "t_ingress"),
        Part("tokenize_wait", "t_ingress", "t_tokenize_start"),
        Part("tokenize", "t_tokenize_start", "t_tokenized"),
        Part("loop_wait", "t_tokenized", "t_queued"),
        Part("queue_wait", "t_queued", "t_scheduled"),
        Part("prefill", "t_scheduled", "t_first_token"),
        Part("delivery", "t_first_token", "t_delivered"),
    ),
    chains=(
        ("t_intended", "t_slot", "t_send", "t_sent"),
        ("t_send", "t_wire", "t_ingress", "t_tokenize_start", "t_tokenized", "t_queued", "t_scheduled",
         "t_first_token", "t_delivered", "t_finished"),
        ("t_first_token", "t_last_token", "t_finished"),
    ),
)  # fmt: skip

#: Submitter and engine in one process: add_request hands over, so nothing is on the way and nothing waits to enter.
INPROC_LEDGER = SEPARATE_LEDGER._replace(
    name="inproc",
    parts=tuple(
        part._replace(start="t_send") if part.name == "tokenize_wait" else part
        for part in SEPARATE_LEDGER.parts
        if part.name not in ("transit", "ingress_wait")
    ),
    coincident=("t_send", "t_wire", "t_ingress"),
)
LEDGERS = {ledger.name: ledger for ledger in (SEPARATE_LEDGER, INPROC_LEDGER)}
