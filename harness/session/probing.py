"""The probes that the harness itself runs: its hiccup monitor and its sampler of threads and CPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from harness.common.clock import monotonic_ns
from harness.common.collector import CONTROL_WORDS, Collector
from harness.common.probes.hiccup import SHARED_SLEEP_NS, SLEEP_NS, HiccupMonitor, compile_hiccups
from harness.config.run_config import RunConfig
from harness.host.cores import Placement
from harness.host.sampler import HostSampler
from harness.measures.contention import ENGINE, FIRST_SUBMITTER, HARNESS
from harness.session.children import Child


def make_hiccups(config: RunConfig, placement: Placement, collector: Collector) -> HiccupMonitor | None:
    """The control, beside the submitter where that has a second core: on its only one it would cut into the spin."""
    if not config.probes:
        return None
    loop = None if config.pacer == "python" else compile_hiccups()
    cpus = placement.shards[0][1:2] if placement.shards else ()
    shares = not cpus and not set(placement.harness).isdisjoint(placement.engine)
    return HiccupMonitor(
        collector.rings["hiccups"], collector.control, CONTROL_WORDS["receiver_stop"], cpus,
        monotonic_ns, loop, SHARED_SLEEP_NS if shares else SLEEP_NS,
    )  # fmt: skip


def make_sampler(
    config: RunConfig, placement: Placement, collector: Collector, engine: Child, submitters: Sequence[Child]
) -> HostSampler | None:
    """What reads the threads and CPUs of all processes."""
    if not config.probes:
        return None
    pids = {ENGINE: engine.process.pid, HARNESS: os.getpid()}
    pids.update({FIRST_SUBMITTER + k: submitter.process.pid for k, submitter in enumerate(submitters)})
    return HostSampler(collector, pids, probed_cpus(placement), monotonic_ns)


def probed_cpus(placement: Placement) -> frozenset[int]:
    """The CPUs that our processes run on."""
    return frozenset((*placement.engine, *placement.submitter, *placement.harness))
