"""Do the processes read one clock, and is it a good one?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.checks.check import Bound, Check, CheckContext, Reading

#: Counters of the CPU that the kernel trusts, and the paravirtual ones made of them.
_GOOD_SOURCES = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "xen")


def _clocks(context: CheckContext) -> Mapping[str, Mapping[str, Any]]:
    clocks: Mapping[str, Mapping[str, Any]] = context.session.manifest.get("clocks", {})
    return clocks


def _worst(context: CheckContext, field: str) -> tuple[str, int] | None:
    found = [(name, int(clock[field])) for name, clock in _clocks(context).items() if field in clock]
    return max(found, key=lambda pair: pair[1], default=None)


def _offset(context: CheckContext) -> Reading:
    worst = _worst(context, "offset_bound_ns")
    if worst is None:
        return Reading(None, "no handshake was recorded")
    name, bound = worst
    return Reading(bound / 1e3, f"the {name}'s clock is within {bound / 1e3:,.1f} us of the harness's")


def _read_cost(context: CheckContext) -> Reading:
    worst = _worst(context, "read_ns")
    if worst is None:
        return Reading(None, "the cost of reading the clock was not recorded")
    return Reading(worst[1], f"the {worst[0]} takes {worst[1]:,} ns to read its clock")


def _source(context: CheckContext) -> Reading:
    source = str(context.session.manifest.get("clocksource") or "unknown")
    if source == "unknown":
        return Reading(None, "the kernel does not say what its clock is made of")
    return Reading(int(source not in _GOOD_SOURCES), f"the kernel's clocksource is {source}")


CLOCK_OFFSET = Check(
    id="clock_offset",
    name="Clock offset bound",
    unit="us",
    advice="Half the shortest round trip bounds how far two clocks can be apart, and this host was too slow to answer: "
    "run it when less else runs.",
    measure=_offset,
    rule="V13",
    source="Python's time.rst: monotonic is system-wide; proved at the start of each run",
    warn_above=250.0,
    bound=Bound.HOST,
    per_run=False,
)
CLOCK_READ = Check(
    id="clock_read",
    name="Cost of a clock reading",
    unit="ns",
    advice="Every stamp costs a system call here: see that the clocksource is tsc (dmesg says why it is not).",
    measure=_read_cost,
    rule="V13",
    source="ours: a reading without a system call takes 20 to 100 ns",
    warn_above=200.0,
    bound=Bound.HOST,
    per_run=False,
)
CLOCKSOURCE = Check(
    id="clocksource",
    name="Unsuitable clocksource",
    unit="sources",
    advice="hpet and acpi_pm are slow to read and coarse: boot with clocksource=tsc if the CPU's counter is stable.",
    measure=_source,
    rule="V13",
    source="ours: tsc or a paravirtual clock made of it",
    warn_above=0.0,
    bound=Bound.HOST,
    per_run=False,
)
