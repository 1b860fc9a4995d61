"""Paged attention, compiled and gathered, and the dense twin, against plain attention over the whole sequence."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from tiny_gpt2 import one_thread
from torch import Tensor

from engine_proc.attention.compiled_decode import Compiled
from engine_proc.attention.decode_attention import GatherDecode, Gathered, GatherInputs, Span, gather_inputs
from engine_proc.attention.kv_cache import KVShape, PagedKVCache
from engine_proc.attention.passes import DenseAttention, PagedAttention
from engine_proc.models.base import Attention
from engine_proc.scheduling.block_pool import PADDING_BLOCK

CPU = torch.device("cpu")
SCALE = 0.3
BLOCK = 4
WAYS = ("compiled", "compiled, plain first", "gathered", "dense")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


class Case:
    """Some sequences of random q, k, v [tokens, heads, dim], and a cache full of NaN with blocks dealt at random."""

    def __init__(
        self, lengths: tuple[int, ...], heads: int = 4, kv_heads: int = 2, dim: int = 16, block: int = BLOCK,
        dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        draw = torch.Generator().manual_seed(sum(lengths) + dim)

        def normal(length: int, number: int) -> Tensor:
            return torch.empty((length, number, dim)).normal_(generator=draw).to(dtype)

        self.dtype, self.heads = dtype, heads
        self.q = [normal(n, heads) for n in lengths]
        self.k = [normal(n, kv_heads) for n in lengths]
        self.v = [normal(n, kv_heads) for n in lengths]
        needed = [-(-n // block) for n in lengths]
        self.cache = PagedKVCache(KVShape(1, kv_heads, block, dim, dtype), sum(needed) + 3, CPU)
        self.cache.fill(float("nan"))
        free = list(range(1, sum(needed) + 3))
        random.Random(1).shuffle(free)
        self.tables = [[free.pop() for _ in range(n)] for n in needed]
        self.max_tokens = max(lengths)
        self._makers: dict[str, Compiled | Gathered] = {}

    def attention(self, way: str, spans: list[Span], padding: int = 0) -> Attention:
        if way == "dense":
            return DenseAttention(self.cache, spans, padding, self.dtype, CPU)
        if way not in self._makers:
            maker: Compiled | Gathered = Gathered(self.cache, CPU)
            if way.startswith("compiled"):
                maker = Compiled(self.cache, self.heads, self.max_tokens)
                maker.plain_first = "plain first" in way
            self._makers[way] = maker
        return PagedAttention(self.cache, self._makers[way], spans, padding, self.dtype, CPU)

    def run(self, way: str, parts: list[tuple[int, int, int]], padding: int = 0) -> list[Tensor]:
        """One pass over (sequence, start, length) parts, those of length 1 first; each part's output."""
        spans = [Span(self.tables[i], start, length) for i, start, length in parts]

        def flat(source: list[Tensor]) -> Tensor:
            pieces = [source[i][start : start + length] for i, start, length in parts]
            return torch.cat([*pieces, torch.full_like(source[0][:1], 7.0).expand(padding, -1, -1)])

        out = self.attention(way, spans, padding)(0, flat(self.q), flat(self.k), flat(self.v), SCALE)
        assert out.shape == (sum(length for _, _, length in parts) + padding, self.q[0].shape[1] * self.q[0].shape[2])
        if padding:
            assert out[-padding:].eq(0).all()
        return list(out.split([*(length for _, _, length in parts), *([padding] if padding else [])]))[: len(parts)]

    def expected(self, i: int) -> Tensor:
        """Plain causal attention in float64."""
        q, k, v = (x[i].double().transpose(0, 1) for x in (self.q, self.k, self.v))
        k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], dim=0) for x in (k, v))
        scores = q @ k.transpose(1, 2) * SCALE
        scores.masked_fill_(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), float("-inf"))
        return (scores.softmax(-1) @ v).transpose(0, 1).reshape(q.shape[1], -1)


def close(ours: Tensor, expected: Tensor, dtype: torch.dtype = torch.float32) -> None:
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(ours.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("chunk", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 100])
@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 23])
def test_every_chunk_split_gives_plain_attention(way: str, chunk: int, length: int) -> None:
    case = Case((length,))
    outs = [case.run(way, [(0, start, min(chunk, length - start))])[0] for start in range(0, length, chunk)]
    close(torch.cat(outs), case.expected(0))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prompt", range(1, 2 * BLOCK + 2))
def test_decode_after_a_prompt_crosses_block_boundaries(way: str, prompt: int) -> None:
    case = Case((prompt + BLOCK + 2,))
    outs = case.run(way, [(0, 0, prompt)]) + [case.run(way, [(0, p, 1)])[0] for p in range(prompt, prompt + BLOCK + 2)]
    close(torch.cat(outs), case.expected(0))


@pytest.mark.parametrize("way", WAYS)
def test_a_mixed_pass_keeps_its_sequences_apart(way: str) -> None:
    case = Case((9, 14, 5, 5, 11, 1))
    case.run(way, [(0, 0, 8), (1, 0, 6)])
    outs = case.run(way, [(0, 8, 1), (5, 0, 1), (1, 6, 8), (2, 0, 5), (3, 0, 5), (4, 0, 7)], padding=3)
    for out, (i, start) in zip(outs, ((0, 8), (5, 0), (1, 6), (2, 0), (3, 0), (4, 0)), strict=True):
        close(out, case.expected(i)[start : start + len(out)])
    close(case.run(way, [(4, 7, 4)])[0], case.expected(4)[7:])


