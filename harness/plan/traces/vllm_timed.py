"""vLLM's timed traces: the fields' labels and the seconds that a stamp's 1 is are the user's to say."""

from __future__ import annotations

from harness.plan.traces.mooncake import read_labelled
from harness.plan.traces.rows import Format

#: Never recognised: with other labels it could be anything, with the default ones it reads like Mooncake's.
VLLM_TIMED = Format("vllm", "vLLM timed trace (JSON Lines)", "json", "s", read_labelled, None, 16)
