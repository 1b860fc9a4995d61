"""What each submitter of a run did: shard k of N sends requests k, k + N, k + 2N ... of the plan."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.common.stamps import SendResult
from harness.measures.records import RunRecord
from harness.measures.statistics import summarize

_NS_PER_MS = 1e6


def shards_json(record: RunRecord, submitters: int) -> list[dict[str, Any]]:
    """For each submitter: `planned`, `sent` and `refused` requests and its `submit_lag` in ms, over what it sent."""
    columns = record.columns
    lag = columns["t_send"] - columns["t_intended"]
    figures = []
    for shard in range(submitters):
        part = slice(shard, None, submitters)
        sent = record.sent[part]
        refused = np.equal(columns["send_result"][part], SendResult.REFUSED)
        figures.append(
            {
                "submitter": shard,
                "planned": len(sent),
                "sent": int(sent.sum()),
                "refused": int(refused.sum()),
                "submit_lag": summarize(lag[part][sent], _NS_PER_MS).to_json(),
            }
        )
    return figures
