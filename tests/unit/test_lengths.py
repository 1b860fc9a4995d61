"""Lengths: the distributions have the moments of their closed forms, files are read to the letter or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import special

from harness.common.errors import ConfigError
from harness.config.length_text import parse_length
from harness.config.run_config import RunConfig
from harness.plan.drafting import make_draft
from harness.plan.lengths import Lengths, draw_lengths, read_lengths
from harness.plan.seeds import Dimension, generator

COUNT = 200_000


def drawn(text: str, count: int = COUNT, seed: int = 1) -> Lengths:
    return draw_lengths(parse_length(text), count, generator(seed, Dimension.LENGTHS, 0), "--input-len")


def zipf_moment(a: float, k: int) -> float:
    """E[X^k] of Zipf's law: zeta(a - k) / zeta(a)."""
    return float(special.zeta(a - k) / special.zeta(a))


#: Mean and standard deviation by closed form; rounding adds a variance of 1/12.
MOMENTS = {
    "uniform:10:29": (19.5, ((20**2 - 1) / 12) ** 0.5),
    "normal:512:64": (512, (64**2 + 1 / 12) ** 0.5),
    "lognormal:300:150": (300, (150**2 + 1 / 12) ** 0.5),
    "zipf:6": (zipf_moment(6, 1), (zipf_moment(6, 2) - zipf_moment(6, 1) ** 2) ** 0.5),
}


@pytest.mark.parametrize("text", MOMENTS)
def test_the_mean_is_that_of_the_closed_form(text: str) -> None:
    mean, deviation = MOMENTS[text]
    assert drawn(text).values.mean() == pytest.approx(mean, abs=4.5 * deviation / COUNT**0.5)


@pytest.mark.parametrize("text", MOMENTS)
def test_the_deviation_is_that_of_the_closed_form(text: str) -> None:
    assert drawn(text).values.std() == pytest.approx(MOMENTS[text][1], rel=0.05)


def test_the_median_of_a_lognormal_is_the_mean_over_the_root_of_one_plus_the_squared_variation() -> None:
    assert np.median(drawn("lognormal:1000:1000").values) == pytest.approx(1000 / 2**0.5, rel=0.02)


def test_uniform_reaches_both_ends() -> None:
    values = drawn("uniform:3:5").values
    assert set(values.tolist()) == {3, 4, 5}


def test_a_fixed_length_is_what_it_says() -> None:
    assert drawn("17", 3).values.tolist() == [17, 17, 17]


def test_lengths_below_one_are_raised_and_counted() -> None:
    lengths = drawn("normal:1:10", 10_000)
    assert lengths.values.min() == 1 and 0 < lengths.raised < 10_000
    below = 0.5 * (1 + float(special.erf((0.5 - 1) / (10 * 2**0.5))))  # P(rounded < 1)
    assert lengths.raised / 10_000 == pytest.approx(below, abs=0.025)


def test_lengths_beyond_the_bounds_are_moved_to_them_and_counted() -> None:
    lengths = drawn("normal:100:50:90:110", 1000)
    values = lengths.values
    assert (values.min(), values.max()) == (90, 110)
    assert np.count_nonzero(values == 90) >= lengths.raised > 0 < lengths.capped <= np.count_nonzero(values == 110)


def test_the_heaviest_tail_stays_within_the_largest_length() -> None:
    lengths = drawn("zipf:1.01", 10_000)
    assert lengths.values.min() >= 1 and lengths.values.max() == 1_000_000 and lengths.capped > 0


def test_the_same_seed_draws_the_same_lengths_and_another_does_not() -> None:
    assert np.array_equal(drawn("zipf:2", 100).values, drawn("zipf:2", 100).values)
    assert not np.array_equal(drawn("zipf:2", 100).values, drawn("zipf:2", 100, seed=2).values)


def test_input_and_output_lengths_of_one_seed_are_not_the_same_numbers() -> None:
    config = RunConfig(prompt_kind="random", input_len="uniform:1:900", output_len="uniform:1:900", num_requests=50)
    draft = make_draft(config)
    assert draft.shape is not None and draft.shape.input_lens.tolist() != draft.plan.max_new_tokens.tolist()


def test_another_length_seed_leaves_arrivals_and_prompts_as_they_are() -> None:
    one, other = (
        make_draft(RunConfig(output_len="uniform:1:90", length_seed=seed, rate=5, arrival="poisson")) for seed in (1, 2)
    )
    assert np.array_equal(one.plan.offsets_ns, other.plan.offsets_ns) and one.plan.payload(0) == other.plan.payload(0)
    assert not np.array_equal(one.plan.max_new_tokens, other.plan.max_new_tokens)


def file_of(tmp_path: Path, name: str, content: str) -> Path:
    path = tmp_path / name
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "column"),
    [("l.txt", "3\n\n5\r\n7\n", ""), ("l.csv", "3\n5\n7\n", ""), ("l.csv", "n\n3\n5\n\n7", ""),
     ("l.csv", "a,n\r\nx,3\r\ny,5\r\nz,7\r\n", "n"), ("l.jsonl", "3\n5\n\n7\n", ""),
     ("l.jsonl", '{"n": 3}\n{"n": 5}\n{"n": 7}', ""), ("l.jsonl", '{"a":1,"n": 3}\n{"n": 5}\n{"n": 7}', "n")],
)  # fmt: skip
def test_a_column_of_integers_is_read(tmp_path: Path, name: str, content: str, column: str) -> None:
    assert read_lengths(file_of(tmp_path, name, content), column, "--input-len") == [3, 5, 7]


@pytest.mark.parametrize(
    ("name", "content", "column", "word"),
    [("l.txt", "3\nx\n", "", "line 2"), ("l.txt", "0\n", "", "from 1 to"), ("l.txt", "3.0\n", "", "line 1"),
     ("l.txt", "", "", "no length"), ("l.txt", "3\n", "n", "columns"), ("l.csv", "a,b\n1,2\n", "", "'a', 'b'"),
     ("l.csv", "a,b\n1\n", "b", "line 2"), ("l.csv", "a,b\n1,2\n", "c", "'c'"), ("l.csv", "", "", "no length"),
     ("l.csv", "n,n\n1,2\n", "n", "twice"),
     ("l.jsonl", "{\n", "", "not valid JSON"), ("l.jsonl", "true\n", "", "line 1"), ("l.jsonl", '{"n":1.5}', "", "'n'"),
     ("l.jsonl", '{"n":1}\n{"m":1}', "n", "line 2"), ("l.txt", "1000001\n", "", "from 1 to")],
)  # fmt: skip
def test_a_file_that_is_no_column_of_lengths_is_refused(
    tmp_path: Path, name: str, content: str, column: str, word: str
) -> None:
    path = file_of(tmp_path, name, content)
    with pytest.raises(ConfigError) as caught:
        read_lengths(path, column, "--input-len")
    line = str(caught.value)
    assert line.startswith(f"--input-len {path}") and word in line and "\n" not in line


def test_the_lengths_of_a_file_are_cycled(tmp_path: Path) -> None:
    path = file_of(tmp_path, "l.csv", "a,n\n1,3\n2,5\n")
    assert drawn(f"file:{path}#n", 5).values.tolist() == [3, 5, 3, 5, 3]
