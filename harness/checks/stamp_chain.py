"""Do the stamps stand in order, and do the parts of every TTFT sum to it?"""

from __future__ import annotations

from harness.checks.check import Check, CheckContext, Reading


def _violations(context: CheckContext) -> Reading:
    audit = context.audit
    if not audit.count:
        return Reading(0, "every row's stamps are in order and its parts sum to TTFT", invalid_above=0)
    plural = "" if audit.count == 1 else "s"
    return Reading(
        audit.count, f"{audit.count} broken stamp chain{plural}, the first: {audit.examples[0]}", invalid_above=0
    )


STAMP_CHAIN = Check(
    id="stamp_chain",
    name="Broken stamp chains",
    unit="violations",
    advice="The stamps contradict each other and no figure can be trusted, a fault of isorate or of the engine "
    "backend: keep the result folder and report it.",
    measure=_violations,
    rule="V13, V14",
    source="ours: no negative part, parts that sum exactly",
    per_run=False,
)
