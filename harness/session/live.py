"""A live session: both children ready, clocks checked, sockets open; made by `open_session`, ended by `close`."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import zmq

from harness.common import control as words
from harness.common.clock import NS_PER_MS, clock_report, monotonic_ns
from harness.common.collector import Collector
from harness.common.errors import ChildDiedError, ConfigError, RunError
from harness.common.nogil import NogilUnavailableError
from harness.common.plan_file import LoadPlan
from harness.common.probes.hiccup import HiccupMonitor
from harness.common.processes import affinity_of, process_report, start_ticks
from harness.common.protocol import SMALL_FRAME_BYTES, request_overhead_bytes
from harness.common.sockets import endpoint, make_context, pull_socket, push_socket, wait_until_connected
from harness.common.specs import Preparation, Spec
from harness.common.wire import RECEIVER_CELLS, Wire, make_wire
from harness.config.run_config import RunConfig
from harness.host.cores import Placement
from harness.host.sampler import HostSampler
from harness.plan.complete import CompletedPlan, complete
from harness.plan.draft import Draft
from harness.plan.seeds import Dimension, seed_of
from harness.report.words import safe
from harness.session.aborter import Aborter
from harness.session.child_specs import engine_spec, sampling_of, submitter_spec
from harness.session.children import Child, spawn
from harness.session.events import Events
from harness.session.handshake import check_clock
from harness.session.layout import RunSpan, collector_shape
from harness.session.probing import make_hiccups, make_sampler
from harness.session.progress import Progress
from harness.session.receiver import Receiver
from harness.session.tokenizer_link import EngineTokenizer
from harness.session.workspace import PLAN_FILE, Workspace

#: A result message: header and up to 256 events of at most 37 bytes (`engine_proc.egress`), or a short complaint.
RESULT_FRAME_BYTES = 64 + 256 * 40
CONNECT_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Session:
    """Everything that is open while runs go on. Owned by: the harness's main thread.

    submitters: who answers ARM and START; the engine itself where the submitter is a thread of its process.
    """

    config: RunConfig
    workspace: Workspace
    events: Events
    collector: Collector
    plan: LoadPlan
    spans: list[RunSpan]
    engine: Child
    submitters: tuple[Child, ...]
    wire: Wire
    receiver: Receiver
    context: zmq.Context[Any]
    facts: dict[str, Any]
    aborter: Aborter | None
    sampler: HostSampler | None
    hiccups: HiccupMonitor | None


def start_children(config: RunConfig, placement: Placement, workspace: Workspace, events: Events) -> list[Child]:
    """Spawn all and configure them: they load and compile at the same time. Each is watched from its first moment."""
    children = []
    several = len(placement.shards) > 1
    submitters = [(f"submitter-{k}" if several else "submitter", cores) for k, cores in enumerate(placement.shards)]
    for name, cores in (("engine", placement.engine), *submitters):
        child = spawn("engine_proc" if name == "engine" else "submitter_proc", name, cores, workspace.staging)
        children.append(child)
        events.watch_child(child)
    return children


def configure(config: RunConfig, placement: Placement, events: Events, engine: Child, submitters: list[Child]) -> None:
    """HELLO from each, CONFIGURE to each."""
    waiting: dict[str, Spec] = {
        engine.name: engine_spec(config, placement.engine, placement.engine_threads)
    }
    waiting.update({child.name: submitter_spec(config, placement, k) for k, child in enumerate(submitters)})
    deadline = time.monotonic() + config.start_timeout_s
    while waiting:
        if time.monotonic() > deadline:
            raise ChildDiedError(f"the {' and the '.join(waiting)} gave no HELLO in time (--start-timeout)")
        for child, message in events.wait(1.0)[0]:
            if message.kind == words.HELLO:
                events.send(child, words.CONFIGURE, **waiting.pop(child.name).to_body())


def fix_plan(config: RunConfig, draft: Draft, events: Events, engine: Child) -> CompletedPlan:
    """The plan that will be sent: what only the engine's tokenizer can tell is filled in. Raises as `complete`."""
    link = EngineTokenizer(events, engine, config.start_timeout_s)
    return complete(draft, config.pretok, seed_of(config, Dimension.PROMPTS), link)


def open_collector(
    workspace: Workspace, plan: LoadPlan, spans: list[RunSpan], probed_cpus: int = 0, submitters: int = 1
) -> Collector:
    """Create the collector; its description is all that `sweep_dead` and `recover` need. Raises ConfigError."""
    meta = {
        "run_id": workspace.run_id,
        "staging": str(workspace.staging),
        "final": str(workspace.final),
        "sockets": str(workspace.sockets),
        "runs": [span._asdict() for span in spans],
        "submitters": submitters,
    }
    owner = (os.getpid(), start_ticks(os.getpid()))
    return Collector.create(workspace.collector, collector_shape(plan, spans, probed_cpus), meta, owner)


def open_wire(config: RunConfig, workspace: Workspace, collector: Collector, context: zmq.Context[Any]) -> Wire:
    """The receiver's wire thread, bound and running; compiled where it can be."""

    def bind() -> zmq.Socket[bytes]:
        return pull_socket(context, endpoint(workspace.sockets, "results"), RESULT_FRAME_BYTES)

    def make(kind: str) -> Wire:
        rows = 2 * collector.shape.rows
        return make_wire(kind, bind, "receiver", collector.control, RECEIVER_CELLS, RESULT_FRAME_BYTES, rows)

    try:
        wire = make("python" if config.pacer == "python" else "compiled")
    except NogilUnavailableError:
        wire = make("python")
    wire.start()
    return wire


