"""The submitter's life: configure, prepare, then one run after another at the harness's word."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any, NamedTuple

import zmq

from harness.common import control as words
from harness.common.clock import NS_PER_MS, NS_PER_S, clock_report, monotonic_ns
from harness.common.collector import CONTROL_WORDS, Collector, Int64Array, submitter_line
from harness.common.control import ControlChannel
from harness.common.errors import ProtocolError, RunError
from harness.common.isolation import RealTime, limit_spin, lock_memory
from harness.common.nogil import NogilUnavailableError
from harness.common.plan_file import LoadPlan
from harness.common.plan_map import map_plan
from harness.common.probes.gc_pauses import GcProbe
from harness.common.processes import defer_io_threads, name_thread, process_report, sharpen_timers
from harness.common.protocol import Sampling
from harness.common.sockets import make_context, push_socket, wait_until_connected
from harness.common.specs import Preparation, SubmitterSpec
from submitter_proc.calibrate import Calibration, calibrate
from submitter_proc.frames import Shard, pack_run
from submitter_proc.gated import GatedPacer, GatedPythonPacer, gates_of
from submitter_proc.pacer import Pacer, PythonPacer, Waiting, zmq_sender

CONNECT_TIMEOUT_S = 10.0


class CompiledLoop(NamedTuple):
    """The compiled pacing loop, or None and why not."""

    loop: Any
    missing: str


def compile_loop(kind: str) -> CompiledLoop:
    """Compile the loop unless the plain pacer was asked for. Raises NogilUnavailableError where it was asked for."""
    if kind == "python":
        return CompiledLoop(None, "")
    from submitter_proc.pacer_compiled import compile_pace

    try:
        return CompiledLoop(compile_pace(), "")
    except NogilUnavailableError as error:
        if kind == "compiled":
            raise
        return CompiledLoop(None, str(error))


def make_pacer(compiled: CompiledLoop, socket: zmq.Socket[bytes], collector: Collector, shard: int) -> Pacer:
    """The compiled pacer where its loop is there, else the plain one."""
    if compiled.loop is None:
        return PythonPacer(zmq_sender(socket), collector.control, monotonic_ns, shard)
    from submitter_proc.pacer_compiled import CompiledPacer

    return CompiledPacer(compiled.loop, socket, collector.control, shard)


def make_gated_pacer(compiled: CompiledLoop, socket: zmq.Socket[bytes], collector: Collector) -> GatedPacer:
    """The same for a load that reacts; where the open loop's compiled pacer could be had, so can this one."""
    if compiled.loop is None:
        return GatedPythonPacer(zmq_sender(socket), collector.control, monotonic_ns)
    from submitter_proc.gated_compiled import GatedCompiledPacer, compile_gated

    return GatedCompiledPacer(compile_gated(), socket, collector.control)


#: `spin` sleeps only where the next request is further off: the stop word is looked at between sleeps.
SPIN_NS = 50 * NS_PER_MS


def choose_waiting(wait: str, own_core: bool, relative: bool, calibration: Calibration) -> tuple[str, Waiting]:
    """The wait mode's name and its margin: `auto` spins only where the submitter has a core of its own."""
    if wait == "auto":
        wait = "hybrid" if own_core else "sleep"
    margins = {"sleep": 0, "hybrid": calibration.margin_ns, "spin": SPIN_NS}
    return wait, Waiting(relative, margins[wait])


def mean_rate(offsets_ns: Int64Array) -> float:
    """Requests per s of a plan; 0 for a burst, and for one request."""
    span = int(offsets_ns[-1] - offsets_ns[0])
    return (len(offsets_ns) - 1) * NS_PER_S / span if span > 0 else 0.0


