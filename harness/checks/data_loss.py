"""Did the records keep everything, and did only our own messages arrive?"""

from __future__ import annotations

from harness.checks.check import Check, CheckContext, Reading


def _records_lost(context: CheckContext) -> Reading:
    steps, tokens = context.counters["steps_lost"], context.counters["tokens_lost"]
    words = f"{steps} engine steps and {tokens} tokens did not fit the collector"
    return Reading(steps + tokens, words, warn_above=0)


def _bad_frames(context: CheckContext) -> Reading:
    names = ("bad_frames", "wire_bad_frames", "result_bad_frames", "receiver_bad_frames")
    counts = {name: context.counters[name] for name in names}
    named = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
    total = sum(counts.values())
    words = f"{total} messages could not be read" + (f" ({named})" if named else "")
    return Reading(total, words, invalid_above=0)


def _stray_messages(context: CheckContext) -> Reading:
    """A duplicate makes one complaint, so the two are not added."""
    complaints = max(context.counters["complaints"], context.counters["duplicates"])
    repeated = context.counters["repeated_results"]
    words = f"{complaints} requests came twice or had no row, {repeated} results came twice"
    return Reading(complaints + repeated, words, invalid_above=0)


def _probe_rows_lost(context: CheckContext) -> Reading:
    probes = context.measured.record.probes
    if probes is None:
        return Reading(None, "the probes are off")
    rings = {"gil": probes.gil, "gc_engine": probes.gc_engine, "gc_submitter": probes.gc_submitter,
             "hiccups": probes.hiccups}  # fmt: skip
    lost = {name: ring.lost for name, ring in rings.items() if ring.lost}
    named = ", ".join(f"{name} {count:,}" for name, count in lost.items())
    return Reading(sum(lost.values()), f"{sum(lost.values()):,} rows of the probes were overwritten {named}".rstrip())


PROBE_ROWS_LOST = Check(
    id="probe_rows_lost",
    name="Probe rows overwritten",
    unit="rows",
    advice="The oldest of what disturbed the session is not known, so checks of the host may pass wrongly: make the "
    "session shorter (fewer --repeat-runs).",
    measure=_probe_rows_lost,
    rule="V14",
    source="ours: ring overwrites are 0",
    warn_above=0.0,
)
RECORDS_LOST = Check(
    id="records_lost",
    name="Records lost",
    unit="records",
    advice="ITL leaves out the requests concerned, the ledger is whole: make the run shorter, or report the size that "
    "was planned too small.",
    measure=_records_lost,
    rule="V14",
    source="ours: what did not fit is not measured",
    per_run=False,
)
BAD_FRAMES = Check(
    id="bad_frames",
    name="Unreadable messages",
    unit="messages",
    advice="Something else wrote to the sockets, or a message was cut: see that nothing else uses the run's sockets, "
    "and report it.",
    measure=_bad_frames,
    rule="V14",
    source="ours: only our own messages count",
    per_run=False,
)
STRAY_MESSAGES = Check(
    id="stray_messages",
    name="Repeated messages",
    unit="messages",
    advice="A message was counted twice, so load or results are not what was planned: see that nothing else uses the "
    "run's sockets, and report it.",
    measure=_stray_messages,
    rule="V14",
    source="MLPerf LoadGen's errors: no duplicate, no unknown id",
    per_run=False,
)
