"""KV blocks: who holds which, and which full ones can be used again by a later prompt. Bookkeeping only, no tensors.

A block is blank (its content is worth nothing), held (by one sequence or more), or evictable: held by nobody, but
full, registered, and found again by a prompt that starts alike, until the block is needed for something else.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from harness.common.errors import ConfigError, RunError

#: Held by nobody, never handed out: rows that only pad a captured graph write here.
PADDING_BLOCK = 0
_ROOT = b""  # parent of a chain's first block


class IntegrityError(RunError):
    """The pool's books contradict each other or its users: a bug, and tokens may be wrong from here on."""


class BlockKey(NamedTuple):
    """What a full block holds: its own tokens, and by the parent's digest all that come before them."""

    digest: bytes
    parent: bytes
    tokens: bytes  # int32 each


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens, block 0 among them. owned by: step loop"""

    def __init__(self, num_blocks: int, block_size: int, prefix_cache: bool = True) -> None:
        """Raises ConfigError; `num_blocks` counts the padding block, so 2 is the least."""
        if num_blocks < 2:
            raise ConfigError(f"num_blocks is {num_blocks}; it must be at least 2 (block {PADDING_BLOCK} is padding)")
        if block_size < 1:
            raise ConfigError(f"block_size is {block_size}; it must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        #: Prompt tokens looked up at first admissions, and how many of them were there, since the last reset.
        self.query_tokens = 0
        self.hit_tokens = 0
        self._holders = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, PADDING_BLOCK, -1))  # a stack: the lowest number comes first
        self._evictable: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._keys: list[BlockKey | None] = [None] * num_blocks
        self._by_digest: dict[bytes, int] = {}

    @property
    def capacity(self) -> int:
        """Blocks that sequences can hold together."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._evictable)

    @property
    def num_used(self) -> int:
        """Blocks held; one that several sequences share counts once."""
        return self.num_blocks - 1 - len(self._blank) - len(self._evictable)

    def blocks_needed(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def extend_keys(self, keys: list[BlockKey], token_ids: Sequence[int], num_full: int) -> None:
        """Carry a chain on until it covers the first `num_full` blocks of `token_ids`."""
        size = self.block_size
        for i in range(len(keys), num_full):
            parent = keys[-1].digest if keys else _ROOT
            tokens = array("i", token_ids[i * size : (i + 1) * size]).tobytes()
            keys.append(BlockKey(_digest(parent, tokens), parent, tokens))

    def match(self, keys: list[BlockKey], token_ids: Sequence[int]) -> list[int]:
        """The registered blocks that `token_ids` begins with, held or evictable; nobody's until `hold`.

        Never all of the tokens: at least one has to be computed, for its logits.
        """
        if not self.prefix_cache:
            return []
        most = (len(token_ids) - 1) // self.block_size
        self.extend_keys(keys, token_ids, most)
        found: list[int] = []
        for i in range(most):
            block = self._by_digest.get(keys[i].digest)
            if block is None or self._keys[block] != keys[i]:  # the same digest for other tokens is no hit
                break
            found.append(block)
        return found

    def num_evictable(self, blocks: list[int]) -> int:
        """How many of `blocks` count as free."""
        holders = self._holders
        return sum(not holders[block] for block in blocks)

    def hold(self, blocks: list[int]) -> None:
        """One more holder for each of these matched blocks."""
        for block in blocks:
            if not self._holders[block]:
                del self._evictable[block]
            self._holders[block] += 1

    def grow(self, table: list[int], num_tokens: int) -> bool:
        """Append blocks until `table` has room for `num_tokens`; False, and nothing done, where too few are free."""
        missing = -(-num_tokens // self.block_size) - len(table)
        if missing > self.num_free:
            return False
        for _ in range(missing):
            block = self._blank.pop() if self._blank else self._evict()
            self._holders[block] = 1
            table.append(block)
        return True

    def free(self, table: list[int]) -> None:
        """Give up all blocks of a table and empty it: the last first, so that a prompt's start is evicted last."""
        while table:
            block = table.pop()
            if self._holders[block] < 1:
                raise IntegrityError(f"KV block {block} freed, but nobody holds it")
            self._holders[block] -= 1
            if not self._holders[block]:
                if self._keys[block] is None:
                    self._blank.append(block)
                else:
                    self._evictable[block] = None

    def register(self, table: list[int], keys: list[BlockKey], token_ids: Sequence[int], first: int, end: int) -> None:
        """Let later prompts find blocks `first` to `end` - 1 of a table, all of them full and computed.

        Where another block holds the same already, that one stays the one to be found: tables are never rewritten.
        """
        if not self.prefix_cache:
            return
        self.extend_keys(keys, token_ids, end)
        for i in range(first, end):
            if self._keys[table[i]] is None and self._by_digest.setdefault(keys[i].digest, table[i]) == table[i]:
                self._keys[table[i]] = keys[i]

    def count_query(self, num_tokens: int, num_hits: int) -> None:
        self.query_tokens += num_tokens
        self.hit_tokens += num_hits

    def reset_prefix_cache(self) -> None:
        """Forget every registered block and the counters. Who holds a block keeps it; it just is not found again."""
        self._by_digest.clear()
        self._keys = [None] * self.num_blocks
        self._blank += reversed(self._evictable)
        self._evictable.clear()
        self.query_tokens = self.hit_tokens = 0

    def check_integrity(self, tables: Iterable[list[int]]) -> None:
        """Raise IntegrityError unless the books agree with each other and with `tables`, those of all holders."""
        tables = list(tables)
        held = Counter(block for table in tables for block in table)
        if any(len(set(table)) != len(table) for table in tables):
            raise IntegrityError("a KV block stands twice in one table")
        if not all(PADDING_BLOCK < block < self.num_blocks for block in held):
            raise IntegrityError("a table holds the padding block, or one that does not exist")
        wrong = [block for block, holders in enumerate(self._holders) if holders != held[block]]
        if wrong:
            raise IntegrityError(f"KV blocks {wrong}: holders counted {[self._holders[b] for b in wrong]}, "
                                 f"found {[held[b] for b in wrong]}")  # fmt: skip
        everywhere = sorted([*self._blank, *self._evictable, *held])
        if everywhere != list(range(1, self.num_blocks)):
            raise IntegrityError("KV blocks lost, or free and held, or free twice")
        self._check_registry()

    def check_content(self, table: list[int], token_ids: Sequence[int]) -> None:
        """Raise IntegrityError where a block of a table is registered for tokens other than the holder's own."""
        keys: list[BlockKey] = []
        self.extend_keys(keys, token_ids, min(len(token_ids) // self.block_size, len(table)))
        for i, block in enumerate(table):
            if self._keys[block] is not None and (i >= len(keys) or self._keys[block] != keys[i]):
                raise IntegrityError(f"KV block {block} is registered for other tokens than its holder's")

    def _check_registry(self) -> None:
        registered = {block: key for block, key in enumerate(self._keys) if key is not None}
        if {key.digest: block for block, key in registered.items()} != self._by_digest:
            raise IntegrityError("the prefix cache finds a block under another key than the block's own")
        if any(key.digest != _digest(key.parent, key.tokens) for key in registered.values()):
            raise IntegrityError("a registered KV block's key is not the hash of its tokens")
        if not registered.keys().isdisjoint(self._blank) or not registered.keys() >= self._evictable.keys():
            raise IntegrityError("a blank KV block is registered, or an evictable one is not")

    def _evict(self) -> int:
        block, _ = self._evictable.popitem(last=False)
        key = self._keys[block]
        assert key is not None, "only registered blocks are evictable"
        del self._by_digest[key.digest]
        self._keys[block] = None
        return block


def _digest(parent: bytes, tokens: bytes) -> bytes:
    return blake2b(parent + tokens, digest_size=16).digest()
