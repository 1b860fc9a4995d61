"""What the probes saw: the rings of a session (`SessionProbes`, kept in probes.npz) and a run's part (`RunProbes`)."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.common.collector import RING_CELLS, RINGS, Collector, Int64Array
from harness.common.errors import RunError
from harness.common.probes.ring import EXACT, PERIOD, SHORTEST, SLEEPS, RingRows, read_ring
from harness.host.sampler import CGROUP, name_of

PROBES_FILE = "probes.npz"
#: Numbers of the processes in the ring `threads`; further submitters count on from the first.
ENGINE, HARNESS, FIRST_SUBMITTER = 0, 1, 2

_TID_BITS = 32
#: The marks of two runs lie at least t0's 200 ms apart, the rows of one mark a few ms.
_BETWEEN_MARKS_NS = 100_000_000
_AT, _KEY, _CPU_NS, _DELAY, _VOLUNTARY, _INVOLUNTARY, _NAME_LOW, _NAME_HIGH = range(8)


@dataclass(frozen=True, slots=True)
class Pauses:
    """Pauses of one ring that began within a run, in the order of their ends, int64[n] each, CLOCK_MONOTONIC ns.

    duration_ns: without run_delay_ns, in which another thread had the core. exact: no timer error and no GIL of the
    observer is in them. lost: rows of the whole session that were overwritten by newer ones.
    """

    start_ns: Int64Array
    duration_ns: Int64Array
    run_delay_ns: Int64Array
    exact: bool
    lost: int


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """One thread over a run. wall_ns: between the two samples. Switches are None where the thread died in the run."""

    process: str
    tid: int
    name: str
    wall_ns: int
    cpu_ns: int
    run_delay_ns: int
    voluntary: int | None
    involuntary: int | None


@dataclass(frozen=True, slots=True)
class CpuUse:
    """One CPU over a run, ns by kind; the kernel counts in ticks of 10 ms."""

    cpu: int
    wall_ns: int
    busy_ns: int
    idle_ns: int
    irq_ns: int
    steal_ns: int


@dataclass(frozen=True, slots=True)
class RunProbes:
    """What disturbed one run, begin_ns (its t0) to end_ns (its last stamp).

    gil: one entry a look of the probe, most of them short. gc_engine, gc_submitter: collections. hiccups: only those
    above the monitor's threshold. threads, cpus: over the samples around the run. throttled_*: of the control groups,
    None where the samples are missing.
    """

    begin_ns: int
    end_ns: int
    gil: Pauses
    gc_engine: Pauses
    gc_submitter: Pauses
    hiccups: Pauses
    threads: tuple[ThreadUse, ...]
    cpus: tuple[CpuUse, ...]
    throttled_periods: int | None
    throttled_ns: int | None

    @property
    def wall_ns(self) -> int:
        return self.end_ns - self.begin_ns

    @property
    def steal_share(self) -> float | None:
        """Share of our CPUs' time that the hypervisor gave to others; None where it was not read."""
        wall = sum(cpu.wall_ns for cpu in self.cpus)
        return sum(cpu.steal_ns for cpu in self.cpus) / wall if wall else None

    @property
    def others_ns(self) -> int | None:
        """Busy time of our CPUs that was not our threads'; ticks of 10 ms a CPU make it coarse, and below 0 if idle."""
        if not self.cpus or not self.threads:
            return None
        return sum(cpu.busy_ns for cpu in self.cpus) - sum(thread.cpu_ns for thread in self.threads)