class Submitter:
    """Owns the data socket, the pacer and the submitter's block of the collector. Runs on the main thread."""

    def __init__(self, channel: ControlChannel, spec: SubmitterSpec) -> None:
        self._channel = channel
        self._spec = spec
        sharpen_timers()
        self._compiled = compile_loop(spec.pacer)  # now, while the engine loads its model
        self._calibration = calibrate(monotonic_ns)

    def serve(self) -> None:
        """Prepare, say READY, then arm and pace runs until STOP."""
        message = self._channel.expect(words.PREPARE, timeout_s=86_400)
        prepared = Preparation.from_body(message.body)
        plan = map_plan(Path(prepared.plan))
        collector = Collector.attach(Path(prepared.collector))
        # Two cores: the pacer keeps the first, libzmq's I/O thread the second; one core: they share it.
        context = make_context(self._spec.io_cores or self._spec.cores[1:2])
        socket = push_socket(context, prepared.data_endpoint)
        try:
            if not wait_until_connected(socket, CONNECT_TIMEOUT_S):
                raise RunError(f"no engine at the data socket within {CONNECT_TIMEOUT_S:.0f} s")
            if len(self._spec.cores) > 1:
                os.sched_setaffinity(0, {self._spec.cores[0]})
            else:
                defer_io_threads()
            self._paces(plan, collector, socket, prepared.indexed)
        finally:
            socket.close()
            context.term()

    def _paces(self, plan: LoadPlan, collector: Collector, socket: zmq.Socket[bytes], indexed: bool) -> None:
        cap = self._spec.max_concurrency
        gated = make_gated_pacer(self._compiled, socket, collector) if plan.gated or cap else None
        pacer = make_pacer(self._compiled, socket, collector, self._spec.shard)
        wait, waiting = choose_waiting(self._spec.wait, self._spec.own_core, self._spec.relative, self._calibration)
        real_time = RealTime() if self._spec.rt else None
        if real_time is not None and real_time.on:
            waiting = waiting._replace(margin_ns=limit_spin(waiting.margin_ns, mean_rate(plan.offsets_ns)))
        notes = [real_time.held] if real_time is not None else []
        notes += [lock_memory()] if self._spec.mlock else []
        if self._spec.probes:
            GcProbe(collector.rings["gc_submitter"], collector.control, monotonic_ns).install()
        name_thread("pacer")
        report = {
            "name": pacer.name,
            "fallback": self._compiled.missing,
            "wait": wait,
            "margin_ns": waiting.margin_ns,
            "sleep_overshoot_ns": self._calibration._asdict(),
        }
        self._channel.send(words.READY, pacer=report, clock=clock_report(), process=process_report(), isolation=notes)
        sampling = Sampling.from_fields(self._spec.sampling)
        shard = Shard(self._spec.shard, self._spec.shards)
        done = CONTROL_WORDS["submitter_done_runs"] + submitter_line(shard.number)
        while True:
            message = self._channel.receive()
            assert message is not None
            if message.kind == words.PING:
                self._channel.send(words.PONG, stamp=monotonic_ns())
            elif message.kind == words.ARM:
                first, rows = message.body["first_row"], message.body["rows"]
                packed = pack_run(plan, sampling, first, rows, collector.submitter, shard, indexed)
                gates = gates_of(plan, rows, collector.receiver[first : first + rows], cap) if gated else None
                gc.collect()
                gc.freeze()
                gc.disable()
                self._channel.send(words.ARMED)
                start = self._channel.expect(words.START, timeout_s=86_400)
                t0 = start.body["t0_ns"]
                if real_time is not None:
                    real_time.begin()
                end = gated.run(packed, gates, t0, waiting) if gated and gates else pacer.run(packed, t0, waiting)
                if real_time is not None:
                    real_time.end()
                collector.control[done] += 1
                self._channel.send(words.RUN_SENT, handled=end.handled, errno=end.errno)
                gc.enable()
                gc.unfreeze()
                del packed  # before the next run is packed: never two runs in memory
            elif message.kind == words.STOP:
                return
            else:
                raise ProtocolError(f"the submitter does not know {message.kind}")
