"""Text prompts of exactly N tokens after re-tokenization: cut, tokenize, adjust, in batches, or refuse."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.common.errors import ConfigError
from harness.plan.draft import Int32Array, PromptShape, TextSource, TokenizerLink
from harness.plan.seeds import Dimension, generator
from harness.plan.token_prompts import OWN, PREFIXES

_WORD_START = re.compile(r"(?<!\S)\S")
#: Characters of source that are tokenized for each token wanted; what turns out short is doubled.
_CHARS_A_TOKEN = 6
#: Round trips until a prompt is given up.
_MAX_ROUNDS = 40
#: Cuts tried from one place of the text before another place is tried.
_MAX_CUTS = 8


@dataclass(slots=True)
class _Piece:
    """One text in the making: `head` and then the first `cut` of the `ids` that follow in the source at `start`."""

    request: int
    target: int
    start: int
    head: str = ""
    head_ids: Int32Array | None = None
    chars: int = 0
    ids: Int32Array | None = None
    cut: int = 0
    counts: dict[int, int] = field(default_factory=dict)  # cut -> tokens of the text
    seen: set[int] = field(default_factory=set)  # all counts, from any place
    text: str = ""


def text_prompts(shape: PromptShape, source: TextSource, link: TokenizerLink, seed: int) -> list[str]:
    """One text a request, `shape.input_lens[i]` tokens by `link`'s tokenizer; equal ones are made once.

    A prompt's shared block, at most one, is its head: all with it begin with the same tokens. Raises ConfigError naming
    the request and what the tokenizer gives where no cut has the length, and for several blocks a prompt.
    """
    if not source.text.strip():
        raise ConfigError("the text that prompts are cut from is empty")
    cutter = _Cutter(source, link)
    heads = _heads(shape, cutter, seed)
    starts = cutter.starts(len(shape.input_lens), generator(seed, Dimension.PROMPTS, OWN))
    pieces: dict[tuple[int, int, str], _Piece] = {}
    keys = []
    for i, (length, start) in enumerate(zip(shape.input_lens.tolist(), starts, strict=True)):
        head = heads[shape.blocks(i)[0]] if shape.blocks(i) else _Head("", None)
        key = (length, start, head.text)
        keys.append(key)
        if key not in pieces:
            pieces[key] = _Piece(i, length, start, head.text, head.ids)
    cutter.make(list(pieces.values()))
    return [pieces[key].text for key in keys]


@dataclass(frozen=True, slots=True)
class _Head:
    text: str
    ids: Int32Array | None


def _heads(shape: PromptShape, cutter: _Cutter, seed: int) -> dict[int, _Head]:
    """The text of each shared block, by its id."""
    if shape.block_ids is None or shape.block_starts is None:
        return {}
    if int(np.diff(shape.block_starts).max(initial=0)) > 1:
        raise ConfigError("text prompts can share one prefix, not several blocks: use random token ids")
    blocks = sorted({int(block) for block in shape.block_ids})
    starts = cutter.starts(len(blocks), generator(seed, Dimension.PROMPTS, PREFIXES))
    pieces = [_Piece(i, shape.block_tokens, start) for i, start in enumerate(starts)]
    _make_different(pieces, cutter)
    ids = cutter.plain_ids([piece.text for piece in pieces])
    return {block: _Head(piece.text, row) for block, piece, row in zip(blocks, pieces, ids, strict=True)}


def _make_different(pieces: list[_Piece], cutter: _Cutter) -> None:
    """Fill in the pieces' texts, no two alike: one that is there already moves on by a word, a few times."""
    waiting, texts = list(pieces), set[str]()
    for _ in range(_MAX_ROUNDS):
        cutter.make(waiting, "prefix group")
        alike = []
        for piece in waiting:
            if piece.text in texts:
                alike.append(piece)
                cutter.move_on(piece)
            texts.add(piece.text)
        if not alike:
            return
        waiting = alike
    count, length = len(pieces), pieces[0].target
    raise ConfigError(f"--prefix-groups: the text has not {count} different prefixes of {length} tokens")


