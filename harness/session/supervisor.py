"""A session from configuration to exit code: prepare, spawn, run, and whatever happens, save what was measured."""

from __future__ import annotations

import errno
import gc
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.checks.limits import Limits, read_limits
from harness.checks.registry import CHECK_IDS
from harness.common.clock import monotonic_ns
from harness.common.collector import RUN_T0_CELL, Collector
from harness.common.errors import ConfigError, IsorateError, RunError
from harness.common.processes import peak_rss_bytes, sharpen_timers
from harness.common.stamps import EndReason
from harness.config.run_config import RunConfig
from harness.config.topology import check_topology_plan, check_waiting, place
from harness.host.cores import Placement, allowed_cpus
from harness.host.cpu_latency import CpuLatency
from harness.host.floor import session_floor
from harness.host.manifest import host_manifest
from harness.plan.build import describe
from harness.plan.draft import Draft
from harness.plan.drafting import make_draft
from harness.report.finish import Outcome, finish_session
from harness.report.session_info import SESSION_FILE, SessionInfo
from harness.session.children import Child
from harness.session.closing import close_rows
from harness.session.events import DeadChildError, Events, InterruptedRunError
from harness.session.layout import RunSpan, lay_out
from harness.session.live import Session, open_collector, open_session, start_children
from harness.session.output_text import decode_outputs
from harness.session.probing import probed_cpus
from harness.session.progress import Progress
from harness.session.run import run_once
from harness.session.watch import stall_timeout_ns
from harness.session.workspace import Workspace, absolute, drop_owner, open_workspace, sweep_dead

#: A folder that takes no more, which no fault of ours is.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
CHILD_END_S = 5.0
START_END_S = 0.5  # a child that still loads or compiles hears no STOP, and has nothing to keep
STACKS_WAIT_S = 0.5
LAST_RESULTS_S = 0.5

EXIT_DONE, EXIT_FAILED, EXIT_INVALID, EXIT_INTERRUPTED = 0, 1, 3, 130


def run_session(config: RunConfig, command: list[str]) -> int:
    """Run everything that `config` asks for and report it; returns the exit code.

    Raises ConfigError before anything was started, RunError where the report could not be written.
    """
    placement = place(config, allowed_cpus())
    for line in sweep_dead(config.collector_dir.expanduser(), _results_folder(config)):
        print(f"isorate: {line}", file=sys.stderr)
    draft = make_draft(config)
    if config.submitters > 1 and draft.plan.gated:
        raise ConfigError("--submitters: requests that wait for the end of others have one submitter")
    check_topology_plan(config.topology, draft.plan)
    check_waiting(config, placement)
    spans = lay_out(draft.plan, config.warmup_runs, config.warmup_requests, config.repeat_runs)
    limits = Limits() if config.limits is None else read_limits(config.limits, CHECK_IDS)
    workspace = open_workspace(config.out, config.collector_dir.expanduser())
    try:
        probed = len(probed_cpus(placement)) if config.probes else 0
        collector = open_collector(workspace, draft.plan, spans, probed, config.submitters)
    except BaseException:
        workspace.remove_all()
        raise
    floor = session_floor()  # before this process keeps to its own cores, of which the floor's host has more
    return Supervisor(config, command, placement, workspace, collector, draft, spans, limits, floor=floor).run()


def _results_folder(config: RunConfig) -> Path:
    return Path("results") if config.out is None else absolute(config.out.expanduser()).parent


def _safe_lines(lines: list[str]) -> str:
    """What a child said, unable to drive the terminal. One line stays one."""
    from harness.report.words import safe

    return "\n".join(safe(line) for line in lines)


