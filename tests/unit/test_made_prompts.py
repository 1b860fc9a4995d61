"""Prompts made to length: token ids and texts of exactly N tokens, shared prefixes equal, everything else counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_proc.tokenize import Tokenizer, load_tokenizer
from harness.common.errors import ConfigError
from harness.config.run_config import RunConfig
from harness.plan.complete import CompletedPlan, complete, reply_lengths
from harness.plan.draft import Draft, Int32Array, PromptShape, TextSource, Vocabulary
from harness.plan.drafting import make_draft
from harness.plan.seeds import Dimension, seed_of
from harness.plan.text_prompts import text_prompts
from harness.plan.token_prompts import token_prompts

CONTEXT = 1024


class RealLink:
    """The tokenizer of builtin:gpt2 without a process between."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def tokenize(self, texts: Sequence[str]) -> list[Int32Array]:
        return [np.array(ids, dtype=np.int32) for ids in self.tokenizer.encode_batch(texts)]

    def detokenize(self, rows: Sequence[Int32Array]) -> list[str]:
        return [self.tokenizer.decode(row.tolist()) for row in rows]

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.tokenizer.vocab_size, tuple(self.tokenizer.special_ids()), CONTEXT)


class PairLink:
    """A tokenizer that adds a start token and, for every two letters, one token: odd counts of letters round up."""

    calls = 0
    begin = 300

    def tokenize(self, texts: Sequence[str]) -> list[Int32Array]:
        self.calls += 1
        return [np.array([self.begin, *self._pairs(text)], dtype=np.int32) for text in texts]

    def _pairs(self, text: str) -> list[int]:
        return [ord(text[place]) % 256 for place in range(0, len(text), 2)]

    def detokenize(self, rows: Sequence[Int32Array]) -> list[str]:
        self.calls += 1
        return ["".join(chr(token) * 2 for token in row) for row in rows]

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(301, (self.begin,), CONTEXT)


class EvenLink(PairLink):
    """Never gives an odd number of tokens."""

    def tokenize(self, texts: Sequence[str]) -> list[Int32Array]:
        return [np.repeat(np.array(self._pairs(text), dtype=np.int32), 2) for text in texts]


@pytest.fixture(scope="module")
def gpt2() -> RealLink:
    return RealLink(load_tokenizer("builtin:gpt2"))


def shape(*lens: int, groups: int = 0, prefix: int = 0) -> PromptShape:
    array = np.array(lens, dtype=np.int32)
    if not groups:
        return PromptShape(array)
    n = len(lens)
    return PromptShape(array, np.arange(n, dtype=np.int64) % groups, np.arange(n + 1, dtype=np.int64), prefix)


def made(link: Any, **values: Any) -> CompletedPlan:
    config = RunConfig(**values)
    return complete(make_draft(config), config.pretok, seed_of(config, Dimension.PROMPTS), link)


def rows_of(plan: Any) -> list[list[int]]:
    return [np.frombuffer(plan.payload(i), dtype="<i4").tolist() for i in range(plan.num_requests)]


# Random token ids


def test_random_prompts_have_exactly_their_lengths_and_no_special_ids() -> None:
    vocabulary = Vocabulary(8, (0, 3, 7), CONTEXT)
    prompts = token_prompts(shape(*range(1, 200)), vocabulary, seed=1)
    assert np.diff(prompts.starts).tolist() == list(range(1, 200))
    assert set(prompts.ids.tolist()) == {1, 2, 4, 5, 6}


def test_random_ids_are_drawn_evenly() -> None:
    ids = token_prompts(shape(60_000), Vocabulary(6, (), CONTEXT), seed=1).ids
    assert np.bincount(ids) == pytest.approx(10_000, abs=450)  # 5 standard deviations


def test_a_vocabulary_of_special_ids_only_is_refused() -> None:
    with pytest.raises(ConfigError, match="special"):
        token_prompts(shape(3), Vocabulary(2, (0, 1), CONTEXT), seed=1)


def test_a_prompt_seed_decides_the_ids() -> None:
    one, same, other = (token_prompts(shape(64), Vocabulary(999, (), CONTEXT), s).ids.tolist() for s in (1, 1, 2))
    assert one == same != other


def test_prompts_of_a_group_share_their_prefix_and_nothing_more(gpt2: RealLink) -> None:
    plan = made(gpt2, prompt_kind="random", input_len=20, prefix_len=30, prefix_groups=3, num_requests=9).plan
    rows = rows_of(plan)
    assert {len(row) for row in rows} == {50}
    assert len({tuple(row[:30]) for row in rows}) == 3 and len({tuple(row[30:]) for row in rows}) == 9
    assert all(rows[i][:30] == rows[i % 3][:30] for i in range(9))


