"""Scheduler and block pool driven at random against a plain model: no leak, nothing shared by mistake, all end once.

Steps may overlap: a batch is computed only when it lands, after the next one was formed, so a block given away while a
step in flight still uses it shows up as wrong K and V (`fake_kv.FakeModel`).
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from fake_kv import VOCABULARY, Engine, expected_output, make_engine, plain_request
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine_proc.backends.base import EngineRequest
from engine_proc.scheduling import sequence as engine_sequence
from engine_proc.scheduling.batch import Batch
from engine_proc.scheduling.block_pool import PADDING_BLOCK

MOST_NEW_TOKENS = 24
#: Prompts are a start out of few, as long as it likes, and a tail: full blocks in common, and ends anywhere in one.
starts = st.sampled_from([[], [0] * 3, [0] * 8, [0] * 16, [1, 2] * 6, [1, 2] * 2 + [0] * 4])
tails = st.lists(st.integers(0, VOCABULARY - 1), max_size=9)
prompts = st.tuples(starts, tails).map(lambda parts: [*parts[0], *parts[1]] or [0])


class SchedulerMachine(RuleBasedStateMachine):
    """The plain model is `requests`, by row, and `ends`, by row: which end each of them came to, once."""

    totals: ClassVar[Counter[str]] = Counter()  # over the whole run, read by the test below

    @initialize(
        slots=st.integers(30, 80), block_size=st.integers(1, 5), prefix_cache=st.sampled_from([True, True, False]),
        max_batch=st.sampled_from([4, 5, 3, 1]), prefill_batch=st.integers(1, 4), budget=st.integers(1, 24),
        policy=st.sampled_from(["decode_first", "prefill_first"]), chunked=st.booleans(), overlap=st.booleans(),
    )  # fmt: skip
    def start(self, overlap: bool, slots: int, block_size: int, **options: object) -> None:
        self.engine: Engine = make_engine(slots // block_size, block_size, **options)  # type: ignore[arg-type]
        self.scheduler, self.pool = self.engine.scheduler, self.engine.pool
        self.max_batch = options["max_batch"]
        self.depth = 2 if overlap else 1
        self.in_flight: list[Batch] = []
        self.requests: dict[int, EngineRequest] = {}
        self.ends: dict[int, str] = {}
        self.sequences: dict[int, engine_sequence.Sequence] = {}
        self.steps = 0

    @rule(prompt=prompts, saved_tokens=st.integers(0, MOST_NEW_TOKENS - 1))
    def add(self, prompt: list[int], saved_tokens: int) -> None:
        new_tokens = MOST_NEW_TOKENS - saved_tokens  # long by default: those are the ones that preempt
        row = len(self.requests)
        self.requests[row] = plain_request(row, prompt, new_tokens)
        self.scheduler.add(self.requests[row])

    @rule(which=st.integers(0, 7))
    def add_the_same_prompt_again(self, which: int) -> None:
        if self.requests:
            request = self.requests[max(0, len(self.requests) - 1 - which)]
            self.add(list(request.prompt_ids), MOST_NEW_TOKENS - request.max_new_tokens)

    @rule(number=st.integers(1, 12), finish_first=st.booleans())
    def steps_on(self, number: int, finish_first: bool) -> None:
        for _ in range(number):
            self.step(finish_first)
            self.nothing_is_lost_or_shared_by_mistake()

    @rule(which=st.integers(0, 9))
    def abort(self, which: int) -> None:
        """Any row, whether it is open, ended, or was never seen."""
        row = len(self.requests) - which
        is_open = row in self.requests and row not in self.ends
        if is_open and any(chunk.sequence.row == row for batch in self.in_flight for chunk in batch.chunks):
            self.totals["aborted in flight"] += 1
        assert self.scheduler.abort(row) == is_open
        if is_open:
            self.end(row, "aborted")

    @precondition(lambda self: not self.in_flight)
    @rule()
    def reset_prefix_cache(self) -> None:
        self.totals["hit tokens"] += self.pool.hit_tokens
        self.pool.reset_prefix_cache()
        assert self.pool.num_free == len(self.pool._blank)

    @invariant()
    def nothing_is_lost_or_shared_by_mistake(self) -> None:
        self.scheduler.check_integrity()
        holders = [*self.scheduler._running.values(), *self.scheduler._leaving]
        held = Counter(block for sequence in holders for block in sequence.block_table)
        assert PADDING_BLOCK not in held
        assert [self.pool._holders[block] for block in held] == list(held.values())
        assert len(held) == self.pool.num_used == self.pool.capacity - self.pool.num_free
        self.shared_blocks_hold_one_beginning(holders)
        open_rows = self.requests.keys() - self.ends.keys()
        assert open_rows == {*self.scheduler._running, *self.scheduler._waiting, *self.scheduler._failed}
        assert self.scheduler.num_running <= self.max_batch
        if not self.scheduler.has_work() and not self.in_flight:
            assert self.pool.num_used == 0

    def shared_blocks_hold_one_beginning(self, holders: list[engine_sequence.Sequence]) -> None:
        """Two sequences may have a block in common only where all of their tokens up to its end are the same."""
        size = self.pool.block_size
        seen: dict[int, list[int]] = {}
        for sequence in holders:
            for i, block in enumerate(sequence.block_table):
                beginning = sequence.token_ids[: (i + 1) * size]
                if block in seen:
                    self.totals["shared blocks"] += 1
                    assert seen[block] == beginning and len(beginning) == (i + 1) * size
                seen[block] = beginning

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        tokens = sum(len(request.prompt_ids) + request.max_new_tokens for request in self.requests.values())
        first = self.steps
        while self.scheduler.has_work() or self.in_flight:
            assert self.steps - first <= 10 + 4 * tokens, "no end in sight"
            self.step(finish_first=False)
            self.nothing_is_lost_or_shared_by_mistake()
        assert self.ends.keys() == self.requests.keys()
        self.totals["hit tokens"] += self.pool.hit_tokens

    def step(self, finish_first: bool) -> None:
        """Form a step unless enough are in flight; land one when they are, or when there is nothing to form."""
        formed = len(self.in_flight) < self.depth and self.form()
        if self.in_flight and (len(self.in_flight) == self.depth or not formed):
            self.land(self.in_flight.pop(0), finish_first)
        self.steps += 1

    def form(self) -> bool:
        idle = not self.scheduler.num_running and not self.in_flight
        waited = self.scheduler.num_waiting
        batch = self.scheduler.schedule()
        for failure in batch.failed:
            self.end(failure.row, "failed")
            assert failure.a > failure.b == self.pool.capacity
        if idle and waited:
            assert batch.admitted or batch.readmitted, "nothing runs, somebody waits, nobody was let in"
        if batch.preemptions:
            assert not self.in_flight and not batch.admitted and not batch.readmitted
        if self.in_flight and self.scheduler.num_running and not batch.chunks:
            self.totals["looked ahead in vain"] += 1
        elif self.in_flight and batch.chunks:
            self.totals["looked ahead"] += 1
        self.totals["preemptions"] += batch.preemptions
        self.totals["readmissions"] += len(batch.readmitted)
        assert all(ns > 0 for _, ns in batch.readmitted)
        if batch.chunks:
            self.in_flight.append(batch)
        self.is_well_formed(batch)
        return bool(batch.chunks)

    def is_well_formed(self, batch: Batch) -> None:
        assert len({chunk.sequence for chunk in batch.chunks}) == len(batch.chunks)
        assert [chunk.is_decode for chunk in batch.chunks] == sorted((c.is_decode for c in batch.chunks), reverse=True)
        for chunk in batch.chunks:
            assert chunk.length >= 1
            assert chunk.start + chunk.length <= len(chunk.sequence.block_table) * self.pool.block_size
            self.totals["unaligned chunks"] += (chunk.start + chunk.length) % self.pool.block_size > 0

    def land(self, batch: Batch, finish_first: bool) -> None:
        tokens = self.engine.model.forward(batch.chunks)
        sampled = [chunk.sequence for chunk in batch.chunks if chunk.samples]
        if not finish_first:
            self.scheduler.commit(batch)
        for sequence, token in zip(sampled, tokens, strict=True):
            if not sequence.ended:  # aborted meanwhile: its token is nobody's
                self.engine.take(sequence, token)
                if sequence.ended:
                    self.complete(sequence)
        if finish_first:
            self.scheduler.commit(batch)

    def complete(self, sequence: engine_sequence.Sequence) -> None:
        self.end(sequence.row, "completed")
        request = self.requests[sequence.row]
        assert sequence.output_ids == expected_output(request.prompt_ids, request.max_new_tokens)
        assert sequence.num_cached < len(request.prompt_ids)

    def end(self, row: int, word: str) -> None:
        assert row not in self.ends, f"row {row} {word} after it {self.ends.get(row)}"
        self.ends[row] = word
        self.totals[word] += 1


MET = (
    "hit tokens", "preemptions", "readmissions", "shared blocks", "unaligned chunks", "looked ahead",
    "looked ahead in vain", "aborted in flight", "completed", "failed", "aborted",
)  # fmt: skip
#: Rounds of random examples at the most: one alone may miss the rarest of what must be met.
ROUNDS = 10


def test_scheduler_and_pool_against_a_plain_model() -> None:
    """Also asserts that the run met what it is about: a machine that never preempts or hits would prove nothing."""
    totals = SchedulerMachine.totals
    totals.clear()
    for _ in range(ROUNDS):
        run_state_machine_as_test(
            SchedulerMachine, settings=settings(max_examples=150, stateful_step_count=30, deadline=None)
        )
        if all(totals[what] > 0 for what in MET):
            break
    for what in MET:
        assert totals[what] > 0, f"no {what} in {ROUNDS} rounds: {totals}"
