"""Every check of a report, in the order in which they are printed. A new check is added here and nowhere else."""

from __future__ import annotations

from harness.checks.accounting import COUNTERS, LOST, MISSING, REFUSED, TOKEN_COUNT
from harness.checks.arrival_shape import GAP_SHIFT, PLAN_SHAPE
from harness.checks.check import Check
from harness.checks.clock import CLOCK_OFFSET, CLOCK_READ, CLOCKSOURCE
from harness.checks.data_loss import BAD_FRAMES, PROBE_ROWS_LOST, RECORDS_LOST, STRAY_MESSAGES
from harness.checks.drift import DRIFT
from harness.checks.duration import DURATION
from harness.checks.floor import FLOOR
from harness.checks.gc_pauses import GC_ENGINE, GC_SUBMITTER
from harness.checks.gil import GIL_SHARE, GIL_WAIT
from harness.checks.graphs import LATE_CAPTURES
from harness.checks.hiccups import HICCUP_SHARE, HICCUPS
from harness.checks.host_load import OTHER_LOAD, STEAL, THROTTLED
from harness.checks.manifest import MANIFEST
from harness.checks.observer import OBSERVER
from harness.checks.omission import OMISSION_GAP
from harness.checks.pacing import LAG_OF_GAP, LAG_SHARE, OFFERED_RATE, SUBMIT_LAG, SUBMIT_LAG_P50
from harness.checks.placement import SHARED_CORE, SMT_SIBLINGS
from harness.checks.repeats import REPEAT_LOAD
from harness.checks.sample import INDEPENDENCE, SAMPLE_SIZE
from harness.checks.send_call import SEND_CALL
from harness.checks.stamp_chain import STAMP_CHAIN
from harness.checks.steady_state import BACKLOG, HALVES, WARM_UP
from harness.checks.submitter_host import RUN_DELAY, SPIN_DUTY
from harness.checks.transport import DELIVERY, UNREAD

CHECKS: tuple[Check, ...] = (
    # the load
    SUBMIT_LAG,
    SUBMIT_LAG_P50,
    LAG_SHARE,
    LAG_OF_GAP,
    OFFERED_RATE,
    DRIFT,
    PLAN_SHAPE,
    GAP_SHIFT,
    REFUSED,
    SEND_CALL,
    OMISSION_GAP,
    # the path
    FLOOR,
    UNREAD,
    DELIVERY,
    # the host
    SHARED_CORE,
    SMT_SIBLINGS,
    RUN_DELAY,
    SPIN_DUTY,
    STEAL,
    OTHER_LOAD,
    THROTTLED,
    HICCUPS,
    HICCUP_SHARE,
    CLOCK_OFFSET,
    CLOCKSOURCE,
    CLOCK_READ,
    # the engine
    GIL_WAIT,
    GIL_SHARE,
    GC_ENGINE,
    GC_SUBMITTER,
    BACKLOG,
    LATE_CAPTURES,
    # the account
    LOST,
    MISSING,
    COUNTERS,
    STAMP_CHAIN,
    TOKEN_COUNT,
    RECORDS_LOST,
    PROBE_ROWS_LOST,
    BAD_FRAMES,
    STRAY_MESSAGES,
    # the sample
    SAMPLE_SIZE,
    INDEPENDENCE,
    WARM_UP,
    HALVES,
    REPEAT_LOAD,
    DURATION,
    OBSERVER,
    MANIFEST,
)

CHECK_IDS: frozenset[str] = frozenset(check.id for check in CHECKS)
