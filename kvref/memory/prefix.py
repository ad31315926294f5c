"""The index of a prefix cache: which blocks of a pool hold which prefix, and what becomes of them.

A request's prefix is a list of keys, one a block (`kvref.memory.keys`, or the ids of a trace). It passes
through four steps, which are all the index knows of requests:

    match     the blocks of its first keys, up to the first that is missing; nothing changes
    take      hold these, and new blocks for the rest; what is evicted for them is forgotten
    publish   let others find a block under its key
    release   let go of all of them, in the order in which they are to be evicted

A block that nobody holds keeps its key until it is evicted, and counts as free.

Realises: KV-PREFIX-001 hit-own-prefix, KV-PREFIX-004 hit-contiguous, KV-PREFIX-016 held-not-evicted,
KV-PREFIX-017 evicted-not-hit, KV-PREFIX-018 evict-before-refuse, KV-PREFIX-020 duplicates-safe, KV-PREFIX-023
leaf-first, KV-PREFIX-024 eviction-order.
For porters: in `take`, hits that nobody holds are free blocks too, and holding them uses them up; count
before holding. Released tail first, a block never outlives the one before it.
Source: vLLM's block pool (hold, evict, publish, free in reverse). Of second copies, TGI frees its own and
LMDeploy adopts the first.
"""

from collections.abc import Iterable, Sequence
from itertools import count, repeat
from typing import Generic

from kvref.errors import OutOfBlocksError, OwnershipError
from kvref.memory.blocks import BlockPool
from kvref.memory.content import Content, equal
from kvref.memory.copies import Copies, Key
from kvref.memory.profiles import Profile, profile_of


class PrefixIndex(Generic[Key]):
    """Keys of blocks over a pool of them, under a profile.

    Raises: ArgumentError if the profile is unknown, or the pool would have no block to hand out.
    """

    def __init__(self, num_blocks: int, profile: Profile | str) -> None:
        self.profile = profile_of(profile)
        self.pool = BlockPool(num_blocks, null_block=self.profile.null_block, plain=self.profile.plain)
        self.evictions = 0
        """Blocks evicted so far."""
        self.lost: list[Key] = []
        """Keys that no block holds since the last `take` or `withdraw`."""
        self._copies: Copies[Key] = Copies()
        self._contents: dict[int, Content] = {}  # of published blocks, where contents are verified

    def match(self, keys: Sequence[Key], contents: Sequence[Content] | None = None) -> list[int]:
        """List the blocks that hold the first keys, up to the first that none holds.

        With `contents`, a block holds a key only if it holds the same contents.
        """
        if contents is None:
            return self._copies.run(keys)
        blocks: list[int] = []
        for key, content in zip(keys, contents, strict=True):
            if blocks:
                content.before = self._contents[blocks[-1]]
            block = self.find(key, content)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def find(self, key: Key, content: Content | None = None) -> int | None:
        """Return the oldest block that holds a key, and the same contents where they are given."""
        first = self._copies.first(key)
        if first is None or content is None or equal(self._contents[first], content):
            return first
        same = (block for block in self._copies.every(key) if equal(self._contents[block], content))
        return next(same, None)

    def take(self, hits: Sequence[int], num_blocks: int) -> list[int]:
        """Hold published blocks, and as many new ones, which are returned.

        Raises: OutOfBlocksError if fewer are free, those of the hits that nobody holds not counted.
        """
        pool, holdings = self.pool, self.pool.holdings
        if num_blocks + len(hits) > pool.num_free:
            free = pool.num_free - sum(map(pool.is_free, hits))
            if num_blocks > free:
                raise OutOfBlocksError(
                    f"{num_blocks} blocks are needed, but {free} of {pool.capacity} can be had "
                    "(KV-PREFIX-018 evict-before-refuse)"
                )
        holdings.touch(hits)
        blocks, evicted = holdings.allocate(num_blocks)
        self._forget(evicted)
        self.evictions += len(evicted)
        return blocks

    def publish(
        self, keys: Sequence[Key], row: list[int], start: int, contents: Sequence[Content] | None = None
    ) -> None:
        """Let others find held blocks, those of `row` from `start` on, one a key.

        A profile that adopts replaces, in `row`, a block whose key has a copy already: that one is held now,
        and the given one let go of.
        """
        blocks = row[start : start + len(keys)]
        if self._copies.add_new(keys, blocks):
            self._published(blocks, contents)
            return
        keep = self.profile.duplicates == "keep"
        given: Iterable[Content | None] = repeat(None) if contents is None else contents
        for at, key, content in zip(count(start), keys, given, strict=False):
            first = None if keep else self.find(key, content)
            if first is None:
                self._copies.add(key, row[at])
                self._published([row[at]], None if content is None else [content])
            elif self.profile.duplicates == "adopt":
                self.pool.touch([first])
                self.pool.free([row[at]])
                row[at] = first

    def withdraw(self, blocks: Sequence[int]) -> None:
        """Let nobody find blocks any more, whoever holds them."""
        self._forget(blocks)
        self.pool.drop_cached(blocks)

    def release(self, row: Sequence[int]) -> None:
        """Let go of a request's blocks, given from its first token's on."""
        self.pool.holdings.free(row[::-1] if self.profile.release == "tail_first" else row)

    def keys(self) -> set[Key]:
        """Return the keys that a block holds."""
        return self._copies.keys()

    def every(self, key: Key) -> list[int]:
        """List the blocks that hold a key, the oldest first."""
        return self._copies.every(key)

    def is_published(self, block: int) -> bool:
        """Say whether others can find a block."""
        return self._copies.key(block) is not None

    def serve(self, keys: Sequence[Key]) -> int:
        """Serve a request at once, as a replayed trace does, and return how many of its blocks were there.

        Raises: OutOfBlocksError if it has more blocks than can be had.
        """
        row = self.match(keys)
        hits = len(row)
        row += self.take(row, len(keys) - hits)
        self.publish(keys[hits:], row, hits)
        self.release(row)
        return hits

    def reset(self) -> None:
        """Forget every key.

        Raises: OwnershipError if a block is held (KV-PREFIX-015 reset-forgets).
        """
        if self.pool.num_held:
            raise OwnershipError(
                f"{self.pool.num_held} blocks are held, expected none (KV-PREFIX-015 reset-forgets)"
            )
        self.withdraw(self._copies.blocks())

    def check_invariants(self) -> None:
        """Assert that pool, keys and contents agree on which blocks are published."""
        self.pool.check_invariants()
        self._copies.check_invariants()
        first = int(self.profile.null_block)
        own = range(first, first + self.pool.capacity)
        published = set(self._copies.blocks())
        cached = {block for block in own if self.pool.is_cached(block)}
        assert published == cached, "a block is published and not cached, or cached and not published"
        assert self._contents.keys() <= published, "contents of a block that is not published"

    def _published(self, blocks: Sequence[int], contents: Sequence[Content] | None) -> None:
        if contents is not None:
            self._contents.update(zip(blocks, contents, strict=True))
        self.pool.holdings.mark_cached(blocks)

    def _forget(self, blocks: Sequence[int]) -> None:
        self.lost = self._copies.drop(blocks)
        for block in blocks if self._contents else ():
            self._contents.pop(block, None)