@pytest.mark.parametrize("way", WAYS)
def test_the_padding_block_and_unused_slots_are_neither_read_nor_written(way: str) -> None:
    """The whole cache starts as NaN; row 36: padding must not land in any live slot, the last block among them."""
    case = Case((6, 3))
    case.run(way, [(0, 0, 5), (1, 0, 2)], padding=4)
    outs = case.run(way, [(0, 5, 1), (1, 2, 1)], padding=2)
    close(outs[0], case.expected(0)[5:])
    close(outs[1], case.expected(1)[2:])
    used = {block for table in case.tables for block in table}
    for block in set(range(case.cache.num_blocks)) - used:
        assert case.cache.keys(0)[block].isnan().all() and case.cache.values(0)[block].isnan().all()
    last = case.cache.keys(0)[case.tables[0][1]]
    assert last[:, 2:].isnan().all() and not last[:, :2].isnan().any()


@pytest.mark.parametrize("way", ["compiled", "gathered"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (4, 1), (9, 3), (6, 2)])
@pytest.mark.parametrize("dim", [2, 8, 24, 64, 80, 128])
def test_decode_for_all_groups_and_head_sizes(way: str, heads: int, kv_heads: int, dim: int) -> None:
    case = Case((20, 7), heads, kv_heads, dim, block=8)
    case.run("dense", [(0, 0, 19), (1, 0, 6)])
    outs = case.run(way, [(0, 19, 1), (1, 6, 1)])
    close(outs[0], case.expected(0)[19:])
    close(outs[1], case.expected(1)[6:])


@pytest.mark.parametrize("way", WAYS)
def test_bfloat16_stays_near_plain_attention(way: str) -> None:
    case = Case((70, 33), 9, 3, 64, block=16, dtype=torch.bfloat16)
    outs = case.run(way, [(0, 0, 30), (1, 0, 32)])
    outs += case.run(way, [(1, 32, 1), (0, 30, 39)])
    outs += case.run(way, [(0, 69, 1)])
    close(torch.cat([outs[0], outs[3], outs[4]]), case.expected(0), torch.bfloat16)
    close(torch.cat([outs[1], outs[2]]), case.expected(1), torch.bfloat16)


def test_the_compiled_kernels_say_the_same_on_two_threads() -> None:
    outs = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        case = Case((40, 9, 3), 6, 3, 16)
        prompts = case.run("compiled", [(0, 0, 39), (1, 0, 8), (2, 0, 2)])
        outs.append(torch.cat([*prompts, *case.run("compiled", [(0, 39, 1), (1, 8, 1), (2, 2, 1)])]))
    torch.set_num_threads(1)
    assert torch.equal(outs[0], outs[1])


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "block"), [(12, 12, 64, 16), (9, 3, 64, 5), (4, 2, 128, 8)])
def test_compiled_pieces_of_any_length_attend_as_plain_attention_does(
    heads: int, kv_heads: int, dim: int, block: int
) -> None:
    """Lengths about the tiles of the kernel (6 queries, 64 keys); the first pieces of two prompts, then later ones."""
    case = Case((140, 73), heads, kv_heads, dim, block)
    outs = case.run("compiled", [(0, 0, 7), (1, 0, 64)])
    outs += case.run("compiled", [(0, 7, 58), (1, 64, 6)], padding=3)
    outs += case.run("compiled", [(0, 65, 75), (1, 70, 3)])
    close(torch.cat(outs[0::2]), case.expected(0))
    close(torch.cat(outs[1::2]), case.expected(1))


def test_heads_that_are_no_whole_vectors_take_the_plain_way() -> None:
    case = Case((5,), 2, 1, 24)
    maker = Compiled(case.cache, 2, 5)
    assert maker.pieces([Span(case.tables[0], 0, 5)]) is None
    assert Compiled(Case((5,), 2, 1, 16).cache, 2, 5).pieces([Span([1, 2], 0, 5)]) is not None


def test_compiled_pieces_survive_large_scores() -> None:
    case = Case((12,), 2, 2, 16)
    case.q[0] *= 200.0  # one token takes all the weight
    close(case.run("compiled", [(0, 0, 12)])[0], case.expected(0))


def test_compiled_decode_survives_large_scores_and_rounds_like_torch() -> None:
    case = Case((12,), 2, 2, 16)
    case.q[0] *= 200.0  # one token takes all the weight
    case.run("dense", [(0, 0, 11)])
    close(case.run("compiled", [(0, 11, 1)])[0], case.expected(0)[11:])
    half = Case((1,), 2, 1, 64, dtype=torch.bfloat16)
    assert torch.equal(half.run("compiled", [(0, 0, 1)])[0][0, :64], half.v[0][0, 0])  # one token: its own value


def test_padded_rows_of_a_gathered_step_write_the_padding_block_only() -> None:
    """Row 37: what a fixed shape adds belongs to block 0, whatever lies there; rows that are real see nothing of it."""
    case = Case((6, 3))
    case.run("dense", [(0, 0, 5), (1, 0, 2)])
    spans = [Span(case.tables[0], 5, 1), Span(case.tables[1], 2, 1)]
    before = case.cache.keys(0).clone()
    tables, *others = gather_inputs(spans, BLOCK, num_rows=4, width=3)
    inputs = GatherInputs(torch.tensor(tables).view(4, 3), *map(torch.tensor, others))
    rows = [torch.cat([x[0][5:], x[1][2:], torch.zeros_like(x[0][:2])]) for x in (case.q, case.k, case.v)]
    out = GatherDecode(case.cache, inputs)(0, *rows, SCALE)
    close(out[:1], case.expected(0)[5:])
    close(out[1:2], case.expected(1)[2:])
    changed = {int(b) for b in (before.nan_to_num(9) != case.cache.keys(0).nan_to_num(9)).flatten(1).any(1).nonzero()}
    assert changed <= {PADDING_BLOCK, case.tables[0][1], case.tables[1][0]}