def test_blocks_are_the_same_wherever_they_stand_and_the_last_is_cut() -> None:
    blocks = PromptShape(
        np.array([10, 6, 3], dtype=np.int32), np.array([7, -8, 9, -8, 5, 7]), np.array([0, 3, 5, 6]), block_tokens=4
    )
    prompts = token_prompts(blocks, Vocabulary(10_000, (), CONTEXT), seed=1)
    first, second, third = (prompts.ids[prompts.starts[i] : prompts.starts[i + 1]].tolist() for i in range(3))
    assert second[:4] == first[4:8] and third == first[:3] and len(first) == 10 and len(set(first)) > 8


def test_random_prompts_go_out_as_token_ids_and_are_frozen(gpt2: RealLink) -> None:
    plan = made(gpt2, prompt_kind="random", input_len="uniform:1:9", num_requests=5).plan
    assert plan.pretokenized and plan.texts is None and plan.prompt_ids is not None
    assert not plan.prompt_ids.flags.writeable and not plan.max_new_tokens.flags.writeable


# Texts


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(alphabet=st.sampled_from("ab cdE\n\t.,'19éß日本😀  "), min_size=1, max_size=60),
    lens=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    seed=st.integers(0, 99),
)
def test_a_text_has_exactly_n_tokens_or_is_refused(gpt2: RealLink, text: str, lens: list[int], seed: int) -> None:
    source = TextSource(text, "\n", draw=True)
    try:
        texts = text_prompts(shape(*lens), source, gpt2, seed)
    except ConfigError as error:
        refusal = str(error)
        if text.strip() and "tokens was found" not in refusal:
            raise
    else:
        assert [len(gpt2.tokenizer.encode(one)) for one in texts] == lens


