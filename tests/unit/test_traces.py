"""Trace files: every format's sample, exact times, refusals that name line and field, and what becomes of odd rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

from harness.common.errors import ConfigError
from harness.common.plan_file import LoadPlan, load_plan
from harness.config.run_config import RunConfig
from harness.plan.build import frozen
from harness.plan.traces import guard, source
from harness.plan.traces.fit import Lengths, clipped, scaled
from harness.plan.traces.importer import Trace, TraceOptions, read_trace
from harness.plan.traces.load import offset_of, trace_draft
from harness.plan.traces.registry import FORMATS
from harness.plan.traces.times import date_of, stamp_of
from helpers import ROOT

DATA = ROOT.parent / "shared" / "data"
BAD = DATA / "bad_inputs"
VOCAB = 1000


def fake_helper(module: str, args: Sequence[str], text: str) -> str:
    """A model of 1,024 positions whose tokenizer gives one id a character."""
    if module == "engine_proc.limits":
        return json.dumps({"max_model_len": 1024, "vocab_size": VOCAB, "special_ids": [VOCAB - 1]})
    return "".join(json.dumps([ord(char) % VOCAB for char in json.loads(line)]) + "\n" for line in text.splitlines())


def real(*parts: str) -> Path:
    path = DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"the shared data file {path.name} is not here")
    return path


def write(tmp_path: Path, text: str, name: str = "trace.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


class Loaded(NamedTuple):
    plan: LoadPlan
    account: dict[str, Any]
    lines: tuple[str, ...]


def load(path: Path, **options: Any) -> Loaded:
    draft = trace_draft(RunConfig(trace=path, **options), fake_helper)
    return Loaded(draft.plan, cast(dict[str, Any], dict(draft.notes)["trace"]), draft.lines)


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(ConfigError) as error:
        load(path, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,5,2\n2024-05-10 00:00:01+00:00,6,3\n"
)
BURST_HEADER = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST_1 = BURST_HEADER + "5,GPT-4,11,3,14,API log\n5.5,ChatGPT,6,1,7,x\n"
BURST_2 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,1,0.25,GPT-4,11,3,14,API log\n5.5,2,0.5,ChatGPT,6,1,7,x\n"
)
MOONCAKE = (
    '{"timestamp": 10, "input_length": 600, "output_length": 2, "hash_ids": [7, 8]}\n'
    '{"timestamp": 510, "input_length": 3, "output_length": 1}\n'
)
QWEN = (
    '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 17, "output_length": 2, "type": "text", '
    '"turn": 1, "hash_ids": [1, 2]}\n'
    '{"chat_id": 2, "parent_chat_id": 1, "timestamp": 61.614, "input_length": 3, "output_length": 1, "hash_ids": [1]}\n'
)
WEKA_NESTED = (
    '{"id": "a", "requests": [{"t": 1, "in": 65, "out": 2, "hash_ids": [4, 5]}, {"t": 1.5, "in": 3, "out": 1}]}\n'
)
WEKA_FLAT = '{"id": "a", "t": 0, "in": 65, "out": 2, "hash_ids": [4, 5]}\n{"id": "b", "t": 0.5, "in": 3, "out": 1}\n'
PERF = json.dumps({"data": [
    {"payload": [{"model": "m", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 2}], "timestamp": [0]},
    {"payload": [{"prompt": "hello", "max_tokens": 1}], "timestamp": [500]},
]}, indent=1)  # fmt: skip
OWN = (
    '{"timestamp_us": 3, "input_length": 4, "output_length": 2}\n'
    '{"timestamp_us": 500003, "prompt": "abc", "output_length": 1}\n'
)


@pytest.mark.parametrize(
    ("text", "name", "file", "lengths", "gap_ns"),
    [
        (AZURE_2024, "azure", "a.csv", [5, 6], 990_070_000),
        (BURST_1, "burstgpt", "b.csv", [11, 6], 500_000_000),
        (BURST_2, "burstgpt", "b.csv", [11, 6], 500_000_000),
        (MOONCAKE, "mooncake", "m.jsonl", [600, 3], 500_000_000),
        (QWEN, "qwen-bailian", "q.jsonl", [17, 3], 500_000_000),
        (WEKA_NESTED, "weka", "w.jsonl", [65, 3], 500_000_000),
        (WEKA_FLAT, "weka", "w.jsonl", [65, 3], 500_000_000),
        (json.dumps(json.loads(WEKA_NESTED), indent=2), "weka", "w.json", [65, 3], 500_000_000),
        (PERF, "perf-analyzer", "p.json", [3, 5], 500_000_000),
        (OWN, "jsonl", "o.jsonl", [4, 3], 500_000_000),
    ],
)
def test_each_format_is_recognised_and_read(
    tmp_path: Path, text: str, name: str, file: str, lengths: list[int], gap_ns: int
) -> None:
    made = load(write(tmp_path, text, file))
    assert made.account["format"] == name
    assert made.plan.prompt_starts is not None
    assert np.diff(made.plan.prompt_starts).tolist() == lengths
    assert made.plan.offsets_ns.tolist() == [0, gap_ns]


def test_every_declared_format_but_the_plan_and_vllm_has_a_sample_above() -> None:
    assert {one.name for one in FORMATS} == {
        "azure", "burstgpt", "mooncake", "qwen-bailian", "weka", "perf-analyzer", "jsonl", "vllm", "plan",
    }  # fmt: skip


def test_vllm_labels_and_multiplier_are_honoured(tmp_path: Path) -> None:
    path = write(tmp_path, '{"ts": 0, "n_in": 20, "n_out": 2, "ids": [1, 2]}\n{"ts": 250, "n_in": 3, "n_out": 1}\n')
    labels = "timestamp=ts,input_length=n_in,output_length=n_out,hash_ids=ids"
    made = load(path, trace_format="vllm", trace_labels=labels, trace_multiplier="0.001")
    assert made.plan.offsets_ns.tolist() == [0, 250_000_000]
    assert made.plan.max_new_tokens.tolist() == [2, 1]


def test_a_saved_plan_lends_its_offsets_and_lengths(tmp_path: Path) -> None:
    plan = LoadPlan(np.array([5, 17], dtype=np.int64), np.array([3, 0], dtype=np.int32),
                    np.arange(6, dtype=np.int32), np.array([0, 4, 6], dtype=np.int64))  # fmt: skip
    frozen(plan).save(tmp_path / "plan.npz")
    made = load(tmp_path / "plan.npz")
    assert made.plan.offsets_ns.tolist() == [5, 17]  # they count from t0 already
    assert made.plan.max_new_tokens.tolist() == [3, 0]
    assert made.plan.prompt_starts is not None and made.plan.prompt_starts.tolist() == [0, 4, 6]


def test_offset_ns_is_the_time_after_t0_itself(tmp_path: Path) -> None:
    path = write(tmp_path, '{"offset_ns": 1000000007, "input_length": 1, "output_length": 1}\n')
    assert load(path).plan.offsets_ns.tolist() == [1_000_000_007]


# The real files, against the figures published with them


def test_the_azure_code_trace_has_its_published_figures() -> None:
    trace = read_trace(real("azure_llm_2023", "AzureLLMInferenceTrace_code.csv"), TraceOptions())
    timing = trace.timing
    assert (timing.rows, timing.span_ns, timing.smallest_gap_ns) == (8819, 3_435_948_056_000, 6000)
    assert timing.mean_rate == pytest.approx(2.567, abs=5e-4)
    assert timing.gap_cv == pytest.approx(13.15, abs=5e-3)
    stamps = np.array([row.stamp for row in trace.rows])
    assert np.count_nonzero(np.diff(stamps) <= 100_000) == 504
    inputs = np.array([row.input_tokens for row in trace.rows])
    outputs = np.array([row.output_tokens for row in trace.rows])
    assert (np.median(inputs), inputs.max(), np.median(outputs), outputs.max()) == (1469, 7437, 13, 1899)
    assert np.count_nonzero(inputs + outputs <= 1024) == 3266


def test_the_mooncake_trace_has_its_published_figures() -> None:
    trace = read_trace(real("mooncake_fast25", "synthetic_trace.jsonl"), TraceOptions())
    assert (trace.timing.rows, trace.timing.span_ns) == (3993, 1_022_025_000_000)
    assert trace.timing.mean_rate == pytest.approx(3.907, abs=5e-4)
    assert trace.timing.gap_cv == pytest.approx(1.011, abs=5e-4)
    assert sum(row.output_tokens == 1 for row in trace.rows) == 4
    assert all(len(row.hash_ids) == -(-(row.input_tokens or 0) // 512) for row in trace.rows)


def test_a_wrong_unit_is_refused_and_the_right_one_named() -> None:
    path = real("mooncake_fast25", "synthetic_trace.jsonl")
    message = refused(path, trace_unit="ns")
    assert "3.91 million/s" in message and "probably ms" in message and "3.91/s" in message
    assert "probably ms" in refused(path, trace_format="qwen-bailian", trace_block_size=512)  # seconds by default
    assert load(path, trace_unit="us", trace_limit=5).account["warnings"]  # confirmed, and possible: said only


@pytest.mark.parametrize(("rate", "scale", "unit"), [
    (3.9e6, 1, "ms"), (3907.0, 10**6, "s"), (0.0039, 10**9, "ms"), (3.9e-9, 10**9, "ns"),
])  # fmt: skip
def test_the_likely_unit_makes_the_rate_usual(rate: float, scale: int, unit: str) -> None:
    likely = guard.likely_unit(rate, Fraction(scale))
    assert likely is not None and likely[0] == unit


# Exact times


def test_azure_offsets_keep_their_microseconds() -> None:
    made = load(real("bad_inputs", "b01_azure_subms.csv"))
    expected = json.loads((BAD / "b01_expected_offsets_s.json").read_text(), parse_float=Fraction)
    assert made.plan.offsets_ns.tolist() == [Fraction(one) * 10**9 for one in expected]


@pytest.mark.parametrize(("text", "ns"), [
    ("1969-12-31 23:59:59.999999999", -1), ("1970-01-01 00:00:00.0000000001", Fraction(1, 10)),
    ("2000-03-01T00:00:00Z", 951_868_800 * 10**9), ("2024-05-10 02:00:00+02:00", 1_715_299_200 * 10**9),
])  # fmt: skip
def test_dates_are_exact(text: str, ns: Fraction) -> None:
    assert date_of(text) == ns


def test_an_epoch_with_nanoseconds_is_beyond_a_float_and_still_exact(tmp_path: Path) -> None:
    row = '{"timestamp_s": 1700000000.00000000%d, "input_length": 1, "output_length": 1}\n'
    path = write(tmp_path, row % 1 + row % 2)
    assert load(path).plan.offsets_ns.tolist() == [0, 1]


@pytest.mark.parametrize("value", ["nan", "-inf", "", "1_000", "0x10", "1e9999", "1e-40", "٣"])
def test_what_is_no_finite_number_is_no_stamp(value: str) -> None:
    with pytest.raises(ValueError):
        stamp_of(value, Fraction(1))


def test_speed_and_window_are_exact() -> None:
    assert offset_of(10**18 + 1, Fraction(1)) == 10**18 + 1
    assert offset_of(1, Fraction(2)) == 0 and offset_of(3, Fraction(2)) == 2  # ties to even
    assert offset_of(10**18, Fraction(3)) == 333_333_333_333_333_333


def test_the_window_is_half_open_and_its_start_is_t0(tmp_path: Path) -> None:
    rows = "".join(
        f'{{"timestamp": {ms}, "input_length": 1, "output_length": 1}}\n' for ms in (500, 1500, 2000, 2500, 3500)
    )
    made = load(write(tmp_path, rows), trace_window="0.5:2", trace_speed="0.5")
    assert made.plan.offsets_ns.tolist() == [1_000_000_000, 2_000_000_000]
    assert made.account["chosen"] == 2
    assert load(write(tmp_path, rows), trace_window="1:", trace_limit=2).plan.num_requests == 2
    assert "no row" in refused(write(tmp_path, rows), trace_window="50:60")


# What is refused


def test_bad_stamps_are_refused_and_every_line_is_named() -> None:
    message = refused(real("bad_inputs", "b18_bad_timestamp.jsonl"))
    for line, what in ((2, "missing"), (3, "NaN"), (4, "null"), (5, "negative")):
        assert f"line {line}: field 'timestamp'" in message and what in message


def test_times_that_go_back_are_refused_unless_sorted(tmp_path: Path) -> None:
    text = "".join(
        f'{{"timestamp": {ms}, "input_length": {n}, "output_length": 1}}\n' for ms, n in ((9, 1), (3, 2), (9, 3))
    )
    assert "line 2: the time goes back" in refused(write(tmp_path, text)) and "--sort" in refused(write(tmp_path, text))
    made = load(write(tmp_path, text), sort=True)
    assert made.account["sorted"] is True
    assert made.plan.prompt_starts is not None and np.diff(made.plan.prompt_starts).tolist() == [2, 1, 3]


@pytest.mark.parametrize(("text", "said"), [
    ("", "empty"), ("\n \n", "empty"), ("hello\nworld\n", "no known trace format"),
    ('{"timestamp": 1, "input_length": -1, "output_length": 1}', "line 1: field 'input_length' must be from 0"),
    ('{"timestamp": 1, "input_length": 1.5, "output_length": 1}', "line 1: field 'input_length' must be a whole"),
    ('{"timestamp": 1, "input_length": 1, "output_length": true}', "line 1: field 'output_length' must be a whole"),
    ('{"timestamp": 1, "input_length": 1, "output_length": 99999999999}', "line 1: field 'output_length'"),
    ('{"timestamp": 1, "input_length": 1, "output_length": 1}\n{"timestamp": 1', "line 2: not valid JSON"),
    ('{"timestamp": 1, "input_length": 1, "output_length": 1}\n7', "line 2: not a JSON object"),
    ('{"timestamp": 1e999, "input_length": 1, "output_length": 1}', "out of all range"),
    ('{"timestamp": "1", "input_length": 1, "output_length": 1, "hash_ids": [1, 2]}', "hash_ids"),
    ('{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}', "field 'hash_ids'"),
    ('{"data": [{"payload": [{"prompt": 3, "max_tokens": 1}], "timestamp": [1]}]}', "data[0] field 'payload.prompt'"),
    ('{"data": [{"payload": [{"prompt": "a", "max_tokens": 1}], "timestamp": [1, 2]}]}', "data[0] field 'timestamp'"),
    ('{"requests": [{"t": 1, "in": 1}]}', "requests[0] field 'out' is missing"),
    ('{"offset_ns": 1, "prompt": 5, "output_length": 1}', "field 'prompt' must be a string"),
    ('{"offset_ns": 1, "output_length": 1}', "field 'input_length' is missing"),
    ('{"offset_ns": 1, "prompt": "\\ud800", "output_length": 1}', "field 'prompt' holds half of a surrogate pair"),
    ('{"data": [{"payload": [{"prompt": "\\ud800", "max_tokens": 1}], "timestamp": [1]}]}', "'payload.prompt' holds"),
    ("[" * 100_000, "JSON"),
])  # fmt: skip
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    assert said in refused(write(tmp_path, text))


@pytest.mark.parametrize(("rows", "said"), [
    ("2024-13-01 00:00:00,1,1", "line 2: field 'timestamp' is no date"), ("x,1,1", "must be a date"),
    ("2024-01-01 00:00:00,1", "line 2: 2 fields, the header has 3"),
    ('2024-01-01 00:00:00,"1,1', "not valid CSV"), ("2024-01-01 00:00:00,1.5,1", "field 'contexttokens'"),
])  # fmt: skip
def test_damaged_csv_is_refused_in_one_line(tmp_path: Path, rows: str, said: str) -> None:
    assert said in refused(write(tmp_path, f"TIMESTAMP,ContextTokens,GeneratedTokens\r\n{rows}\r\n", "t.csv"))


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """Whatever its case: a dictionary would keep the last one."""
    text = "TIMESTAMP,ContextTokens,contexttokens,GeneratedTokens\n2024-01-01 00:00:00,1,2,3\n"
    assert "line 1: the column 'contexttokens' is there twice" in refused(write(tmp_path, text, "t.csv"))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No such file" in refused(tmp_path / "none")
    assert "directory" in refused(tmp_path)
    (tmp_path / "latin").write_bytes(b"TIMESTAMP\n\xe4\n")
    assert "line 2: not valid UTF-8" in refused(tmp_path / "latin")
    (tmp_path / "zip").write_bytes(b"PK\3\4 and nothing")
    assert "cannot read the plan" in refused(tmp_path / "zip")
    monkeypatch.setattr(source, "MAX_FILE_BYTES", 5)
    assert "exceeds 5 bytes" in refused(write(tmp_path, MOONCAKE))


@pytest.mark.parametrize(("options", "said"), [
    ({"trace_format": "azure"}, "is JSON"), ({"trace_format": "nonsense"}, "there are plan, azure"),
    ({"trace_labels": "timestamp=t"}, "needs --trace-format vllm"),
    ({"trace_multiplier": "2"}, "needs --trace-format vllm"), ({"trace_speed": "1e-9"}, "366 days"),
])  # fmt: skip
def test_options_that_do_not_fit_the_file_are_refused(tmp_path: Path, options: dict[str, str], said: str) -> None:
    assert said in refused(write(tmp_path, MOONCAKE), **options)


def test_units_and_blocks_that_a_file_does_not_have_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, AZURE_2024, "a.csv")
    assert "state their unit themselves" in refused(path, trace_unit="ms")
    assert "no block ids" in refused(path, trace_block_size=16)


@pytest.mark.parametrize("words", [
    {"trace": "x", "rate": 1}, {"trace": "x", "plan": "y"}, {"trace": "x", "max_new_tokens": 3}, {"sort": True},
    {"trace": "x", "num_requests": 3}, {"lengths": "skip"}, {"trace": "x", "tokenize_workers": 1}, {"trace_speed": 2},
    {"trace": "x", "trace_window": "5:5"}, {"trace": "x", "trace_window": ":"}, {"trace": "x", "trace_speed": "nan"},
    {"trace": "x", "trace_speed": 0}, {"trace": "x", "trace_labels": "a=b"}, {"trace": "x", "arrival": "poisson"},
    {"trace": "x", "duration_s": 3}, {"trace": "x", "trace_unit": "ms", "trace_multiplier": 1},
])  # fmt: skip
def test_flags_that_contradict_each_other_are_refused(words: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="--"):
        RunConfig(**words)


# What becomes of odd rows


def test_a_byte_order_mark_and_blank_lines_are_no_rows() -> None:
    assert load(real("bad_inputs", "x2_bom_crlf.csv")).plan.offsets_ns.tolist() == [0, 250_000_000]


def test_empty_rows_and_failed_calls_are_kept_and_counted_or_skipped_when_asked() -> None:
    path = real("bad_inputs", "x5_burstgpt_two_layouts_v1.csv")
    kept = load(path)
    assert kept.plan.offsets_ns.tolist() == [0, 2 * 10**9, 2 * 10**9]
    assert (kept.account["no_prompt_tokens"], kept.account["no_output_tokens"]) == (1, 2)
    skipped = load(path, trace_empty="skip")
    assert (skipped.plan.num_requests, skipped.account["empty_skipped"]) == (1, 2)


@pytest.mark.parametrize(("policy", "lengths"), [
    ("keep", [(0, 4), (4, 0), (1023, 1), (1024, 1), (60, 4000)]),
    ("scale", [(0, 4), (4, 0), (1023, 1), (1023, 1), (16, 1008)]),
    ("clip", [(0, 4), (4, 0), (1023, 1), (1023, 1), (60, 964)]),
    ("skip", [(0, 4), (4, 0), (1023, 1)]),
])  # fmt: skip
def test_rows_beyond_the_context_meet_the_stated_policy(policy: str, lengths: list[tuple[int, int]]) -> None:
    made = load(real("bad_inputs", "x7_lengths.csv"), lengths=policy)
    assert made.plan.prompt_starts is not None
    got = list(zip(np.diff(made.plan.prompt_starts).tolist(), made.plan.max_new_tokens.tolist(), strict=True))
    assert got == lengths
    assert made.account["beyond_context"] == 2


@pytest.mark.parametrize("context", [1, 2, 3, 7, 64])
def test_scaling_and_clipping_fill_the_context_exactly_and_lengthen_nothing(context: int) -> None:
    rows = [Lengths(a, b) for a in range(30) for b in range(0, 90, 7) if a + b > context]
    assert rows
    for row in rows:
        for fitted in (scaled(row, context), clipped(row, context)):
            assert sum(fitted) == context
            assert 0 <= fitted.input <= row.input and 0 <= fitted.output <= row.output


def test_max_model_len_stands_in_for_the_context(tmp_path: Path) -> None:
    assert load(write(tmp_path, MOONCAKE), lengths="clip", max_model_len=100).account["beyond_context"] == 1


def test_a_trace_that_starts_nearly_empty_is_warned_of(tmp_path: Path) -> None:
    """BurstGPT's first windows have 0.034 requests/s, the later ones 3.17 (HPMLL/BurstGPT issue 11)."""
    text = BURST_HEADER + "".join(f"{second},m,1,1,2,l\n" for second in [*range(0, 100, 30), *range(100, 1000)])
    assert "--trace-window" in load(write(tmp_path, text, "b.csv")).account["warnings"][0]
    even = BURST_HEADER + "".join(f"{second},m,1,1,2,l\n" for second in range(1000))
    assert load(write(tmp_path, even, "b.csv")).account["warnings"] == []


