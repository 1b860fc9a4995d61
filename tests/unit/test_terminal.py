"""The terminal summary: every published line, no bad wrap, nothing that a prompt or a model name can do to a screen."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from made_session import make_session
from rich.console import Console

from harness.common.stamps import STEP_COLUMNS, EndReason
from harness.report.finish import finish_session
from harness.report.ledger_bar import part_bar
from harness.report.terminal import render_terminal
from harness.report.timeline_chart import sparkline
from harness.report.words import cpu_list, safe, time_words

PUBLISHED = (
    "Model",
    "Device",
    "Pretok",
    "Tokenize workers",
    "Paged attention",
    "CUDA Graph",
    "NVTX",
    "Requests",
    "Prompt tokens",
    "Completion tokens",
    "Submit wall",
    "Submit interval",
    "Submit lag",
    "add_request latency",
    "Tokenize",
    "Queue wait (post-tok)",
    "Prefill->first token",
    "TTFT",
)
BEYOND = ("GIL wait", "Transit", "Wire offset", "Delivery", "TTFT from submit", "TPOT", "ITL", "E2E", "Throughput",
          "Rate", "Cores", "Pacer", "TTFT ledger")  # fmt: skip


def summary_of(folder: Path, end: EndReason = EndReason.DONE, **session: Any) -> Mapping[str, Any]:
    """A summary as `isorate report` reads it: through its JSON."""
    made = make_session(folder, **session)
    made.collector.set_word("end_reason", end)
    staging = folder / "staging"
    staging.mkdir()
    finish_session(made.collector, made.plan, made.info, staging, folder / "out")
    loaded: dict[str, Any] = json.loads((folder / "out" / "summary.json").read_text())
    return loaded


def render(
    summary: Mapping[str, Any],
    width: int = 80,
    encoding: str = "utf-8",
    *,
    terminal: bool = False,
    all_checks: bool = False,
) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    colours: Literal["truecolor", "auto"] = "truecolor" if terminal else "auto"
    console = Console(file=file, width=width, force_terminal=terminal, color_system=colours)
    render_terminal(summary, console, all_checks=all_checks)
    file.flush()
    return raw.getvalue().decode(encoding)


def line_of(text: str, label: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(label))


def test_every_published_line_is_there_and_those_beyond(tmp_path: Path) -> None:
    text = render(summary_of(tmp_path))
    for label in (*PUBLISHED, *BEYOND):
        assert line_of(text, label)


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_line_is_wider_than_the_screen_but_those_one_copies(tmp_path: Path, width: int) -> None:
    text = render(summary_of(tmp_path), width)
    long = [line for line in text.splitlines() if len(line) > width and not line.startswith(("Repeat", "Results"))]
    assert long == []


def test_no_figure_is_cut(tmp_path: Path) -> None:
    assert "\u2026" not in render(summary_of(tmp_path, n=300, warmups=(False, False)))


def test_command_and_folder_stay_on_one_line(tmp_path: Path) -> None:
    text = render(summary_of(tmp_path, command=("./run.sh", "--prompt", "x " * 100)))
    assert line_of(text, "Repeat: ./run.sh --prompt 'x ").endswith("x '")
    assert line_of(text, "Results: ").endswith(str(tmp_path / "out"))


def test_a_file_gets_no_colour_and_no_padding(tmp_path: Path) -> None:
    text = render(summary_of(tmp_path))
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_terminal_gets_colour(tmp_path: Path) -> None:
    assert "\x1b[" in render(summary_of(tmp_path), terminal=True)


def test_a_terminal_without_utf8_gets_ascii(tmp_path: Path) -> None:
    text = render(summary_of(tmp_path, engine={"model": "mod\u00e8le"}), encoding="ascii")
    assert "#####" in text
    assert "mod\\xe8le" in text


def test_markup_and_control_characters_of_users_are_shown_not_obeyed(tmp_path: Path) -> None:
    evil = "[red]x[/red]\x1b[2J\r\u202e"
    summary = summary_of(
        tmp_path, engine={"model": evil}, command=("run", evil), end_detail=evil, end=EndReason.STALLED
    )
    text = render(summary)
    assert "\x1b" not in text
    assert "\r" not in text
    assert line_of(text, "Model").endswith("[red]x[/red]\\x1b[2J\\r\\u202e")


def test_what_is_not_measured_says_so_and_is_no_0(tmp_path: Path) -> None:
    text = render(summary_of(tmp_path, tokens=1, wire="python"))
    for label in ("GIL wait", "Ingress wait", "Wire offset", "ITL", "TPOT"):
        assert line_of(text, label).split()[-2:] == ["not", "measured"]
    assert "not measured" in line_of(text, "ingress_wait")


def test_drift_is_shown_in_relative_mode_only(tmp_path: Path) -> None:
    for schedule in ("relative", "absolute"):
        (tmp_path / schedule).mkdir()
        text = render(summary_of(tmp_path / schedule, schedule=schedule))
        assert ("\nDrift" in text) == (schedule == "relative")


def test_a_check_that_does_not_pass_is_explained(tmp_path: Path) -> None:
    placement = {"engine": [0], "submitter": [0], "asked": False}
    text = render(summary_of(tmp_path, placement=placement))
    assert "Verdict: INVALID   bound by: host" in text
    assert "--submitter-cores" in text.split("Verdict")[1]


def test_checks_that_passed_are_a_line_unless_asked_for(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, n=20)
    statuses = [check["status"] for check in summary["verdict"]["checks"]]
    line = f"{statuses.count('PASS')} checks passed, {statuses.count('N/A')} do not apply (--verbose shows them)."
    assert line in render(summary) and "Requests lost" not in render(summary)
    everything = render(summary, all_checks=True)
    assert all(check["name"] in everything for check in summary["verdict"]["checks"]) and line not in everything


def test_a_percentile_that_the_sample_does_not_support_says_what_it_needs(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, n=20)
    metric = summary["runs"][0]["metrics"]["ttft"]
    assert metric["supported"] == {"p50": True, "p90": False, "p95": False, "p99": False, "p99_9": False}
    assert metric["ess"] == 20 and metric["p99"] is not None
    for width in (80, 120):
        text = render(summary, width)
        assert line_of(text, "TTFT ").split()[2:9] == ["10.45", "n/a", "(needs", "130)", "n/a", "(needs", "662)"]
        assert max(len(line) for line in text.split("Repeat")[0].splitlines()) <= width


def test_a_large_sample_has_all_its_percentiles(tmp_path: Path) -> None:
    assert "n/a" not in line_of(render(summary_of(tmp_path, n=700)), "TTFT ")


def test_changed_limits_are_shown(tmp_path: Path) -> None:
    limits = {"file": "mine.toml", "changed": {"steal": {"invalid": "off"}}}
    assert "Limits changed by mine.toml: steal invalid off." in render(summary_of(tmp_path, n=20, limits=limits))


def test_several_runs_are_listed_and_the_median_one_is_shown(tmp_path: Path) -> None:
    text = render(summary_of(tmp_path, warmups=(True, False, False, False)))
    assert "Below: run 2, the one whose median TTFT is the median." in text
    listed = text.split("Below")[0].split("TTFT p99")[1].split()
    assert [listed[i] for i in range(0, len(listed), len(listed) // 3)] == ["1", "2", "3"]


def test_an_early_end_is_told_with_the_childs_last_words(tmp_path: Path) -> None:
    tails = {"engine": "Traceback\nValueError: no"}
    summary = summary_of(tmp_path, end=EndReason.ENGINE_DIED, end_detail="exit code -9", stderr_tails=tails)
    text = render(summary)
    assert "Ended early: engine died: exit code -9" in text
    assert "Last words of the engine:\n  Traceback\n  ValueError: no" in text


def test_a_session_without_runs_still_has_a_report(tmp_path: Path) -> None:
    summary = {**summary_of(tmp_path), "runs": [], "not_started": [0]}
    assert "Never started: run 0" in render(summary)


def busy_summary(folder: Path, **engine: Any) -> Mapping[str, Any]:
    """A run whose batch grows and that uses some blocks."""
    made = make_session(folder, engine={"model": "m", **engine})
    steps = made.collector.word("steps")
    for name, values in (("decode_rows", range(1, steps + 1)), ("kv_blocks_used", range(3, steps + 3))):
        made.collector.steps[:steps, STEP_COLUMNS.index(name)] = list(values)
    made.collector.column("cached_tokens")[:4] = 3
    staging = folder / "staging"
    staging.mkdir()
    finish_session(made.collector, made.plan, made.info, staging, folder / "out")
    loaded: dict[str, Any] = json.loads((folder / "out" / "summary.json").read_text())
    return loaded


def test_batch_size_and_kv_use_are_drawn_over_time(tmp_path: Path) -> None:
    text = render(busy_summary(tmp_path, kv_blocks=1000))
    assert line_of(text, "Batch size").endswith("  max 24")
    assert line_of(text, "KV blocks").endswith("  max 26 of 1,000")
    assert "\u2581" in line_of(text, "Batch size")


@pytest.mark.parametrize(("width", "cells"), [(80, 30), (100, 40), (120, 60)])
def test_the_time_below_is_as_wide_as_the_charts(tmp_path: Path, width: int, cells: int) -> None:
    lines = render(busy_summary(tmp_path, kv_blocks=1000), width).splitlines()
    axis = lines[next(i for i, line in enumerate(lines) if line.startswith("KV blocks")) + 1]
    assert axis.startswith(" " * 23) and axis.count(" s") == 2 and len(axis) == 23 + cells


def test_charts_without_utf8_are_ascii(tmp_path: Path) -> None:
    line = line_of(render(busy_summary(tmp_path), encoding="ascii"), "Batch size")
    assert "\\" not in line and set(line[23:53]) <= set(" .:-=+*#@")


def test_an_engine_without_a_kv_cache_has_no_chart_of_it(tmp_path: Path) -> None:
    assert "KV blocks" not in render(summary_of(tmp_path))


def test_the_hit_rate_of_the_prefix_cache_is_shown(tmp_path: Path) -> None:
    line = line_of(render(busy_summary(tmp_path, prefix_cache=True)), "Prefix cache")
    assert line.endswith("30.0 % hit rate, 12 of 40 prompt tokens")


def test_a_prefix_cache_that_is_off_is_said_to_be_and_one_that_nobody_has_is_not(tmp_path: Path) -> None:
    summary = dict(summary_of(tmp_path))
    assert "Prefix cache" not in render(summary)
    assert line_of(render({**summary, "engine": {"prefix_cache": False}}), "Prefix cache").endswith("off")


def test_a_summary_of_an_earlier_version_is_still_printed(tmp_path: Path) -> None:
    summary = dict(summary_of(tmp_path))
    run = {**summary["runs"][0], "engine": {"steps": 24, "busy_fraction": 0.5}}
    assert "Batch size" not in render({**summary, "runs": [run]})


@pytest.mark.parametrize(
    ("values", "drawn"),
    [([0, 1, 2, 4, 8], " 1248"), ([8.0] * 5, "88888"), ([0.0] * 5, "     "), ([0.001, 0, 0, 0, 0], "1    ")],
)
def test_a_sparkline_s_height_is_the_value_and_blank_is_exactly_0(values: list[float], drawn: str) -> None:
    heights = {"\u2581": "1", "\u2582": "2", "\u2584": "4", "\u2588": "8", " ": " "}
    line = sparkline(values, 8, 5, ascii_only=False)
    assert "".join(heights[char] for char in line) == drawn


def test_a_sparkline_averages_what_shares_a_cell() -> None:
    assert sparkline([8, 0, 8, 8, 0, 0], 8, 3, ascii_only=True) == "=@ "
    assert sparkline([5.0] * 7, 0, 3, ascii_only=True) == "   "


def test_bars_begin_where_the_one_above_ended() -> None:
    assert part_bar(0, 5, 10, 10, ascii_only=True) == "#####"
    assert part_bar(5, 5, 10, 10, ascii_only=True) == "     #####"


def test_a_part_too_short_for_a_cell_is_a_tick_and_none_is_nothing() -> None:
    assert part_bar(10, 0.001, 10.001, 10, ascii_only=True) == "         |"
    assert part_bar(5, 0, 10, 10, ascii_only=True) == ""


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [(0.00004, "0.040 us"), (0.25, "250.0 us"), (1.0, "1.00 ms"), (868.08, "868.08 ms"), (12345.6, "12,346 ms"),
     (0.0, "0.00 ms"), (None, "not measured")],
)  # fmt: skip
def test_times_read_in_the_unit_that_fits(milliseconds: float | None, words: str) -> None:
    assert time_words(milliseconds) == words


def test_cpu_lists_read_as_taskset_takes_them() -> None:
    assert cpu_list([3, 0, 1, 2, 8]) == "0-3,8"
    assert cpu_list(None) == "not known"


def test_safe_text_keeps_letters_of_any_script() -> None:
    assert safe("é 漢 \t") == "é 漢 \\t"
