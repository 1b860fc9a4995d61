"""Which graphs are captured, and when; what they compute is compared in tests/regress and tests/gpu."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tiny_gpt2 import TINY, one_thread, save_model

from engine_proc.attention.decode_attention import Span
from engine_proc.backends.native import NativeBackend
from engine_proc.runner.graphs import CapturedDecode, batch_sizes, widths


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (16, [1, 2, 4, 8, 16]), (20, [1, 2, 4, 8, 16, 20])],
)
def test_every_batch_up_to_the_largest_has_a_size(largest: int, sizes: list[int]) -> None:
    assert batch_sizes(largest) == sizes


@pytest.mark.parametrize("max_tokens", [1, 16, 256, 300, 1024, 1025])
def test_widths_double_up_to_the_whole_context(max_tokens: int) -> None:
    found = widths(max_tokens, 16)
    assert found == sorted(set(found))
    assert found[-1] == -(-max_tokens // 16)
    assert all(later <= 2 * width for width, later in itertools.pairwise(found))


class Recorder:
    """Stands in for CUDA: counts captures and replays."""

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def __call__(self, function: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1
        function()

        def replay() -> None:
            self.replays += 1
            function()

        return replay


@pytest.fixture
def graphs(tmp_path: Path) -> Iterator[tuple[CapturedDecode, Recorder]]:
    backend = NativeBackend(save_model(tmp_path), "cpu", "float32", 2, 2, lambda: 1)
    recorder = Recorder()
    parts = backend._parts
    with torch.inference_mode():
        yield CapturedDecode(parts.model, parts.cache, torch.device("cpu"), 4, TINY.max_positions, recorder), recorder


def test_all_is_captured_at_warm_up_and_nothing_after(graphs: tuple[CapturedDecode, Recorder]) -> None:
    captured, recorder = graphs
    captured.warm_up()
    assert captured.num_graphs == recorder.captures == 3 * 2  # 1, 2, 4 rows; 256 and 300 tokens
    for spans in ([Span([1], 0, 1)], [Span([1] * 19, 299, 1)] * 3, [Span([1] * 17, 256, 1)] * 4):
        assert captured.fits(spans)
        logits = captured(torch.zeros(len(spans), dtype=torch.int64), spans)
        assert logits.shape == (len(spans), TINY.vocab_size)
    assert (recorder.captures, recorder.replays, captured.late_captures) == (6, 3, 0)


def test_more_rows_than_were_captured_do_not_fit(graphs: tuple[CapturedDecode, Recorder]) -> None:
    captured, _ = graphs
    assert not captured.fits([Span([1], 0, 1)] * 5)


def test_a_capture_after_warm_up_is_counted(graphs: tuple[CapturedDecode, Recorder]) -> None:
    captured, recorder = graphs
    captured(torch.zeros(1, dtype=torch.int64), [Span([1], 0, 1)])
    assert (recorder.captures, captured.late_captures) == (1, 0)  # still warming up
    captured.warm_up()
    del captured._graphs[1, 16]
    captured(torch.zeros(1, dtype=torch.int64), [Span([1], 0, 1)])
    assert captured.late_captures == 1
