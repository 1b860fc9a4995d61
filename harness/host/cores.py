"""Which CPUs each process gets: taskset lists, and the default placement for 1, 2, 3, 4 and more CPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.common.errors import ConfigError

#: Returns the CPUs of one physical core, the given one among them.
Siblings = Callable[[int], frozenset[int]]

#: Whose core the harness shares when there is no core left for it.
HARNESS_BESIDE: Literal["engine", "submitter"] = "engine"

#: From this many CPUs on the submitter gets two: one for the pacer, one for libzmq's I/O thread.
TWO_SUBMITTER_CORES_FROM = 8

_MAX_CPU = 65_535
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6})(?::([0-9]{1,6}))?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Placement:
    """CPUs of the three processes, sorted.

    asked_overlap: engine and submitter share a CPU because the user's lists say so. shares: pairs of processes with a
    CPU in common, such as "engine+harness". note: one line that says who runs where, and why. submitters: how many
    there are; `submitter` holds the CPUs of all. 0 where the submitter is a thread of the engine's process, which then
    computes with `engine_threads` threads, so that its submitter has a CPU left; None: one a CPU.
    """

    engine: tuple[int, ...]
    submitter: tuple[int, ...]
    harness: tuple[int, ...]
    asked_overlap: bool
    shares: tuple[str, ...]
    note: str
    submitters: int = 1
    engine_threads: int | None = None

    @property
    def shards(self) -> tuple[tuple[int, ...], ...]:
        """The CPUs of each submitter."""
        return deal_cores(self.submitter, self.submitters)

    def has_own_core(self, shard: int) -> bool:
        """Whether submitter `shard` has cores that no other submitter and no engine uses, and so may spin."""
        shards = self.shards
        others = {cpu for k, cores in enumerate(shards) if k != shard for cpu in cores}
        return set(shards[shard]).isdisjoint(others.union(self.engine))


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """The CPUs of a taskset list such as `0,2-4,8-12:2` (range with stride), sorted, each once.

    Raises ConfigError that says what is wrong, without the flag's name.
    """
    cpus: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"{text!r} is not a list of cores like 0,2-4,8-12:2")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        stride = 1 if match[3] is None else int(match[3])
        if last < first or stride < 1 or last > _MAX_CPU:
            raise ConfigError(f"{part.strip()!r} is not a range of cores (first-last[:stride], at most {_MAX_CPU})")
        cpus.update(range(first, last + 1, stride))
    return tuple(sorted(cpus))


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The shortest taskset list of plain ranges: (0, 2, 3, 4) -> "0,2-4"."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def allowed_cpus() -> frozenset[int]:
    """The CPUs that this process may run on; an outer `taskset` or cpuset narrows them."""
    return frozenset(os.sched_getaffinity(0))


def require_allowed(cpus: Iterable[int], allowed: Iterable[int], flag: str) -> None:
    """Raises ConfigError naming `flag` and the CPUs that are not in `allowed`."""
    permitted = set(allowed)
    foreign = sorted(set(cpus) - permitted)
    if foreign:
        noun = "core" if len(foreign) == 1 else "cores"
        raise ConfigError(
            f"{flag}: {noun} {format_cpu_list(foreign)} not among those this process may run on "
            f"({format_cpu_list(permitted)})"
        )


def deal_cores(cpus: tuple[int, ...], count: int) -> tuple[tuple[int, ...], ...]:
    """The CPUs of each of `count` processes: in order and as equal as can be; one each in turn where there are fewer.

    (0, 1, 2) for 2 is (0,), (1, 2); (0, 1) for 3 is (0,), (1,), (0,).
    """
    if len(cpus) < count:
        return tuple((cpus[k % len(cpus)],) for k in range(count))
    return tuple(cpus[k * len(cpus) // count : (k + 1) * len(cpus) // count] for k in range(count))


def physical_siblings(cpu: int) -> frozenset[int]:
    """The CPUs of `cpu`'s physical core from /sys; only itself where /sys does not tell."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text("ascii")
        return frozenset(parse_cpu_list(text)) | {cpu}
    except (OSError, ValueError, ConfigError):
        return frozenset({cpu})


def default_placement(
    allowed: Iterable[int],
    engine: tuple[int, ...] | None = None,
    submitter: tuple[int, ...] | None = None,
    harness: tuple[int, ...] | None = None,
    *,
    siblings: Siblings = physical_siblings,
    submitters: int = 1,
) -> Placement:
    """Place the processes on the CPUs in `allowed`; an explicit list of CPUs wins. Several submitters share one list.

    Raises ConfigError naming the flag where an explicit CPU is not allowed, or where the explicit lists leave engine
    and submitter no way but to share a CPU that nobody asked them to share.
    """
    cpus = frozenset(allowed)
    for flag, explicit in (("--engine-cores", engine), ("--submitter-cores", submitter), ("--harness-cores", harness)):
        if explicit is not None:
            require_allowed(explicit, cpus, flag)
    asked = engine is not None and submitter is not None and not set(engine).isdisjoint(submitter)
    if len(cpus) == 1:
        only = tuple(cpus)
        return _placement(only, only, only, asked, 1, submitters)
    pool = _pool(cpus, engine, submitter, harness)
    if submitter is None:
        submitter = _pick_submitter(pool, engine, siblings, submitters)
        pool -= set(submitter)
    if harness is None:
        harness = _pick_harness(pool, engine, submitter, siblings)
        pool -= set(harness)
    if engine is None:
        engine = tuple(pool)
    if not harness:
        harness = (max(engine),) if HARNESS_BESIDE == "engine" else (max(submitter),)
    return _placement(engine, submitter, harness, asked, len(cpus), submitters)