def test_english_is_never_refused(gpt2: RealLink, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("Shall I compare thee to a summer's day?\nThou art more lovely and more temperate:\n" * 9)
    plan = made(gpt2, corpus=corpus, input_len="uniform:1:300", num_requests=100).plan
    lens = [len(gpt2.tokenizer.encode(plan.payload(i).decode())) for i in range(100)]
    drawn = made(gpt2, prompt_kind="random", input_len="uniform:1:300", num_requests=100).plan
    assert drawn.prompt_starts is not None and lens == np.diff(drawn.prompt_starts).tolist()


def test_the_repeated_prompt_can_have_a_length(gpt2: RealLink) -> None:
    plan = made(gpt2, input_len=259, num_requests=2).plan
    assert plan.payload(0).decode() == " ".join(["Hello"] * 259) == plan.payload(1).decode()


def test_text_prefixes_are_the_same_tokens_within_a_group(gpt2: RealLink) -> None:
    source = TextSource("one two three four, five; six seven: eight\nnine ten eleven twelve " * 20, "\n", draw=True)
    texts = text_prompts(shape(*range(31, 71), groups=4, prefix=30), source, gpt2, 5)
    rows = [gpt2.tokenizer.encode(text) for text in texts]
    assert [len(row) for row in rows] == list(range(31, 71))
    assert all(rows[i][:30] == rows[i % 4][:30] for i in range(40)) and len({tuple(row[:30]) for row in rows}) == 4


def test_a_tokenizer_that_adds_a_start_token_is_counted_with_it() -> None:
    link = PairLink()
    texts = text_prompts(shape(1, 2, 9), TextSource("abcdef gh", " ", draw=True), link, 1)
    assert [len(ids) for ids in link.tokenize(texts)] == [1, 2, 9]


def test_all_prompts_are_made_in_few_round_trips() -> None:
    link = PairLink()
    text_prompts(shape(*[50] * 1000), TextSource("some words of a text " * 50, " ", draw=True), link, 1)
    assert link.calls < 20


def test_no_two_prompts_begin_at_the_same_word_while_there_are_others() -> None:
    words = [f"word{i}" for i in range(50)]
    texts = text_prompts(shape(*[8] * 50), TextSource(" ".join(words), " ", draw=True), PairLink(), 1)
    assert len(set(texts)) == 50
    assert len(text_prompts(shape(4, 4, 4), TextSource("ab c", " ", draw=True), PairLink(), 1)) == 3


def test_a_length_that_the_tokenizer_never_gives_is_refused_with_what_it_gives() -> None:
    with pytest.raises(ConfigError, match=r"request 1: no text of exactly 7 tokens was .* tokenizer gives 6 or 8"):
        text_prompts(shape(8, 7), TextSource("some words", " ", draw=True), EvenLink(), 1)


def test_a_text_too_short_for_different_prefixes_is_refused(gpt2: RealLink) -> None:
    with pytest.raises(ConfigError, match="--prefix-groups"):
        text_prompts(shape(*[9] * 5, groups=5, prefix=4), TextSource("word", " ", draw=True), gpt2, 1)


def test_a_text_prompt_of_several_blocks_is_refused(gpt2: RealLink) -> None:
    blocks = PromptShape(np.array([9], dtype=np.int32), np.array([1, 2]), np.array([0, 2]), 4)
    with pytest.raises(ConfigError, match="several blocks"):
        text_prompts(blocks, TextSource("words", " ", draw=True), gpt2, 1)


@pytest.mark.parametrize("content", ["", " \n\t\n"])
def test_an_empty_corpus_is_refused_before_anything_starts(tmp_path: Path, content: str) -> None:
    corpus = tmp_path / "empty.txt"
    corpus.write_text(content)
    with pytest.raises(ConfigError, match="--corpus"):
        make_draft(RunConfig(corpus=corpus, input_len=4))


# The context


def lens_of(plan: Any) -> list[int]:
    return np.diff(plan.prompt_starts).tolist()


def test_drawn_prompts_are_shortened_to_the_context_and_counted(gpt2: RealLink) -> None:
    done = made(gpt2, prompt_kind="random", input_len="uniform:1000:1040", output_len=4, num_requests=200)
    assert max(lens_of(done.plan)) == CONTEXT - 4 and set(done.plan.max_new_tokens.tolist()) == {4}
    count = done.notes["input_lengths_cut_to_context"]
    assert 0 < count < 200 and f"{count} of 200 input lengths" in done.lines[0]


def test_drawn_outputs_are_shortened_where_the_prompts_are_fixed(gpt2: RealLink) -> None:
    done = made(gpt2, prompt_kind="random", input_len=1000, output_len="uniform:1:50", num_requests=200)
    assert set(lens_of(done.plan)) == {1000} and done.plan.max_new_tokens.max() == 24
    assert done.notes["output_lengths_cut_to_context"] > 0


def test_where_both_are_drawn_all_fit_and_no_prompt_is_empty(gpt2: RealLink) -> None:
    done = made(gpt2, prompt_kind="random", input_len="zipf:1.1", output_len="zipf:1.1", num_requests=500)
    lens = np.array(lens_of(done.plan))
    assert lens.min() >= 1 and done.plan.max_new_tokens.min() >= 1
    assert (lens + done.plan.max_new_tokens).max() == CONTEXT


def test_fixed_lengths_beyond_the_context_are_refused(gpt2: RealLink) -> None:
    with pytest.raises(ConfigError, match="context of 1024"):
        made(gpt2, prompt_kind="random", input_len=1021, output_len=4)
    assert lens_of(made(gpt2, prompt_kind="random", input_len=1020, output_len=4, num_requests=1).plan) == [1020]


def test_drawn_outputs_of_raw_texts_are_fitted_by_the_tokens_of_the_texts(gpt2: RealLink) -> None:
    done = made(gpt2, prompt_repeats=1000, output_len="uniform:30:50", num_requests=3)
    assert done.plan.max_new_tokens.tolist() == [24, 24, 24] and not done.plan.pretokenized


def test_a_prompt_that_fills_the_context_is_left_to_the_engine_and_said(gpt2: RealLink) -> None:
    done = made(gpt2, prompt_repeats=2000, output_len="uniform:3:5", num_requests=3)
    assert "3 of 3 requests exceed the context" in done.lines[-1]


def test_the_plan_is_never_longer_than_what_the_draft_reserved(gpt2: RealLink) -> None:
    config = RunConfig(prompt_kind="random", input_len="zipf:1.2", output_len="lognormal:500:900", num_requests=300)
    draft = make_draft(config)
    done = complete(draft, False, 0, gpt2)
    assert np.all(done.plan.max_new_tokens <= draft.plan.max_new_tokens)


# The rest


def test_the_default_load_needs_no_tokenizer() -> None:
    class NoLink(PairLink):
        def tokenize(self, texts: Sequence[str]) -> list[Int32Array]:
            raise AssertionError("nobody is to ask")

    assert made(NoLink()).plan.num_requests == 64


def test_equal_texts_are_tokenized_once_and_all_get_their_ids() -> None:
    class Counting(PairLink):
        texts = 0

        def tokenize(self, texts: Sequence[str]) -> list[Int32Array]:
            self.texts += len(texts)
            return super().tokenize(texts)

    link = Counting()
    plan = made(link, pretok=True, prompt_repeats="1,2", num_requests=6).plan
    assert link.texts == 2 and rows_of(plan)[0] == rows_of(plan)[4] != rows_of(plan)[1]


def test_recorded_replies_are_output_lengths_without_special_tokens() -> None:
    assert reply_lengths(("abcd", 7, ""), PairLink()).tolist() == [2, 7, 1]


def test_a_reply_of_more_tokens_than_were_reserved_is_shortened_and_said() -> None:
    draft = Draft(make_draft(RunConfig(num_requests=2)).plan, replies=("abcdefghijk", 3))
    done = complete(draft, False, 0, PairLink())
    assert done.plan.max_new_tokens.tolist() == [4, 3] and done.lines[0].startswith("1 outputs were shortened")
