"""What of a stopped output is shown."""

from __future__ import annotations

import pytest

from harness.config.run_config import RunConfig
from harness.session.output_text import cut_texts, first_stop, without_stop_id


def test_a_text_ends_where_its_stop_begins() -> None:
    assert cut_texts({3: "one two three", 5: "two"}, ["two"]) == {3: "one ", 5: ""}


@pytest.mark.parametrize("stops", [["b", "d"], ["d", "b"], ["bc", "b"]])
def test_the_stop_that_begins_first_decides_whatever_their_order(stops: list[str]) -> None:
    assert first_stop("abcd", stops) == 1


def test_a_text_without_its_stop_stays_whole() -> None:
    assert cut_texts({3: "abc"}, ["x"]) == {3: "abc"}
    assert cut_texts({3: "abc"}, []) == {3: "abc"}


def test_the_token_that_stopped_by_its_id_is_not_shown() -> None:
    config = RunConfig(stop_ids=[7, 9])
    assert without_stop_id([1, 7, 9], config) == [1, 7]
    assert without_stop_id([1, 7, 3], config) == [1, 7, 3]
    assert without_stop_id([], config) == []