def joined(apart: Placement) -> Placement:
    """Engine and submitter as one process on the CPUs that the two would have: only the process boundary is gone."""
    engine = tuple(sorted({*apart.engine, *apart.submitter}))
    shares = _shares(engine, (), apart.harness)
    where = f"submitter and engine on {format_cpu_list(engine)}, harness on {format_cpu_list(apart.harness)}"
    why = "submitter and engine are threads of one process"
    if shares:
        why += ", the harness shares a core with it"
    return replace(
        apart, engine=engine, submitter=(), asked_overlap=False, shares=shares, note=f"{where}: {why}", submitters=0,
        engine_threads=len(apart.engine),
    )  # fmt: skip


def _pool(
    cpus: frozenset[int],
    engine: tuple[int, ...] | None,
    submitter: tuple[int, ...] | None,
    harness: tuple[int, ...] | None,
) -> set[int]:
    """The CPUs that the processes without an explicit list may be placed on: at least one for each of the two."""
    needy = [name for name, cores in (("submitter", submitter), ("engine", engine)) if cores is None]
    free = set(cpus) - set(engine or ()) - set(submitter or ())
    apart = free - set(harness or ())
    if len(apart) >= len(needy):
        return apart
    if len(free) >= len(needy):  # the harness's cores may be shared, the engine's and submitter's may not
        return free
    taken = "engine" if engine is not None else "submitter"
    raise ConfigError(
        f"--{taken}-cores takes every core and leaves none for the {needy[0]}: "
        f"leave one free, or say with --{needy[0]}-cores which one they share"
    )


def _pick_submitter(
    pool: set[int], engine: tuple[int, ...] | None, siblings: Siblings, submitters: int
) -> tuple[int, ...]:
    """One CPU a submitter, off the engine's physical cores, while the engine keeps one; two where there are plenty."""
    engine_physical = {cpu for core in engine or () for cpu in siblings(core)}
    first = min(pool, key=lambda cpu: (cpu in engine_physical, cpu))
    plenty = len(pool) >= max(TWO_SUBMITTER_CORES_FROM, 4 * submitters)
    wanted = min(submitters * (2 if plenty else 1), max(len(pool) - (engine is None), 1))
    return (first, *_nearest(pool - {first}, (first,), siblings))[:wanted]


def _pick_harness(
    pool: set[int], engine: tuple[int, ...] | None, submitter: tuple[int, ...], siblings: Siblings
) -> tuple[int, ...]:
    """One CPU, on the submitter's physical core if it can be, so that the engine's stay apart; none if none is left."""
    if len(pool) < (1 if engine is not None else 2):
        return ()
    return (_nearest(pool, submitter, siblings)[0],)


def _nearest(pool: set[int], cores: tuple[int, ...], siblings: Siblings) -> list[int]:
    """`pool` in order: CPUs on the same physical cores as `cores` first, then by number."""
    physical = {cpu for core in cores for cpu in siblings(core)}
    return sorted(pool, key=lambda cpu: (cpu not in physical, cpu))


def _shares(engine: tuple[int, ...], submitter: tuple[int, ...], harness: tuple[int, ...]) -> tuple[str, ...]:
    pairs = {"engine+submitter": (engine, submitter), "engine+harness": (engine, harness),
             "submitter+harness": (submitter, harness)}  # fmt: skip
    return tuple(name for name, (one, other) in pairs.items() if not set(one).isdisjoint(other))


def _placement(
    engine: tuple[int, ...],
    submitter: tuple[int, ...],
    harness: tuple[int, ...],
    asked: bool,
    count: int,
    submitters: int,
) -> Placement:
    engine, submitter, harness = (tuple(sorted(set(cores))) for cores in (engine, submitter, harness))
    shares = _shares(engine, submitter, harness)
    who = "submitter" if submitters == 1 else f"{submitters} submitters"
    dealt = " and ".join(format_cpu_list(cpus) for cpus in deal_cores(submitter, min(submitters, len(submitter))))
    where = f"{who} on {dealt}, engine on {format_cpu_list(engine)}, harness on {format_cpu_list(harness)}"
    why = _why(shares, asked, count)
    if submitters > len(submitter):
        few = "one core" if len(submitter) == 1 else f"{len(submitter)} cores"
        why += f"; {submitters} submitters share {few} and cannot spin"
    return Placement(engine, submitter, harness, asked, shares, f"{where}: {why}", submitters)


def _why(shares: tuple[str, ...], asked: bool, count: int) -> str:
    if "engine+submitter" in shares:
        reason = "as asked" if asked else "there is only one core, and the verdict will be INVALID"
        return f"engine and submitter share a core, {reason}"
    beside = [pair.removesuffix("+harness") for pair in shares]
    if beside:
        return f"{count} cores may be used, the harness shares one with the {' and the '.join(beside)}"
    return f"{count} cores may be used, none is shared"
