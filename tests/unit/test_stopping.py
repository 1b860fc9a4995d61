"""Stop strings and stop ids: where an output ends, whatever its tokens cut in two."""

from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from engine_proc.stopping import StopMatcher, watch
from engine_proc.token_bytes import TokenBytes, byte_of_char
from engine_proc.tokenize import load_tokenizer
from harness.common.protocol import Sampling

GPT2 = load_tokenizer("builtin:gpt2")
ONE_BYTE = [bytes([value]) for value in range(256)]


def place_of_stop(pieces: list[bytes], *stop: str, stop_ids: tuple[int, ...] = ()) -> int | None:
    """After which token an output of these pieces (token i is piece i) stops; None: never."""
    matcher = StopMatcher(Sampling(stop=stop, stop_ids=stop_ids), pieces.__getitem__)
    return next((i for i in range(len(pieces)) if matcher.feed(i)), None)


def test_a_request_without_stops_is_not_watched() -> None:
    assert watch(Sampling(), ONE_BYTE.__getitem__) is None
    assert watch(Sampling(stop=("x",)), ONE_BYTE.__getitem__) is not None
    assert watch(Sampling(stop_ids=(3,)), ONE_BYTE.__getitem__) is not None


def test_a_stop_id_ends_the_output_whatever_its_text() -> None:
    assert place_of_stop([b"a", b"b", b"c"], stop_ids=(9, 1)) == 1


def test_a_stop_within_one_token_ends_the_output() -> None:
    assert place_of_stop([b"one", b" two three", b"four"], "two") == 1


def test_a_stop_over_several_tokens_ends_it_with_its_last_one() -> None:
    assert place_of_stop([b"x", b"S", b"TO", b"P!", b"y"], "STOP") == 3


def test_a_stop_that_begins_anew_after_a_false_start_is_found() -> None:
    assert place_of_stop([b"a", b"a", b"a", b"b"], "aab") == 3
    assert place_of_stop([b"ab", b"ab", b"ac"], "abac") == 2


def test_the_first_of_several_stops_ends_it() -> None:
    assert place_of_stop([b"1", b"2", b"3"], "3", "2") == 1


def test_a_character_that_two_tokens_share_stops_with_its_last_byte() -> None:
    snowman = "\u2603".encode()
    assert place_of_stop([b"x", snowman[:1], snowman[1:2], snowman[2:], b"y"], "\u2603") == 3
    assert place_of_stop([b"x", snowman[:2], b"y"], "\u2603") is None


def test_half_a_character_never_looks_like_a_stop() -> None:
    """Its last byte is the last byte of other characters, too."""
    assert place_of_stop(["\u00e9".encode()[:1], "\u4e29".encode()[1:]], "\u00e9") is None


def test_what_has_no_text_stops_nothing() -> None:
    assert place_of_stop([b"", b"", b""], "a") is None


@given(
    st.lists(st.sampled_from(["a", "b", "é", "漢", "🙂", "ab", "\n"]), max_size=30),
    st.lists(st.sampled_from(["ab", "aé", "漢🙂", "🙂", "b\na", "aab"]), min_size=1, max_size=3, unique=True),
    st.lists(st.integers(1, 5), min_size=1, max_size=60),
)
def test_an_output_stops_at_the_first_token_whose_whole_text_so_far_holds_a_stop(
    text: list[str], stops: list[str], cuts: list[int]
) -> None:
    """Whatever the tokens cut: compared with decoding everything anew after each token."""
    data, pieces = "".join(text).encode(), []
    for cut in cuts * len(data):
        pieces.append(data[:cut])
        data = data[cut:]
        if not data:
            break
    wholes = [b"".join(pieces[: i + 1]).decode("utf-8", "ignore") for i in range(len(pieces))]
    expected = next((i for i, whole in enumerate(wholes) if any(stop in whole for stop in stops)), None)
    assert place_of_stop(pieces, *stops) == expected


def test_the_matcher_keeps_no_more_than_a_stop_can_need() -> None:
    matcher = StopMatcher(Sampling(stop=("abcd",)), lambda token: b"x" * 50)
    for _ in range(100):
        matcher.feed(0)
    assert len(matcher._tail) == 3


# The bytes of tokens


@given(st.text(max_size=30))
def test_the_bytes_of_gpt2_s_tokens_join_to_the_text(text: str) -> None:
    ids = GPT2.encode(text)
    joined = b"".join(map(GPT2.token_bytes, ids))
    assert joined == text.encode() and joined.decode() == GPT2.decode(ids)


@given(st.lists(st.integers(0, 50256), max_size=20))
def test_any_ids_have_the_bytes_that_the_tokenizer_decodes(ids: list[int]) -> None:
    """Also those that are no valid UTF-8 together."""
    assert b"".join(map(GPT2.token_bytes, ids)).decode("utf-8", "replace") == GPT2.decode(ids)


def test_an_id_without_an_entry_has_no_bytes() -> None:
    assert GPT2.token_bytes(10**6) == b""


def test_gpt2_s_byte_table_has_a_character_for_each_byte() -> None:
    assert sorted(byte_of_char().values()) == list(range(256))
    assert byte_of_char()["\u0120"] == ord(" ")


def sentencepiece() -> tokenizers.Tokenizer:
    """A tokenizer of Llama 2's kind."""
    vocab = {"<unk>": 0, "\u2581Hi": 1, "\u2581the": 2, "re": 3, "<0xE2>": 4, "<0x98>": 5, "<0x83>": 6}
    rust = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    parts = tokenizers.decoders
    rust.decoder = parts.Sequence([parts.Replace("\u2581", " "), parts.ByteFallback(), parts.Fuse()])
    return rust


def test_sentencepiece_tokens_have_spaces_and_bytes() -> None:
    token_bytes = TokenBytes(sentencepiece())
    assert b"".join(map(token_bytes, [1, 2, 3, 4, 5, 6])) == " Hi there\u2603".encode()
    assert sentencepiece().decode([1, 2, 3, 4, 5, 6]) == " Hi there\u2603"


def test_a_tokenizer_without_a_decoder_gives_its_tokens_as_they_are() -> None:
    rust = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    assert TokenBytes(rust)(1) == b"b"


@pytest.mark.parametrize("token", ["<|im_end|>", "<|a b|>", "<|é漢|>"])
def test_a_special_token_has_the_bytes_that_the_decoder_gives_it(token: str) -> None:
    rust = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    rust.decoder = tokenizers.decoders.ByteLevel()
    rust.add_special_tokens([tokenizers.AddedToken(token, special=True)])
    number = rust.token_to_id(token)
    decoded = rust.decode([number], skip_special_tokens=False)
    assert TokenBytes(rust)(number).decode("utf-8", "replace") == decoded
