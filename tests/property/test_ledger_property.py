"""The ledger over arbitrary stamps: what is in order adds up exactly; what is not is caught and named."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.common.stamps import (
    ENGINE_COLUMNS,
    RECEIVER_COLUMNS,
    SEPARATE_LEDGER,
    STAMPS,
    STEP_COLUMNS,
    SUBMITTER_COLUMNS,
    FinishReason,
    SendResult,
    Status,
)
from harness.measures.ledger import audit_run, ledger_json, part_values, ttft_values
from harness.measures.records import RunRecord

T0 = 10**15  # a machine that has been up for eleven days
ENGINE_CHAIN = SEPARATE_LEDGER.chains[1]
PART_NAMES = [part.name for part in SEPARATE_LEDGER.parts]

durations = st.integers(min_value=0, max_value=10**12)
#: One row: the ten parts (nothing waits for a slot), then send call, tokens after the first, last token to finish.
rows = st.lists(durations, min_size=12, max_size=12).map(lambda row: [0, *row])
runs = st.lists(rows, min_size=1, max_size=6)


def record_of(run: list[list[int]]) -> RunRecord:
    """A completed run whose requests are intended at t0, t0 + 1 ms, ..."""
    n = len(run)
    columns = {name: np.zeros(n, dtype=np.int64) for name in (*SUBMITTER_COLUMNS, *ENGINE_COLUMNS, *RECEIVER_COLUMNS)}
    for i, row in enumerate(run):
        at = T0 + i * 1_000_000
        columns["t_intended"][i] = at
        for part, duration in zip(SEPARATE_LEDGER.parts, row, strict=False):
            at += duration
            columns[part.end][i] = at
        columns["t_sent"][i] = columns["t_send"][i] + row[10]
        columns["t_last_token"][i] = columns["t_first_token"][i] + row[11]
        columns["t_finished"][i] = max(columns["t_last_token"][i], columns["t_delivered"][i]) + row[12]
    columns["t_ended"][:] = columns["t_finished"]
    columns["send_result"][:] = SendResult.SENT
    columns["finish_reason"][:] = FinishReason.LENGTH
    zeros = np.zeros(n, dtype=np.int64)
    return RunRecord(
        index=0,
        warmup=False,
        t0_ns=T0,
        first_row=0,
        offsets_ns=np.arange(n, dtype=np.int64) * 1_000_000,
        columns=columns,
        status=np.full(n, Status.COMPLETED, dtype=np.int64),
        error_code=zeros,
        error_a=zeros,
        error_b=zeros,
        itl_ns=zeros[:0],
        steps=dict.fromkeys(STEP_COLUMNS, zeros[:0]),
    )


@given(runs)
def test_stamps_in_order_have_no_violation(run: list[list[int]]) -> None:
    assert audit_run(record_of(run), SEPARATE_LEDGER, relative=False).count == 0


@given(runs)
def test_parts_sum_to_ttft_to_the_nanosecond(run: list[list[int]]) -> None:
    record = record_of(run)
    total = sum(part_values(record, part) for part in SEPARATE_LEDGER.parts)
    assert np.array_equal(total, ttft_values(record))
    assert ttft_values(record).tolist() == [sum(row[:10]) for row in run]


@given(runs)
def test_both_printed_ledgers_add_up_to_their_ttft(run: list[list[int]]) -> None:
    ledger = ledger_json(record_of(run), SEPARATE_LEDGER)
    for entry in (ledger["mean"], ledger["p99_request"]):
        assert abs(sum(entry["parts"].values()) - entry["ttft"]) <= 1e-9 * max(entry["ttft"], 1e-3)


@given(runs, st.data())
def test_a_negative_part_is_named_whatever_the_other_parts_are(run: list[list[int]], data: st.DataObject) -> None:
    record = record_of(run)
    i = data.draw(st.integers(0, len(run) - 1))
    part = data.draw(st.sampled_from(SEPARATE_LEDGER.parts))
    excess = data.draw(st.integers(1, 10**9))
    record.columns[part.start][i] = record.columns[part.end][i] + excess
    audit = audit_run(record, SEPARATE_LEDGER, relative=False)
    named = [violation for violation in audit.examples if violation.part == part.name]
    assert [violation.request for violation in named] == [i]
    assert f"is {-excess} ns" in named[0].detail


@given(runs, st.data())
def test_a_stamp_swapped_out_of_order_is_caught(run: list[list[int]], data: st.DataObject) -> None:
    record = record_of(run)
    i = data.draw(st.integers(0, len(run) - 1))
    first, second = sorted(data.draw(st.sets(st.integers(0, len(ENGINE_CHAIN) - 1), min_size=2, max_size=2)))
    a, b = record.columns[ENGINE_CHAIN[first]], record.columns[ENGINE_CHAIN[second]]
    differs = a[i] != b[i]
    a[i], b[i] = b[i], a[i]
    caught = {violation.request for violation in audit_run(record, SEPARATE_LEDGER, relative=False).examples}
    assert caught == ({i} if differs else set())


@given(runs, st.data())
def test_a_row_that_did_not_complete_may_end_after_any_stamp_but_not_skip_one(
    run: list[list[int]], data: st.DataObject
) -> None:
    record = record_of(run)
    i = data.draw(st.integers(0, len(run) - 1))
    order = ENGINE_CHAIN[:-1]
    keep = data.draw(st.integers(1, len(order) - 2))
    for name in (*order[keep:], "t_last_token", "t_finished"):
        record.columns[name][i] = 0
    record.status[i] = Status.UNFINISHED
    assert audit_run(record, SEPARATE_LEDGER, relative=False).count == 0
    skipped = order[data.draw(st.integers(keep + 1, len(order) - 1))]
    record.columns[skipped][i] = T0 + 10**15
    assert {violation.request for violation in audit_run(record, SEPARATE_LEDGER, relative=False).examples} == {i}


def test_the_ledgers_parts_are_the_adjacent_differences_from_intended_to_delivered() -> None:
    parts = SEPARATE_LEDGER.parts
    assert (parts[0].start, parts[-1].end) == ("t_intended", "t_delivered")
    assert all(before.end == after.start for before, after in pairwise(parts))
    assert {stamp for chain in SEPARATE_LEDGER.chains for stamp in chain} == set(STAMPS)
    assert len(set(PART_NAMES)) == len(PART_NAMES)