@dataclass(frozen=True, slots=True)
class SessionProbes:
    """All rings of a session by name, copied."""

    rings: Mapping[str, RingRows]

    def of_run(self, begin_ns: int, end_ns: int) -> RunProbes:
        """The part of a run that lasted from `begin_ns` to `end_ns`."""
        group = _around(self.rings["cpus"].rows, begin_ns, end_ns, CGROUP)
        control = self.rings["hiccups"].head
        timer_error_ns = max(int(control[SHORTEST] - control[PERIOD]), 0) if control[SLEEPS] else 0
        return RunProbes(
            begin_ns=begin_ns,
            end_ns=end_ns,
            gil=_pauses(self.rings["gil"], begin_ns, end_ns, timer_error_ns),
            gc_engine=_pauses(self.rings["gc_engine"], begin_ns, end_ns, delay_cell=None),
            gc_submitter=_pauses(self.rings["gc_submitter"], begin_ns, end_ns, delay_cell=None),
            hiccups=_pauses(self.rings["hiccups"], begin_ns, end_ns),
            threads=_threads(self.rings["threads"], begin_ns, end_ns),
            cpus=_cpus(self.rings["cpus"].rows, begin_ns, end_ns),
            throttled_periods=None if group is None else int(group[1][2] - group[0][2]),
            throttled_ns=None if group is None else int(group[1][3] - group[0][3]),
        )

    def save(self, path: Path) -> None:
        """Write probes.npz: per ring NAME int64[n, 8], NAME_head int64[8], NAME_lost int64. Raises OSError."""
        arrays: dict[str, Any] = {}
        for name, ring in self.rings.items():
            arrays.update({name: ring.rows, f"{name}_head": ring.head, f"{name}_lost": np.int64(ring.lost)})
        with open(path, "wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> SessionProbes:
        """Read what `save` wrote. Raises RunError naming the file and what is wrong with it."""
        try:
            with np.load(path, allow_pickle=False) as file:
                rings = {name: RingRows(file[name], int(file[f"{name}_lost"]), file[f"{name}_head"]) for name in RINGS}
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise RunError(f"cannot read the probes in {path}: {error}") from error
        for name, ring in rings.items():
            for array, shape in ((ring.rows, (len(ring.rows), RING_CELLS)), (ring.head, (RING_CELLS,))):
                if array.dtype != np.int64 or array.shape != shape:
                    raise RunError(f"cannot read the probes in {path}: ring {name} is {array.dtype}{array.shape}")
        return cls(rings)


def read_probes(collector: Collector) -> SessionProbes | None:
    """Copy the rings of a session; None where it had none."""
    if collector.shape.gil == 0:
        return None
    return SessionProbes({name: read_ring(ring) for name, ring in collector.rings.items()})


def _pauses(ring: RingRows, begin_ns: int, end_ns: int, timer_error_ns: int = 0, delay_cell: int | None = 2) -> Pauses:
    """Rows whose pause overlaps the run. Run-queue delay is at most the pause itself: its reading lasts longer."""
    start, duration = ring.rows[:, 0], ring.rows[:, 1]
    inside = (start < end_ns) & (start + duration > begin_ns)
    start, duration = start[inside], duration[inside]
    exact = bool(ring.head[EXACT])
    delay = np.zeros_like(start) if delay_cell is None else np.minimum(ring.rows[inside, delay_cell], duration)
    delay = np.maximum(delay, 0)
    rest = duration - delay
    if not exact:
        rest = np.maximum(rest - timer_error_ns, 0)
    return Pauses(start, rest, delay, exact, ring.lost)


def _around(rows: Int64Array, begin_ns: int, end_ns: int, key: int) -> tuple[Int64Array, Int64Array] | None:
    """The last row of `key` before the run and the first one after it, else the last one of all."""
    own = rows[rows[:, _KEY] == key]
    before, after = own[own[:, _AT] <= begin_ns], own[own[:, _AT] > begin_ns]
    if len(before) == 0 or len(after) == 0:
        return None
    late = after[after[:, _AT] >= end_ns]
    return before[-1], late[0] if len(late) else after[-1]


def _cpus(rows: Int64Array, begin_ns: int, end_ns: int) -> tuple[CpuUse, ...]:
    found = []
    for cpu in np.unique(rows[:, _KEY]):
        pair = None if cpu == CGROUP else _around(rows, begin_ns, end_ns, int(cpu))
        if pair is not None:
            wall, _, *times = (pair[1] - pair[0]).tolist()
            found.append(CpuUse(int(cpu), wall, *times[:4]))
    return tuple(found)


def _threads(ring: RingRows, begin_ns: int, end_ns: int) -> tuple[ThreadUse, ...]:
    """Each thread's use between the full samples around the run; of one that died or began in it, what was seen."""
    rows = ring.rows[(ring.rows[:, _AT] <= begin_ns) | (ring.rows[:, _AT] <= _first_mark(ring.rows, end_ns))]
    found = []
    order = np.argsort(rows[:, _KEY], kind="stable")
    for own in np.split(rows[order], np.flatnonzero(np.diff(rows[order, _KEY])) + 1):
        before = own[(own[:, _AT] <= begin_ns) & (own[:, _VOLUNTARY] >= 0)]
        after = own[own[:, _AT] > begin_ns]
        if len(after) == 0 or (len(before) == 0 and ring.lost):
            continue
        last = after[-1]
        first = before[-1] if len(before) else np.zeros(RING_CELLS, dtype=np.int64)
        counted = bool(last[_VOLUNTARY] >= 0)
        found.append(
            ThreadUse(
                process=process_name(int(last[_KEY]) >> _TID_BITS),
                tid=int(last[_KEY]) & (1 << _TID_BITS) - 1,
                name=name_of(int(last[_NAME_LOW]), int(last[_NAME_HIGH])),
                wall_ns=int(last[_AT] - (first[_AT] if len(before) else begin_ns)),
                cpu_ns=int(last[_CPU_NS] - first[_CPU_NS]),
                run_delay_ns=int(last[_DELAY] - first[_DELAY]),
                voluntary=int(last[_VOLUNTARY] - first[_VOLUNTARY]) if counted else None,
                involuntary=int(last[_INVOLUNTARY] - first[_INVOLUNTARY]) if counted else None,
            )
        )
    return tuple(found)


def _first_mark(rows: Int64Array, end_ns: int) -> int:
    """When the full sample after a run was finished: the last row of the first burst of full rows behind its end."""
    marks = rows[(rows[:, _AT] >= end_ns) & (rows[:, _VOLUNTARY] >= 0), _AT]
    if len(marks) == 0:
        return int(rows[:, _AT].max(initial=0))
    pauses = np.flatnonzero(np.diff(marks) > _BETWEEN_MARKS_NS)
    return int(marks[pauses[0]] if len(pauses) else marks[-1])


def process_name(number: int) -> str:
    """The word for a process number of the ring `threads`."""
    if number < FIRST_SUBMITTER:
        return "engine" if number == ENGINE else "harness"
    return "submitter" if number == FIRST_SUBMITTER else f"submitter {number - FIRST_SUBMITTER + 1}"
