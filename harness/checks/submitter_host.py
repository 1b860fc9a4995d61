"""Did the pacer get its core when it was ready to run, and does its spin cost anybody anything?"""

from __future__ import annotations

from harness.checks.check import Bound, Check, CheckContext, Reading

PACER = "pacer"  # what the submitter names the thread that keeps the clock


def _run_delay(context: CheckContext) -> Reading:
    probes = context.measured.record.probes
    if probes is None:
        return Reading(None, "the probes are off")
    pacers = [use for use in probes.threads if use.process.startswith("submitter") and use.name == PACER]
    if not pacers or not all(use.wall_ns for use in pacers):
        return Reading(None, "the pacer's thread was not sampled")
    worst = max(pacers, key=lambda use: use.run_delay_ns / use.wall_ns)
    given = _given(context)
    share = max(100.0 * worst.run_delay_ns / worst.wall_ns - given, 0.0)
    words = f"the pacer waited for its core for {share:.3f} % of the run"
    if given:
        words += f", beside {given:.3f} % in which it let the I/O thread run"
    if worst.involuntary is not None:
        words += f" and lost it {worst.involuntary:,} time{'' if worst.involuntary == 1 else 's'}"
    return Reading(share, words)


def _given(context: CheckContext) -> float:
    """What of the time, in percent, the pacer gave away itself: ready to run as it is then, it has run-queue delay.

    Counted over the session and all submitters, as `spin_ns` is: a mean for the run and the pacer that are judged.
    """
    wall = sum(run.submit_wall_ns or 0 for run in (*context.warmups, *context.runs))
    submitters = int(context.session.config.get("submitters") or 1)
    return 100.0 * context.counters.get("yield_ns", 0) / submitters / wall if wall else 0.0


def _spin_duty(context: CheckContext) -> Reading:
    """Over the session, as the spin is counted; only where the spinner takes a core from somebody."""
    placement = context.session.placement
    submitter, others = set(placement.get("submitter") or ()), (placement.get("engine") or (), placement.get("harness"))
    wall = sum(run.submit_wall_ns or 0 for run in (*context.warmups, *context.runs))
    if not submitter or not wall:
        return Reading(None, "the submitter's cores are not known" if not submitter else "nothing was sent")
    duty = 100.0 * context.counters["spin_ns"] / wall / int(context.session.config.get("submitters") or 1)
    if not any(submitter & set(cores or ()) for cores in others):
        return Reading(None, f"the pacer spins for {duty:.1f} % of the time, on a core of its own")
    return Reading(duty, f"the pacer spins for {duty:.1f} % of the time on a core that it shares")


RUN_DELAY = Check(
    id="run_delay",
    name="Pacer waited for its core",
    unit="%",
    advice="Something else runs on the submitter's core: end it, or place the submitter where nothing else is "
    "(--submitter-cores, --rt).",
    measure=_run_delay,
    rule="V10",
    source="the kernel's sched-stats.rst; pyperf's advice for systems",
    warn_above=0.1,
    invalid_above=1.0,
    bound=Bound.HOST,
)
SPIN_DUTY = Check(
    id="spin_duty",
    name="Spin on a shared core",
    unit="%",
    advice="The pacer's spin takes time from those that share its core: give it one of its own (--submitter-cores), or "
    "use --wait sleep.",
    measure=_spin_duty,
    rule="V10",
    source="ours: 5 % of a core",
    warn_above=5.0,
    bound=Bound.SUBMITTER,
    per_run=False,
)