# Prompts


def prompt(made: Loaded, i: int) -> list[int]:
    assert made.plan.prompt_ids is not None and made.plan.prompt_starts is not None
    return made.plan.prompt_ids[made.plan.prompt_starts[i] : made.plan.prompt_starts[i + 1]].tolist()


def test_equal_block_ids_are_equal_tokens_and_others_are_not(tmp_path: Path) -> None:
    rows = [(600, [7, 8]), (1030, [7, 9, 8]), (600, [7, 8])]
    text = "".join(
        f'{{"timestamp": 1, "input_length": {n}, "output_length": 1, "hash_ids": {ids}}}\n' for n, ids in rows
    )
    made = load(write(tmp_path, text), lengths="keep")
    first, second, third = (prompt(made, i) for i in range(3))
    assert first == third and first[:512] == second[:512]
    assert first[512:] != second[512:600] and first[512:518] == second[1024:]  # block 8, cut short
    assert min(first) >= 0 and max(first) < VOCAB - 1  # the last id is special


def test_tokens_follow_the_prompt_seed_and_rows_differ(tmp_path: Path) -> None:
    path = write(tmp_path, '{"timestamp": 1, "input_length": 64, "output_length": 1}\n' * 3)
    made = [load(path, **seeds) for seeds in ({}, {"seed": 5}, {"prompt_seed": 5}, {"seed": 9, "prompt_seed": 5})]
    assert len({tuple(prompt(one, i)) for one in made[:2] for i in range(3)}) == 6
    assert made[1].plan.sha256() == made[2].plan.sha256() == made[3].plan.sha256()


def test_a_prompt_text_is_sent_as_its_tokens(tmp_path: Path) -> None:
    text = '{"offset_ns": 0, "prompt": "abc", "input_length": 9, "output_length": 1}\n'
    made = load(write(tmp_path, text))
    assert prompt(made, 0) == [97, 98, 99]
    assert made.account["prompt_length_differs"] == 1


def test_a_trace_read_twice_is_the_same_load(tmp_path: Path) -> None:
    path = write(tmp_path, MOONCAKE)
    first = load(path).plan
    first.save(tmp_path / "kept.npz")
    assert load_plan(tmp_path / "kept.npz").sha256() == load(path).plan.sha256() == first.sha256()


def test_a_trace_holds_its_rows_in_order() -> None:
    trace: Trace = read_trace(real("bad_inputs", "x2_bom_crlf.csv"), TraceOptions())
    assert [row.input_tokens for row in trace.rows] == [8, 8] and not trace.was_sorted
