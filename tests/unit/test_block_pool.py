from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from fake_kv import Engine, make_engine, plain_request

from engine_proc.scheduling.block_pool import PADDING_BLOCK, BlockKey, BlockPool, IntegrityError
from harness.common.errors import ConfigError


def fill(pool: BlockPool, token_ids: Sequence[int]) -> list[int]:
    """The table of a sequence that held, computed and registered blocks for all of these tokens."""
    keys: list[BlockKey] = []
    table = pool.match(keys, token_ids)
    hits = len(table)
    pool.hold(table)
    assert pool.grow(table, len(token_ids))
    pool.register(table, keys, token_ids, hits, len(token_ids) // pool.block_size)
    return table


def hit_blocks(pool: BlockPool, token_ids: Sequence[int]) -> list[int]:
    return pool.match([], token_ids)


def test_every_block_but_the_padding_block_is_handed_out_lowest_first() -> None:
    pool = BlockPool(5, 4)
    table: list[int] = []
    assert pool.grow(table, 16)
    assert table == [1, 2, 3, 4]
    assert PADDING_BLOCK not in table
    assert (pool.capacity, pool.num_used, pool.num_free) == (4, 4, 0)


def test_a_table_grows_by_what_is_missing_and_not_at_all_where_that_is_too_much() -> None:
    pool = BlockPool(5, 4)
    table: list[int] = []
    assert pool.grow(table, 5) and table == [1, 2]
    assert pool.grow(table, 8) and table == [1, 2]
    assert not pool.grow(table, 17)
    assert table == [1, 2] and pool.num_free == 2
    assert pool.grow(table, 16) and pool.num_free == 0


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_blocks_needed_rounds_up(tokens: int, blocks: int) -> None:
    assert BlockPool(5, 4).blocks_needed(tokens) == blocks


def test_a_full_block_is_found_once_it_is_registered_and_not_before() -> None:
    pool = BlockPool(9, 4)
    keys: list[BlockKey] = []
    table: list[int] = []
    pool.grow(table, 9)
    assert hit_blocks(pool, range(9)) == []
    pool.register(table, keys, range(9), 0, 1)
    assert hit_blocks(pool, range(9)) == table[:1]
    pool.register(table, keys, range(9), 1, 2)
    assert hit_blocks(pool, range(9)) == table[:2]


@pytest.mark.parametrize(
    ("length", "hits"), [(1, 0), (4, 0), (5, 1), (7, 1), (8, 1), (9, 2), (12, 2), (13, 3), (16, 3)]
)
def test_at_least_one_token_is_never_a_hit(length: int, hits: int) -> None:
    pool = BlockPool(9, 4)
    fill(pool, range(12))
    assert len(hit_blocks(pool, range(length))) == hits


def test_the_same_tokens_after_others_are_no_hit() -> None:
    pool = BlockPool(9, 4)
    fill(pool, [1, 2, 3, 4, 5, 6, 7, 8])
    assert hit_blocks(pool, [5, 6, 7, 8, 9]) == []
    assert hit_blocks(pool, [1, 2, 3, 0, 5, 6, 7, 8, 9]) == []


def test_a_hit_is_believed_only_when_the_tokens_are_the_same() -> None:
    pool = BlockPool(9, 4)
    fill(pool, [1, 2, 3, 4])
    (digest,) = digests(pool, [9, 9, 9, 9])
    pool._by_digest[digest] = 1  # as if the two hashes collided
    assert hit_blocks(pool, [9, 9, 9, 9, 9]) == []
    assert hit_blocks(pool, [1, 2, 3, 4, 9]) == [1]


def digests(pool: BlockPool, token_ids: Sequence[int]) -> list[bytes]:
    keys: list[BlockKey] = []
    pool.extend_keys(keys, token_ids, len(token_ids) // pool.block_size)
    return [key.digest for key in keys]


def test_a_chain_carried_on_piece_by_piece_is_the_chain_made_in_one_go() -> None:
    pool = BlockPool(9, 4)
    keys: list[BlockKey] = []
    tokens = list(range(19))
    for end in (0, 1, 1, 3, 4):
        pool.extend_keys(keys, tokens[: end * 4 + 2], end)
    assert [key.digest for key in keys] == digests(pool, tokens)
    assert len(set(digests(pool, [7] * 16))) == 4  # equal blocks at different places differ


def test_a_shared_block_counts_once_and_stays_until_its_last_holder_goes() -> None:
    pool = BlockPool(9, 4)
    first = fill(pool, range(8))
    second = fill(pool, [*range(8), 50])
    assert second[:2] == first
    assert pool.num_used == 3
    pool.free(first)
    assert (first, pool.num_used) == ([], 3)
    pool.free(second)
    assert (pool.num_used, pool.num_free) == (0, 8)


def test_what_is_worth_nothing_is_used_before_what_is_cached() -> None:
    pool = BlockPool(4, 4)
    cached, blank = fill(pool, range(4)), fill(pool, [7, 7])
    pool.free(cached)
    pool.free(blank)
    table: list[int] = []
    pool.grow(table, 8)
    assert hit_blocks(pool, range(5)) == [1]
    pool.grow(table, 12)
    assert hit_blocks(pool, range(5)) == []


def test_the_least_recently_used_is_evicted_first_and_a_prompts_start_last() -> None:
    pool = BlockPool(5, 2)
    old, new = fill(pool, [1, 2, 3, 4]), fill(pool, [5, 6, 7, 8])
    pool.free(old)
    pool.free(new)
    held: list[int] = []
    left = []
    for size in (2, 4, 6, 8):
        pool.grow(held, size)
        left.append((len(hit_blocks(pool, [1, 2, 3, 4, 0])), len(hit_blocks(pool, [5, 6, 7, 8, 0]))))
    assert left == [(1, 2), (0, 2), (0, 1), (0, 0)]


def test_a_hit_makes_a_block_recently_used_and_nobody_can_have_it_meanwhile() -> None:
    pool = BlockPool(3, 2)
    first, second = fill(pool, [1, 2]), fill(pool, [3, 4])
    pool.free(first)
    pool.free(second)
    again = hit_blocks(pool, [1, 2, 0])
    pool.hold(again)
    assert pool.num_free == 1
    other: list[int] = []
    assert not pool.grow(other, 4)
    assert pool.grow(other, 2)
    assert hit_blocks(pool, [1, 2, 0]) == again
    assert hit_blocks(pool, [3, 4, 0]) == []


def test_a_block_with_the_same_content_stays_beside_the_registered_one_and_is_blank_once_free() -> None:
    pool = BlockPool(9, 4)
    one: list[int] = []
    two: list[int] = []
    pool.grow(one, 4)
    pool.grow(two, 4)
    pool.register(one, [], range(4), 0, 1)
    pool.register(two, [], range(4), 0, 1)
    assert hit_blocks(pool, range(5)) == one
    pool.check_integrity([one, two])
    pool.free(two)
    pool.check_integrity([one])
    assert hit_blocks(pool, range(5)) == one


def test_without_a_prefix_cache_nothing_is_found_and_nothing_hashed() -> None:
    pool = BlockPool(9, 4, prefix_cache=False)
    keys: list[BlockKey] = []
    table: list[int] = []
    pool.grow(table, 8)
    pool.register(table, keys, range(8), 0, 2)
    assert pool.match(keys, range(9)) == []
    assert keys == []
    pool.free(table)
    pool.check_integrity([])
    assert pool.num_free == 8


def test_a_reset_forgets_free_and_held_blocks_and_the_counters_but_takes_nothing_away() -> None:
    pool = BlockPool(9, 4)
    held, freed = fill(pool, range(8)), fill(pool, [9] * 8)
    pool.free(freed)
    pool.count_query(20, 8)
    pool.reset_prefix_cache()
    assert hit_blocks(pool, range(9)) == hit_blocks(pool, [9] * 9) == []
    assert (pool.query_tokens, pool.hit_tokens, pool.num_used) == (0, 0, 2)
    pool.check_integrity([held])
    pool.free(held)
    pool.check_integrity([])


def test_a_block_freed_twice_is_an_error_at_once() -> None:
    pool = BlockPool(9, 4)
    table = fill(pool, [1, 2])
    pool.free(list(table))
    with pytest.raises(IntegrityError, match="block 1 freed, but nobody holds it"):
        pool.free(table)


@pytest.mark.parametrize(
    ("blocks", "size", "name"),
    [(1, 4, "num_blocks"), (0, 4, "num_blocks"), (-1, 4, "num_blocks"), (4, 0, "block_size")],
)
def test_bounds_are_named(blocks: int, size: int, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        BlockPool(blocks, size)


def busy_engine() -> Engine:
    """Two running sequences that share a prefix, one waiting, evictable blocks and blank ones."""
    engine = make_engine(24, 4, max_batch=2)
    engine.scheduler.add(plain_request(0, [2] * 9, new_tokens=1))
    engine.run()
    engine.scheduler.add(plain_request(1, [1] * 9, new_tokens=20))
    engine.step()
    engine.scheduler.add(plain_request(2, [1] * 13, new_tokens=20))
    engine.scheduler.add(plain_request(3, [0] * 9, new_tokens=20))
    engine.step()
    pool, running = engine.pool, list(engine.scheduler._running.values())
    assert [sequence.row for sequence in running] == [1, 2] and engine.scheduler.num_waiting == 1
    assert running[0].block_table[:2] == running[1].block_table[:2]
    assert len(pool._evictable) == 2 and pool._blank
    return engine


def running(engine: Engine, row: int) -> list[int]:
    return engine.scheduler._running[row].block_table


def registered_elsewhere(engine: Engine) -> None:
    keys = engine.pool._keys
    held, free = running(engine, 1)[0], next(iter(engine.pool._evictable))
    keys[held], keys[free] = keys[free], keys[held]
    engine.pool._by_digest.update({key.digest: block for block, key in enumerate(keys) if key is not None})


def other_tokens(engine: Engine) -> None:
    block = running(engine, 1)[0]
    key = engine.pool._keys[block]
    assert key is not None
    engine.pool._keys[block] = key._replace(tokens=b"\7" + key.tokens[1:])


#: One damage each, and what the checker has to say about it.
CORRUPTIONS: dict[str, tuple[Callable[[Engine], object], str]] = {
    "a holder too many": (lambda e: e.pool._holders.__setitem__(running(e, 1)[0], 3), "holders counted"),
    "a holder too few": (lambda e: e.pool._holders.__setitem__(running(e, 1)[0], 1), "holders counted"),
    "a holder of a free block": (lambda e: e.pool._holders.__setitem__(e.pool._blank[0], 1), "holders counted"),
    "a block lost from the free ones": (lambda e: e.pool._blank.pop(), "lost"),
    "a block lost from a table": (lambda e: running(e, 2).pop(), "holders counted"),
    "a block free twice": (lambda e: e.pool._blank.append(e.pool._blank[0]), "free twice"),
    "a block free in both ways": (lambda e: e.pool._blank.append(next(iter(e.pool._evictable))), "free twice"),
    "a block free and held": (lambda e: e.pool._blank.append(running(e, 1)[-1]), "free and held"),
    "a block owned by two": (lambda e: running(e, 2).append(running(e, 1)[-1]), "holders counted"),
    "a block twice in a table": (lambda e: running(e, 2).append(running(e, 2)[-1]), "twice in one table"),
    "the padding block free": (lambda e: e.pool._blank.append(PADDING_BLOCK), "lost, or free and held"),
    "the padding block owned": (lambda e: running(e, 2).append(PADDING_BLOCK), "padding block"),
    "a block that does not exist": (lambda e: running(e, 2).append(99), "does not exist"),
    "a hit that nobody registered": (lambda e: e.pool._by_digest.update({b"x": 1}), "under another key"),
    "a registration that is not found": (lambda e: e.pool._by_digest.popitem(), "under another key"),
    "registered for changed tokens": (other_tokens, "not the hash of its tokens"),
    "registered for another's tokens": (registered_elsewhere, "other tokens than its holder"),
    "a blank block registered": (
        lambda e: e.pool._blank.append(e.pool._evictable.popitem()[0]),
        "a blank KV block is registered",
    ),
    "an evictable block not registered": (
        lambda e: e.pool._evictable.update({e.pool._blank.pop(): None}),
        "an evictable one is not",
    ),
    "a sequence in both queues": (
        lambda e: e.scheduler._waiting.update({1: e.scheduler._running[1]}),
        "waits and runs",
    ),
    "a waiting sequence with computed tokens": (
        lambda e: setattr(e.scheduler._waiting[3], "num_scheduled", 1),
        "row 3 waits",
    ),
    "more computed than scheduled": (
        lambda e: setattr(e.scheduler._running[1], "num_computed", 12),
        "more tokens computed",
    ),
    "more scheduled than known": (
        lambda e: setattr(e.scheduler._running[1], "num_scheduled", 99),
        "more tokens computed",
    ),
    "a table too short": (
        lambda e: e.pool.free([running(e, 2).pop()]),
        "too few KV blocks",
    ),
}


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_the_checker_catches_each_kind_of_seeded_corruption(kind: str) -> None:
    """Row 24: a checker that passes everything is worse than none."""
    damage, says = CORRUPTIONS[kind]
    engine = busy_engine()
    engine.scheduler.check_integrity()
    damage(engine)
    with pytest.raises(IntegrityError, match=says):
        engine.scheduler.check_integrity()


def test_the_checker_passes_what_a_long_run_leaves() -> None:
    rng = random.Random(3)
    engine = make_engine(14, 3, budget=7)
    for row in range(60):
        engine.scheduler.add(plain_request(row, [rng.randrange(2)] * rng.randrange(1, 20), rng.randrange(1, 12)))
    engine.run()
    assert engine.pool.num_used == 0 and engine.pool.num_free == engine.pool.capacity
    assert engine.pool.hit_tokens > 0 and engine.preemptions > 0
