"""The engine process's life: load, tokenize for the plan, get ready, loop until stopped, decode outputs, end."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from engine_proc.backends.registry import make_backend
from engine_proc.egress import Egress
from engine_proc.inproc import InprocSubmitter, Load
from engine_proc.intake.admission import Admission, TextEncoder
from engine_proc.intake.entrance import Entrance, WireEntrance
from engine_proc.intake.inbox import Inbox
from engine_proc.intake.ingress import Ingress
from engine_proc.intake.plan_source import PlanSource
from engine_proc.intake.polled_inbox import PolledInbox
from engine_proc.probes import EngineProbes
from engine_proc.step_loop import StepLoop
from engine_proc.tokenize import UnlockedEncoder, load_tokenizer
from harness.common import control as words
from harness.common.clock import NS_PER_S, clock_report, monotonic_ns
from harness.common.collector import Collector
from harness.common.control import ControlChannel, ControlMessage
from harness.common.errors import ProtocolError, RunError
from harness.common.isolation import Held, lock_memory
from harness.common.nogil import NogilUnavailableError
from harness.common.plan_map import map_plan
from harness.common.processes import name_thread, process_report, sharpen_timers
from harness.common.protocol import Sampling
from harness.common.sockets import make_context, pull_socket, push_socket, wait_until_connected
from harness.common.specs import EngineSpec, Preparation, ProcessOptions
from harness.common.wire import ENGINE_CELLS, Wire, make_wire

CONNECT_TIMEOUT_S = 10.0


class EngineServer:
    """Runs on the main thread, which is also the step loop's and owns the device."""

    def __init__(self, channel: ControlChannel, spec: EngineSpec) -> None:
        self._channel = channel
        self._spec = spec
        faulthandler.register(signal.SIGUSR1, all_threads=True)  # a stalled engine's stacks, even from inside C
        sharpen_timers()
        self._process = ProcessOptions.from_body(spec.process)
        if self._process.switch_interval_ns:
            sys.setswitchinterval(self._process.switch_interval_ns / NS_PER_S)
        self._tokenizer = load_tokenizer(spec.model)
        self._backend = make_backend(spec, self._tokenizer, monotonic_ns)
        self._pending: ControlMessage | None = None  # came while the channel was the submitter thread's

    def serve(self) -> None:
        """Answer the harness until STOP. Raises what the backend, ingress or a tokenizer worker raised."""
        try:
            while True:
                message, self._pending = self._pending or self._channel.receive(), None
                assert message is not None
                if message.kind == words.DESCRIBE:
                    self._describe()
                elif message.kind == words.TOKENIZE:
                    self._tokenize(message.body["texts"])
                elif message.kind == words.PREPARE:
                    self._run(Preparation.from_body(message.body))
                elif message.kind == words.DETOKENIZE:
                    self._detokenize(message.body["rows"])
                elif message.kind == words.STOP:
                    return
                else:
                    raise ProtocolError(f"the engine does not know {message.kind}")
        finally:
            self._backend.close()

    def _describe(self) -> None:
        """What a prompt may hold: ids that model and tokenizer both know, less the special ones, within the context."""
        capacity = self._backend.capacity()
        self._channel.send(
            words.DESCRIBED,
            vocab_size=min(capacity.vocab_size, self._tokenizer.vocab_size),
            special_ids=sorted(self._tokenizer.special_ids() | set(capacity.eos_ids)),
            max_model_len=capacity.max_model_len,
        )

    def _tokenize(self, texts: list[str]) -> None:
        ids = self._tokenizer.encode_batch(texts)
        starts = np.zeros(len(ids) + 1, dtype="<i8")
        np.cumsum([len(row) for row in ids], out=starts[1:])
        flat = np.array([token for row in ids for token in row], dtype="<i4")
        self._channel.send(words.TOKENIZED, ids=flat.tobytes(), starts=starts.tobytes())

    def _detokenize(self, rows: list[list[int]]) -> None:
        self._channel.send(words.DETOKENIZED, texts=[self._tokenizer.decode(row) for row in rows])

    def _run(self, prepared: Preparation) -> None:
        """Open the sockets, say READY, answer pings until START, loop until the stop word, close."""
        collector = Collector.attach(Path(prepared.collector))
        context = make_context(self._process.io_cores)
        inbox = PolledInbox() if self._process.ingress == "polled" else Inbox()
        socket = push_socket(context, prepared.results_endpoint)
        cores = os.sched_getaffinity(0)
        egress = Egress(socket, one_core=len(cores) == 1 and set(self._process.io_cores or cores) == cores)
        loop = StepLoop(
            self._backend, inbox, egress, collector, monotonic_ns, self._tokenizer.token_bytes
        )  # fmt: skip
        make_entrance = self._inproc if self._spec.submits else self._wired
        entrance = make_entrance(prepared, collector, context, inbox, loop)
        entrance.open()
        if not wait_until_connected(socket, CONNECT_TIMEOUT_S):
            raise RunError(f"no receiver at the results socket within {CONNECT_TIMEOUT_S:.0f} s")
        probes = None
        if self._process.probes:
            probes = EngineProbes(collector, monotonic_ns, plain=self._spec.wire == "python")
        notes = [lock_memory()] if self._process.mlock else []
        self._settle_gc()
        self._get_ready(entrance, notes)
        entrance.begin()
        self._loop(loop, probes)
        self._pending = entrance.close()
        socket.close()
        context.term()
        gc.enable()
        gc.unfreeze()

    def _wired(
        self, prepared: Preparation, collector: Collector, context: zmq.Context[Any], inbox: Inbox, loop: StepLoop
    ) -> Entrance:
        wire = self._wire(prepared, collector, context)
        ingress = Ingress(
            wire, collector, inbox, self._encoder(), self._backend.capacity(), self._spec.tokenize_workers,
            monotonic_ns, loop.fail, _plan_source(prepared, collector),
        )  # fmt: skip
        return WireEntrance(wire, ingress, inbox)

    def _inproc(
        self, prepared: Preparation, collector: Collector, context: zmq.Context[Any], inbox: Inbox, loop: StepLoop
    ) -> Entrance:
        admission = Admission(
            collector, inbox, self._encoder(), self._backend.capacity(), self._spec.tokenize_workers, monotonic_ns,
            loop.fail,
        )  # fmt: skip
        plan, sampling = map_plan(Path(prepared.plan)), Sampling.from_fields(prepared.sampling)
        load = Load(plan, sampling, relative=self._spec.submits == "relative")
        return InprocSubmitter(self._channel, load, admission, collector, monotonic_ns, self._settle_gc, loop.fail)

    def _encoder(self) -> TextEncoder:
        unlocked = self._process.tokenize_call == "encode_batch"
        return UnlockedEncoder(self._tokenizer) if unlocked else self._tokenizer

    def _loop(self, loop: StepLoop, probes: EngineProbes | None) -> None:
        """The step loop, watched by the probes; they end with it, whatever ends it."""
        name_thread("step-loop")
        if probes is None:
            loop.run()
            return
        probes.start()
        try:
            loop.run()
        finally:
            probes.stop()

    def _settle_gc(self) -> None:
        """Take what exists by now out of the collector's sight, or not, as `--gc` says."""
        if self._process.gc != "on":
            gc.collect()
            gc.freeze()
        if self._process.gc == "off":
            gc.disable()

    def _wire(self, prepared: Preparation, collector: Collector, context: zmq.Context[Any]) -> Wire:
        def bind() -> zmq.Socket[bytes]:
            return pull_socket(context, prepared.data_endpoint, prepared.request_frame_bytes)

        def make(kind: str) -> Wire:
            return make_wire(
                kind, bind, "wire", collector.control, ENGINE_CELLS, prepared.request_frame_bytes,
                collector.shape.rows,
            )  # fmt: skip

        if self._spec.wire != "auto":
            return make(self._spec.wire)
        try:
            return make("compiled")
        except NogilUnavailableError:
            return make("python")

    def _get_ready(self, entrance: Entrance, notes: list[Held]) -> None:
        capacity = self._backend.capacity()
        self._channel.send(
            words.READY,
            engine=self._backend.describe(),
            **entrance.ready(),
            isolation=notes,
            capacity={"max_model_len": capacity.max_model_len, "vocab_size": capacity.vocab_size},
            clock=clock_report(),
            process=process_report(),
        )
        while True:
            message = self._channel.receive()
            assert message is not None
            if message.kind == words.PING:
                self._channel.send(words.PONG, stamp=monotonic_ns())
            elif message.kind == words.START:
                return
            else:
                raise ProtocolError(f"the engine expected START, got {message.kind}")


def _plan_source(prepared: Preparation, collector: Collector) -> PlanSource | None:
    """Where the requests are, if only their row numbers travel."""
    if not prepared.indexed:
        return None
    return PlanSource(map_plan(Path(prepared.plan)), collector.meta["runs"], Sampling.from_fields(prepared.sampling))