def open_aborter(
    config: RunConfig, data_endpoint: str, collector: Collector, context: zmq.Context[Any]
) -> Aborter | None:
    """The client that gives up, where one is asked for. Raises RunError."""
    if config.abort_after_ms is None:
        return None
    socket = push_socket(context, data_endpoint)
    aborter = Aborter(socket, collector, round(config.abort_after_ms * NS_PER_MS))
    if not wait_until_connected(socket, CONNECT_TIMEOUT_S):
        aborter.close()
        raise RunError(f"no engine at the data socket within {CONNECT_TIMEOUT_S:.0f} s")
    return aborter


def check_stop_ids(config: RunConfig, vocab_size: int) -> None:
    """Raises ConfigError for a stop id that no output can hold: it would be accepted and ignored."""
    beyond = [token for token in config.stop_ids if token >= vocab_size]
    if beyond:
        raise ConfigError(f"--stop-ids: {beyond[0]} is outside the model's vocabulary of {vocab_size} tokens")


def placement_facts(placement: Placement, engine: Child, submitters: list[Child]) -> dict[str, Any]:
    """Where the processes really are, as /proc has it, and why."""
    cores = [affinity_of(child.process.pid) for child in submitters]
    return {
        "engine": affinity_of(engine.process.pid),
        "submitter": sorted({cpu for one in cores for cpu in one}) if submitters else affinity_of(engine.process.pid),
        "submitters": cores,
        "harness": sorted(os.sched_getaffinity(0)),
        "asked": placement.asked_overlap,
        "note": placement.note,
    }


def merged_pacer(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The pacers' reports as one: words that differ side by side, the longest margin and overshoot; all in `shards`."""
    if len(reports) == 1:
        return reports[0]

    def words_of(name: str) -> str:
        return ", ".join(sorted({str(report[name]) for report in reports if report[name]}))

    overshoots = [report["sleep_overshoot_ns"] for report in reports]
    return {
        "name": words_of("name"),
        "fallback": words_of("fallback"),
        "wait": words_of("wait"),
        "margin_ns": max(report["margin_ns"] for report in reports),
        "sleep_overshoot_ns": {name: max(one[name] for one in overshoots) for name in overshoots[0]},
        "shards": reports,
    }


def request_frame_bytes(config: RunConfig, plan: LoadPlan) -> int:
    """Upper bound of a message to the engine."""
    if config.payload == "index":
        return SMALL_FRAME_BYTES
    return plan.largest_payload_bytes() + request_overhead_bytes(sampling_of(config))


def open_session(
    config: RunConfig,
    placement: Placement,
    workspace: Workspace,
    events: Events,
    children: list[Child],
    collector: Collector,
    draft: Draft,
    spans: list[RunSpan],
    progress: Progress,
) -> Session:
    """From spawned children to a session that is ready to run. Raises RunError and ConfigError."""
    engine, *submitters = children
    configure(config, placement, events, engine, submitters)
    context = make_context(config.io_cores or ())
    progress.say("preparing the receiver")
    wire = open_wire(config, workspace, collector, context)
    hiccups = make_hiccups(config, placement, collector)
    progress.say("loading the engine")
    completed = fix_plan(config, draft, events, engine)
    plan = completed.plan
    for line in completed.lines:
        print(f"isorate: {safe(line)}", file=sys.stderr)
    plan.save(workspace.staging / PLAN_FILE)
    prepared = Preparation(
        collector=str(workspace.collector),
        plan=str(workspace.staging / PLAN_FILE),
        data_endpoint=endpoint(workspace.sockets, "data"),
        results_endpoint=endpoint(workspace.sockets, "results"),
        request_frame_bytes=request_frame_bytes(config, plan),
        result_frame_bytes=RESULT_FRAME_BYTES,
        indexed=config.payload == "index",
        sampling=list(sampling_of(config)),
    )
    facts: dict[str, Any] = {"clocks": {"harness": clock_report()}, "plan": completed.notes}
    facts.update(isolation={}, processes={"harness": process_report()})
    pacers: list[dict[str, Any]] = []
    for child in children:
        events.send(child, words.PREPARE, **prepared.to_body())
        ready = events.expect(child, words.READY, config.start_timeout_s)
        facts["isolation"][child.name] = ready.pop("isolation")
        facts["processes"][child.name] = ready.pop("process")
        facts["clocks"][child.name] = {**ready.pop("clock"), **check_clock(child, events, monotonic_ns)}
        if "pacer" in ready:
            pacers.append(ready.pop("pacer"))
        facts.update(ready)
    facts["pacer"] = merged_pacer(pacers)
    facts["placement"] = placement_facts(placement, engine, submitters)
    facts["receiver_wire"] = "compiled" if wire.compiled else "python"
    check_stop_ids(config, facts["capacity"]["vocab_size"])
    events.send(engine, words.START)
    receiver = Receiver(wire, collector)
    aborter = open_aborter(config, prepared.data_endpoint, collector, context)
    sampler = make_sampler(config, placement, collector, engine, submitters)
    if hiccups is not None:
        hiccups.start()
    return Session(
        config, workspace, events, collector, plan, spans, engine, tuple(submitters or (engine,)), wire, receiver,
        context, facts, aborter, sampler, hiccups,
    )  # fmt: skip
