"""At the end of a session every open row gets the status and the reason that the session's end gives it."""

from __future__ import annotations

import numpy as np

from harness.common.collector import Collector
from harness.common.stamps import EndReason, Reason, SendResult, Status

#: What becomes of a row that was sent and has had no word, by the session's end; every end has its line, for the report
#: is written after whatever ended a session that had begun to send.
_OPEN: dict[EndReason, tuple[Status, Reason]] = {
    EndReason.DONE: (Status.LOST, Reason.NO_WORD),
    EndReason.DRAIN_TIMEOUT: (Status.UNFINISHED, Reason.DRAIN_TIMEOUT),
    EndReason.INTERRUPTED: (Status.UNFINISHED, Reason.INTERRUPTED),
    EndReason.ENGINE_DIED: (Status.FAILED, Reason.ENGINE_DIED),
    EndReason.SUBMITTER_DIED: (Status.FAILED, Reason.SUBMITTER_DIED),
    EndReason.STALLED: (Status.FAILED, Reason.STALLED),
    EndReason.FAILED: (Status.FAILED, Reason.RUN_FAILED),
    EndReason.PARENT_DIED: (Status.UNFINISHED, Reason.PARENT_DIED),
}


def close_rows(collector: Collector, first_row: int, rows: int, end: EndReason) -> None:
    """Fill close_status and close_reason of the open rows first_row .. first_row + rows - 1.

    A row that was never sent is unfinished. One that a stalled engine had ended while the receiver heard nothing of it
    is lost; at a drain timeout it is not: the engine finishes its step after the stop word, when nobody listens.
    A row whose send call began but never returned (its submitter was killed) may be under way: it counts as sent.
    """
    span = slice(first_row, first_row + rows)
    send_result = collector.column("send_result")[span]
    silent = collector.column("receiver_status")[span] == Status.NONE
    status, reason = collector.column("close_status")[span], collector.column("close_reason")[span]
    began = collector.column("t_send")[span] != 0
    unsent = silent & (send_result == SendResult.NOT_SENT) & ~began
    status[unsent], reason[unsent] = Status.UNFINISHED, Reason.NOT_SENT
    is_open = silent & ((send_result == SendResult.SENT) | ((send_result == SendResult.NOT_SENT) & began))
    status[is_open], reason[is_open] = _OPEN[end]
    if end is EndReason.STALLED:
        ended = is_open & (collector.column("engine_status")[span] != Status.NONE)
        status[ended], reason[ended] = Status.LOST, Reason.NO_WORD
    assert not np.any(is_open & (status == Status.NONE))