class _Cutter:
    """Makes texts of exact token counts out of one source."""

    def __init__(self, source: TextSource, link: TokenizerLink) -> None:
        self._source = source
        self._link = link
        self._special = np.array(link.vocabulary().special_ids, dtype=np.int32)

    def starts(self, count: int, random: np.random.Generator) -> list[int]:
        """Where each of `count` texts begins: at words, none twice until all were used.

        All at the beginning where the source is not drawn from.
        """
        if not self._source.draw or not count:
            return [0] * count
        words = np.fromiter((match.start() for match in _WORD_START.finditer(self._source.text)), dtype=np.int64)
        rounds = [random.permutation(words) for _ in range(-(-count // len(words)))]
        return [int(place) for place in np.concatenate(rounds)[:count]]

    def plain_ids(self, texts: Sequence[str]) -> list[Int32Array]:
        """Token ids of each text without the special ones, which a tokenizer may add around it."""
        return [self._plain(ids) for ids in self._link.tokenize(texts)]

    def make(self, pieces: Sequence[_Piece], noun: str = "request") -> None:
        """Fill in every piece's text. Raises ConfigError for the first whose length cannot be had."""
        waiting = list(pieces)
        for piece in waiting:
            piece.cut = piece.target
        for _ in range(_MAX_ROUNDS):
            self._read(waiting)
            waiting = self._try(waiting)
            if not waiting:
                return
        worst = waiting[0]
        near = sorted(worst.seen, key=lambda count: (abs(count - worst.target), count))[:2]
        given = " or ".join(str(count) for count in sorted(near))
        raise ConfigError(
            f"{noun} {worst.request}: no text of exactly {worst.target} tokens was found; the tokenizer gives {given}"
        )

    def _read(self, pieces: Sequence[_Piece]) -> None:
        """Tokenize as much source as the pieces need that have none yet or not enough."""
        short = [piece for piece in pieces if piece.ids is None or len(piece.ids) < piece.cut]
        while short:
            for piece in short:
                piece.chars = max(2 * piece.chars, _CHARS_A_TOKEN * piece.target + 64)
            for piece, ids in zip(short, self.plain_ids([self._text_of(piece) for piece in short]), strict=True):
                if not len(ids):
                    raise ConfigError("the text that prompts are cut from has no tokens")
                piece.ids = ids
            short = [piece for piece in short if piece.ids is not None and len(piece.ids) < piece.cut]

    def _try(self, pieces: Sequence[_Piece]) -> list[_Piece]:
        """Tokenize each piece as it is cut now; those that miss their length come back with another cut."""
        rows = [piece.ids[: piece.cut] for piece in pieces if piece.ids is not None]
        texts = [_joined(piece.head, body) for piece, body in zip(pieces, self._link.detokenize(rows), strict=True)]
        missed = []
        for piece, text, ids in zip(pieces, texts, self._link.tokenize(texts), strict=True):
            target = piece.target
            if len(ids) == target and self._begins_alike(piece, ids):
                piece.text = text
                continue
            piece.counts[piece.cut] = len(ids)
            piece.seen.add(len(ids))
            self._cut_anew(piece)
            missed.append(piece)
        return missed

    def _begins_alike(self, piece: _Piece, ids: Int32Array) -> bool:
        if piece.head_ids is None:
            return True
        return bool(np.array_equal(self._plain(ids)[: len(piece.head_ids)], piece.head_ids))

    def _cut_anew(self, piece: _Piece) -> None:
        """The nearest cut that was not tried, or after many another place in the text."""
        aim = _next_cut(piece)
        if len(piece.counts) >= _MAX_CUTS and self._source.draw:
            self.move_on(piece)
            piece.cut = aim
            return
        distance = 0
        while aim + distance in piece.counts or aim + distance < 0:
            distance = -distance if distance > 0 else 1 - distance
        piece.cut = aim + distance

    def move_on(self, piece: _Piece) -> None:
        """Have the piece begin one word further on."""
        piece.start = self._word_at(piece.start + 1)
        piece.ids, piece.chars, piece.counts = None, 0, {}

    def _text_of(self, piece: _Piece) -> str:
        text, joint = self._source.text, self._source.joint
        parts = [text[piece.start : piece.start + piece.chars]]
        missing = piece.chars - len(parts[0])
        if missing > 0:
            once = joint + text
            parts.append((once * -(-missing // len(once)))[:missing])
        return "".join(parts)

    def _word_at(self, place: int) -> int:
        """The start of the first word at or after `place`, from the beginning where none follows."""
        match = _WORD_START.search(self._source.text, place) or _WORD_START.search(self._source.text)
        assert match is not None, "a text that is not blank has a word"
        return match.start()

    def _plain(self, ids: Int32Array) -> Int32Array:
        return ids[~np.isin(ids, self._special)] if len(self._special) else ids


def _next_cut(piece: _Piece) -> int:
    """Between the nearest cuts that gave too few and too many tokens, else as far on as tokens are missing."""
    below = [cut for cut, count in piece.counts.items() if count < piece.target]
    above = [cut for cut, count in piece.counts.items() if count > piece.target]
    if below and above and min(above) - max(below) > 1:
        return (max(below) + min(above)) // 2
    return max(piece.cut + piece.target - piece.counts[piece.cut], 0)


def _joined(head: str, body: str) -> str:
    """A space keeps tokenizers from merging the end of a head with what follows."""
    return f"{head} {body.lstrip()}" if head else body