@dataclass(slots=True)
class Supervisor:
    """Owns the session's children and files from the first spawn to the last unlink. Main thread only."""

    config: RunConfig
    command: list[str]
    placement: Placement
    workspace: Workspace
    collector: Collector
    draft: Draft
    spans: list[RunSpan]
    limits: Limits = field(default_factory=Limits)
    events: Events = field(default_factory=Events)
    children: list[Child] = field(default_factory=list)
    session: Session | None = None
    end: EndReason = EndReason.FAILED
    detail: str = ""
    usage: str = ""
    cpu_latency: CpuLatency | None = None
    floor: Mapping[str, Any] = field(default_factory=dict)
    peaks: dict[str, int | None] = field(default_factory=dict)

    def run(self) -> int:
        """Returns the exit code; raises ConfigError where a child blamed the input and nothing was measured."""
        progress = Progress(self.config.quiet)
        outer_mask = os.sched_getaffinity(0)
        texts: Mapping[int, str] | None = None
        with self.events.signals():
            try:
                self._measure(progress)
                texts = self._decode_outputs()
            except InterruptedRunError:
                self.end = EndReason.INTERRUPTED
            except DeadChildError as error:
                self._note_death(error)
            except ConfigError as error:
                self.usage = str(error)
            except IsorateError as error:
                self.end = EndReason.FAILED
                self.detail = str(error)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                self.end = EndReason.FAILED
                self.detail = f"cannot write to {self.workspace.final.parent}: {error.strerror}"
            finally:
                progress.clear()
                self._stop()
                os.sched_setaffinity(0, outer_mask)
            return self._conclude(texts)

    def _measure(self, progress: Progress) -> None:
        os.sched_setaffinity(0, set(self.placement.harness))
        sharpen_timers()
        progress.say("starting the engine and what sends the load")
        self.children = start_children(self.config, self.placement, self.workspace, self.events)
        session = open_session(
            self.config, self.placement, self.workspace, self.events, self.children, self.collector, self.draft,
            self.spans, progress,
        )  # fmt: skip
        self.session = session
        self._hold_idle_states(session)
        self._info().save(self.workspace.staging / SESSION_FILE)  # what `recover` needs if we die from here on
        self.events.watch_results(session.wire.fd)
        gc.collect()
        gc.freeze()
        gc.disable()
        longest_warmup_step_ns = 0
        for span in self.spans:
            stall_ns = stall_timeout_ns(self.config.stall_timeout_s, longest_warmup_step_ns)
            self.end = run_once(session, span, stall_ns, progress, monotonic_ns)
            if span.warmup:
                longest_warmup_step_ns = self.collector.word("longest_step_ns")
            if self.end is EndReason.STALLED:
                self._dump_stacks(session.engine)
            if self.end is not EndReason.DONE:
                return

    def _hold_idle_states(self, session: Session) -> None:
        """Hold what was asked to be held, and say once what is not permitted here."""
        if self.config.hold_cpu_latency:
            self.cpu_latency = CpuLatency()
            session.facts["isolation"]["harness"] = [self.cpu_latency.held]
        for notes in session.facts["isolation"].values():
            for held, line in notes:
                if not held:
                    print(f"isorate: {line}", file=sys.stderr)

    def _dump_stacks(self, engine: Child) -> None:
        """Have the engine write its threads' stacks to its log; works even while its main thread is inside C."""
        import signal

        self.detail = "no progress; the threads' stacks are in engine.log"
        size = engine.log.stat().st_size
        engine.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + STACKS_WAIT_S
        while engine.log.stat().st_size == size and time.monotonic() < deadline:
            time.sleep(0.01)

    def _decode_outputs(self) -> dict[int, str] | None:
        """Texts of the outputs by row, decoded by the engine's tokenizer after the last run."""
        if self.session is None or not self.config.save_outputs or self.end is EndReason.STALLED:
            return None
        self._set_stop()
        return decode_outputs(self.session)

    def _note_death(self, error: DeadChildError) -> None:
        self.end = EndReason.ENGINE_DIED if error.child.name == "engine" else EndReason.SUBMITTER_DIED
        self.detail = str(error)

    def _set_stop(self) -> None:
        self.collector.set_word("end_reason", self.end)
        self.collector.set_word("stop", 1)

    def _stop(self) -> None:
        """End the children and the receiver; take what is still under way."""
        self._set_stop()
        self.peaks = {child.name: peak_rss_bytes(child.process.pid) for child in self.children}
        self.peaks["harness"] = peak_rss_bytes(os.getpid())
        for child in self.children:
            child.stop()
        patience_s = CHILD_END_S if self.session is not None else START_END_S
        if self.end is EndReason.STALLED:
            patience_s = 0.0
        for child in self.children:
            child.end(patience_s)
        if self.session is not None:
            self._take_last_results(self.session)
        self.collector.set_word("receiver_stop", 1)
        self.events.close()
        if self.cpu_latency is not None:
            self.cpu_latency.release()
        gc.enable()
        gc.unfreeze()

    def _take_last_results(self, session: Session) -> None:
        """Results that the engine sent before it ended are still in the sockets: take them, then end the receiver."""
        deadline = time.monotonic() + LAST_RESULTS_S
        while session.receiver.consume() or (
            session.receiver.messages < self.collector.word("egress_messages") and time.monotonic() < deadline
        ):
            time.sleep(0.001)
        self.collector.set_word("receiver_stop", 1)  # its wire ends within one receive timeout
        session.wire.join()
        if session.hiccups is not None:
            session.hiccups.join()
        if session.sampler is not None:
            session.sampler.close()
        session.receiver.consume()
        if session.aborter is not None:
            session.aborter.close()
        session.context.term()

    def _conclude(self, texts: Mapping[int, str] | None) -> int:
        measured = self.session is not None and int(self.collector.control[RUN_T0_CELL]) != 0
        if not measured:
            return self._conclude_nothing()
        assert self.session is not None
        for span in self.spans:
            if self.collector.control[RUN_T0_CELL + span.index]:
                close_rows(self.collector, span.first_row, span.rows, self.end)
        drop_owner(self.workspace.staging)
        self.workspace.remove_sockets()
        outcome = finish_session(
            self.collector, self.session.plan, self._info(), self.workspace.staging, self.workspace.final, texts
        )
        self.session = None  # drops its views of the collector
        self.collector.close()
        self.workspace.collector.unlink(missing_ok=True)  # the report is safe; now it may be printed, or fail to be
        self._print(outcome)
        return self._exit_code(outcome)

    def _conclude_nothing(self) -> int:
        """Setting up failed: nothing was measured, so nothing stays, but for the log of a child that died."""
        self.collector.close()
        if self.end is EndReason.INTERRUPTED:
            self.workspace.remove_all()
            return EXIT_INTERRUPTED
        if self.usage:
            self.workspace.remove_all()
            raise ConfigError(self.usage)
        tail = next((child.log_tail().strip() for child in self.children if f"the {child.name} " in self.detail), "")
        self.workspace.remove_all()
        if tail:
            print(_safe_lines(tail.split("\n")), file=sys.stderr)
        raise RunError(self.detail or "the session could not be set up")

    def _print(self, outcome: Outcome) -> None:
        from rich.console import Console

        from harness.report.terminal import render_terminal

        render_terminal(dict(outcome.summary), Console(), all_checks=self.config.verbose)
        if self.detail:
            print(f"isorate: {_safe_lines([self.detail])}", file=sys.stderr)

    def _exit_code(self, outcome: Outcome) -> int:
        if self.end is EndReason.INTERRUPTED:
            return EXIT_INTERRUPTED
        failed = self.end not in (EndReason.DONE, EndReason.DRAIN_TIMEOUT)
        if failed or outcome.counts.get("lost", 0) or outcome.violation_count:
            return EXIT_FAILED
        if outcome.verdict == "INVALID" and not self.config.allow_invalid:
            return EXIT_INVALID
        return EXIT_DONE

    def _info(self) -> SessionInfo:
        facts: dict[str, Any] = {} if self.session is None else dict(self.session.facts)
        plan = self.draft.plan if self.session is None else self.session.plan
        manifest = {
            **host_manifest(gpus=self.config.device.startswith("cuda")),
            "clocks": facts.get("clocks", {}),
            "processes": facts.get("processes", {}),
            "peak_rss_bytes": self.peaks,
        }
        return SessionInfo(
            run_id=self.workspace.run_id,
            command=tuple(self.command),
            config=self.config.model_dump(mode="json"),
            manifest=manifest,
            placement=facts.get("placement", {}),
            pacer=facts.get("pacer", {}),
            wire=facts.get("wire", "compiled"),
            isolation=facts.get("isolation", {}),
            engine=facts.get("engine", {}),
            plan={**describe(plan, self.config), **facts.get("plan", {})},
            limits=self.limits.to_json(),
            end_detail=self.detail,
            stderr_tails={child.name: tail for child in self.children if (tail := child.log_tail().strip())},
            floor=self.floor,
        )
