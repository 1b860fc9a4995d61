"""A request's story for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.explain.attribution import Overlap, PartStory, Story, longest
from harness.report.ledger_bar import part_bar
from harness.report.words import safe, time_words

_MAX_WIDTH, _NAME, _TIME, _SHARE = 120, 14, 11, 6


def render_story(story: Story, console: Console) -> None:
    """Print the sentence, one line and bar a part, and beneath each what happened in it."""
    width = min(console.width, _MAX_WIDTH)
    ascii_only = console.options.ascii_only
    console.print(Text(safe(headline(story), ascii_only=ascii_only), style="bold"), width=width, highlight=False)
    total = story.ttft_ns or sum(part.duration_ns for part in story.parts)
    begin = story.parts[0].start_ns if story.parts else 0
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=_NAME, no_wrap=True)
    table.add_column(min_width=_TIME, justify="right", no_wrap=True)
    table.add_column(min_width=_SHARE, justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    bar = max(width - _NAME - _TIME - _SHARE - 8, 8)
    for part in story.parts:
        drawn = part_bar(part.start_ns - begin, part.duration_ns, total, bar, ascii_only=ascii_only)
        share = f"{100 * part.duration_ns / total:.1f} %" if total else ""
        table.add_row(part.name, time_words(part.duration_ns / 1e6), share, Text(drawn, style="cyan"))
        for line in _lines(part):
            table.add_row("", "", "", Text(safe(line, ascii_only=ascii_only), style="dim"))
    if story.ttft_ns is not None:
        table.add_row(Text("TTFT", style="bold"), Text(time_words(story.ttft_ns / 1e6), style="bold"), "", "")
    if story.decode is not None:
        table.add_row("decode", time_words(story.decode.duration_ns / 1e6), "", "; ".join(_lines(story.decode)))
    console.print(table, width=width, highlight=False)
    console.print()


def headline(story: Story) -> str:
    """One sentence: what became of the request, and which part took longest."""
    what = f"Request {story.request} of run {story.run} {_became(story)}"
    most = longest(story.parts)
    if most is None:
        return f"{what}; it has no stamps."
    total = story.ttft_ns or sum(part.duration_ns for part in story.parts)
    of = f" of its TTFT of {time_words(story.ttft_ns / 1e6)}" if story.ttft_ns is not None else ""
    share = f" ({100 * most.duration_ns / total:.0f} %)" if total else ""
    return f"{what}: {time_words(most.duration_ns / 1e6)}{of} was {most.name}{share}."


def _became(story: Story) -> str:
    words = {"completed": "completed", "unfinished": "was not finished", "lost": "was lost"}
    said = words.get(story.status, f"was {story.status}" if story.status != "failed" else "failed")
    return f"{said} ({story.error})" if story.error else said


def _lines(part: PartStory) -> list[str]:
    return [*part.notes, *(_overlap_words(overlap) for overlap in part.overlaps)]


def _overlap_words(overlap: Overlap) -> str:
    times = "once" if overlap.pauses == 1 else f"{overlap.pauses} times"
    return (
        f"meanwhile {overlap.kind} {times}, {time_words(overlap.overlap_ns / 1e6)} in it, the longest "
        f"{time_words(overlap.longest_ns / 1e6)}"
    )


def story_json(story: Story) -> dict[str, Any]:
    """The story as plain values; times in ns."""
    return {
        "run": story.run,
        "request": story.request,
        "status": story.status,
        "error": story.error,
        "ttft_ns": story.ttft_ns,
        "parts": [_part_json(part) for part in story.parts],
        "decode": None if story.decode is None else _part_json(story.decode),
    }


def _part_json(part: PartStory) -> Mapping[str, Any]:
    return {
        "name": part.name,
        "start_ns": part.start_ns,
        "end_ns": part.end_ns,
        "duration_ns": part.duration_ns,
        "notes": list(part.notes),
        "overlaps": [overlap._asdict() for overlap in part.overlaps],
    }
