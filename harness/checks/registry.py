"""Every check of a report, in the order in which they are printed. A new check is added here and nowhere else."""

from __future__ import annotations

from harness.checks.accounting import LOST, MISSING, REFUSED, TOKEN_COUNT
from harness.checks.arrival_shape import GAP_SHIFT, PLAN_SHAPE
from harness.checks.check import Check
from harness.checks.data_loss import BAD_FRAMES, RECORDS_LOST, STRAY_MESSAGES
from harness.checks.graphs import LATE_CAPTURES
from harness.checks.pacing import LAG_OF_GAP, OFFERED_RATE, SUBMIT_LAG
from harness.checks.placement import SHARED_CORE
from harness.checks.stamp_chain import STAMP_CHAIN

CHECKS: tuple[Check, ...] = (
    SUBMIT_LAG,
    LAG_OF_GAP,
    OFFERED_RATE,
    PLAN_SHAPE,
    GAP_SHIFT,
    LOST,
    REFUSED,
    MISSING,
    STAMP_CHAIN,
    TOKEN_COUNT,
    SHARED_CORE,
    RECORDS_LOST,
    BAD_FRAMES,
    STRAY_MESSAGES,
    LATE_CAPTURES,
)
