"""A pool of blocks: which are free, in which order they are handed out, and how many hold each.

A block is held by requests (`ref_count`), by pins, and by the steps in flight when its last holder let go.
It is free otherwise, and every block is one or the other:

    num_free + num_held = capacity.

A free block may be cached: what it holds is published under some key, and a later request may touch it back.
Handing it out to someone else evicts it. Free blocks wait in one queue and leave at its front: cached blocks
join at the back, so the one released longest ago goes first, and plain blocks, which nobody can use again,
at the end the pool is told.

Every operation costs the same in a pool of any size, except `free_order` and `check_invariants`.

Realises: KV-BLOCK-001 alloc-distinct, KV-BLOCK-002 alloc-atomic, KV-BLOCK-003 alloc-complete, KV-BLOCK-004
counts-add-up, KV-BLOCK-005 last-holder, KV-BLOCK-006 double-free, KV-BLOCK-007 foreign-block, KV-BLOCK-008
null-block, KV-BLOCK-009 all-returned, KV-BLOCK-010 free-order, KV-BLOCK-011 fenced-free, KV-BLOCK-012
pinned-stays, KV-BLOCK-013 count-valid.
For porters: build `allocate` and `free` first. Two refusals decide whether it is safe: check the whole call
before changing anything, and refuse a block that nobody holds. The queue must lose a block from its middle
in constant time (`touch` takes one): an intrusive doubly linked list does.
Source: vLLM's block pool (free queue, null block, cached blocks are free); PagedAttention (Kwon et al. 2023).
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from kvref.arrays import check_count, check_flag
from kvref.errors import OutOfBlocksError, OwnershipError
from kvref.memory.fences import Fences
from kvref.memory.free_queue import FreeQueue
from kvref.memory.ids import as_ids


class Allocation(NamedTuple):
    """Blocks handed out, and those of them that were cached until now: what they held is lost."""

    blocks: list[int]
    evicted: list[int]


class BlockPool:
    """Blocks 0 to num_blocks − 1; with `null_block`, block 0 is nobody's and never handed out.

    Raises: ArgumentError if no block is left to hand out, or `plain` is not front or back.
    """

    def __init__(self, num_blocks: int, *, null_block: bool = False, plain: str = "front") -> None:
        self._first = int(check_flag("null_block", null_block))
        self._stop = check_count("num_blocks", num_blocks, minimum=self._first + 1)
        self._refs = [0] * self._stop  # holders and pins
        self._pins: Counter[int] = Counter()  # of the pinned blocks alone
        self._free = FreeQueue(range(self._first, self._stop), plain)
        self._fences = Fences()

    @property
    def capacity(self) -> int:
        """How many blocks there are to hand out."""
        return self._stop - self._first

    @property
    def num_free(self) -> int:
        """How many blocks an allocation can have now; cached blocks count."""
        return len(self._free)

    @property
    def num_held(self) -> int:
        """How many blocks are held by a request, a pin or a step in flight."""
        return self.capacity - len(self._free)

    @property
    def num_cached(self) -> int:
        """How many blocks are free and still hold something published."""
        return self._free.num_cached

    @property
    def num_fenced(self) -> int:
        """How many blocks only a step in flight keeps from being free."""
        return len(self._fences)

    def allocate(self, num_blocks: int) -> Allocation:
        """Hand out blocks from the front of the queue, each held once.

        Raises: ArgumentError if the number is no count; OutOfBlocksError if fewer are free (KV-BLOCK-002).
        """
        count = check_count("num_blocks", num_blocks, minimum=0)
        if count > len(self._free):
            raise OutOfBlocksError(
                f"num_blocks = {count}, but {len(self._free)} of {self.capacity} blocks are free "
                "(KV-BLOCK-003 alloc-complete)"
            )
        blocks, evicted = self._free.pop(count)
        for block in blocks:
            self._refs[block] = 1
        return Allocation(blocks, evicted)

    def free(self, blocks: Iterable[int]) -> None:
        """Let go of each block once; those that nobody holds any more join the queue, the first named first.

        Raises: OwnershipError if a block is named more often than it is held (KV-BLOCK-006 double-free) or is
        not of the pool (KV-BLOCK-007 foreign-block); ArgumentError if one is no integer.
        """
        ids = self._ids(blocks)
        self._check_held(ids)
        self._let_go(ids)

    def touch(self, blocks: Iterable[int]) -> None:
        """Hold each block once more; a cached block that is free leaves the queue with what it holds.

        Raises: OwnershipError if a block is neither held nor cached, so that it holds nothing to share, or is
        not of the pool; ArgumentError if one is no integer.
        """
        ids = self._ids(blocks)
        refs = self._refs
        idle = [block for block in ids if not refs[block]]
        self._check_readable(idle)
        for block in ids:
            refs[block] += 1
        self._free.remove(self._fences.take_back(idle))

    def pin(self, blocks: Iterable[int]) -> None:
        """Keep each block from being free until it is unpinned as often, whoever lets go of it.

        Raises: as `touch`.
        """
        self.touch(ids := self._ids(blocks))
        self._pins.update(ids)

    def unpin(self, blocks: Iterable[int]) -> None:
        """Take back one pin of each block.

        Raises: OwnershipError if a block is named more often than it is pinned (KV-BLOCK-006 double-free) or
        is not of the pool; ArgumentError if one is no integer.
        """
        ids = self._ids(blocks)
        for block, times in Counter(ids).items():
            if times > self._pins[block]:
                raise OwnershipError(
                    f"blocks names block {block} {times} times, expected at most its {self._pins[block]} "
                    "pins (KV-BLOCK-006 double-free)"
                )
        for block in ids:
            self._pins[block] -= 1
            if not self._pins[block]:
                del self._pins[block]
        self._let_go(ids)

    def mark_cached(self, blocks: Iterable[int]) -> None:
        """Say that what held blocks hold is published, so that it is worth keeping while they are free.

        Marking one again changes nothing. Raises: OwnershipError if nobody holds a block or it is not of the
        pool; ArgumentError if one is no integer.
        """
        ids = self._ids(blocks)
        if 0 in map(self._refs.__getitem__, ids):
            found = next(block for block in ids if not self._refs[block])
            raise OwnershipError(
                f"blocks names block {found}, expected held blocks (KV-BLOCK-005 last-holder)"
            )
        self._free.cached.update(ids)

    def drop_cached(self, blocks: Iterable[int]) -> None:
        """Say that what blocks hold is published no longer; a free one keeps its place in the queue.

        Dropping one again changes nothing. Raises: OwnershipError if one is not of the pool; ArgumentError if
        it is no integer.
        """
        for block in self._ids(blocks):
            self._free.drop(block)

    def begin_step(self) -> int:
        """Begin a step that may write any block held now, and return its number."""
        return self._fences.begin()

    def end_step(self, step: int) -> None:
        """End a step and each before it; blocks that waited for these, and for no later one, are free.

        Raises: ArgumentError if the step is not in flight.
        """
        self._free.join(self._fences.end(step))

    def ref_count(self, block: int) -> int:
        """How often a block is held, pins included.

        Raises: OwnershipError if it is not of the pool.
        """
        return self._refs[self._id(block)]

    def is_free(self, block: int) -> bool:
        """Whether an allocation may hand the block out: touching it costs one free block."""
        return self._id(block) in self._free

    def is_cached(self, block: int) -> bool:
        """Whether what the block holds is published, by a held block or a free one."""
        return self._id(block) in self._free.cached

    def is_writable(self, block: int) -> bool:
        """Whether its one holder may write it in place: nobody shares it and it is not published."""
        own = self._id(block)
        return self._refs[own] == 1 and own not in self._free.cached

    def free_order(self) -> list[int]:
        """List the free blocks, the next to be handed out first."""
        return list(self._free.keys())

    def check_invariants(self) -> None:
        """Assert what holds between any two operations; costs time in the size of the pool."""
        own = range(self._first, self._stop)
        free, waiting = self._free.keys(), self._fences.keys()
        assert min(self._refs) >= 0, "a block is held less often than never"
        assert {block for block in own if not self._refs[block]} == free | waiting, "a block is lost, or held"
        assert not free & waiting, "a block is free and waits for a step"
        assert not self._first or not self._refs[0], "the null block is held"
        assert self._free.cached <= set(own), "a block outside the pool is cached"
        assert all(0 < n <= self._refs[block] for block, n in self._pins.items()), "a pin does not hold"
        self._free.check_invariants()
        self._fences.check_invariants()

    def _id(self, block: int) -> int:
        known = type(block) is int and self._first <= block < self._stop
        return block if known else self._ids([block])[0]

    def _ids(self, blocks: Iterable[int]) -> list[int]:
        ids = as_ids("blocks", blocks)
        if ids and not (self._first <= min(ids) and max(ids) < self._stop):
            found = next(block for block in ids if not self._first <= block < self._stop)
            raise OwnershipError(
                f"blocks names block {found}, expected {self._first} to {self._stop - 1} "
                "(KV-BLOCK-007 foreign-block)"
            )
        return ids

    def _check_held(self, ids: list[int]) -> None:
        if not self._pins and len(set(ids)) == len(ids) and 0 not in map(self._refs.__getitem__, ids):
            return
        for block, times in Counter(ids).items():
            held = self._refs[block] - self._pins.get(block, 0)
            if times > held:
                raise OwnershipError(
                    f"blocks names block {block} {times} times, expected at most its {held} holders "
                    "(KV-BLOCK-006 double-free)"
                )

    def _check_readable(self, idle: list[int]) -> None:
        if not self._free.cached.issuperset(idle):
            found = next(block for block in idle if block not in self._free.cached)
            raise OwnershipError(
                f"blocks names block {found}, expected a held or a cached block (KV-BLOCK-005 last-holder)"
            )

    def _let_go(self, ids: list[int]) -> None:
        refs = self._refs
        for block in ids:
            refs[block] -= 1
        idle = [block for block in ids if not refs[block]]
        if self._fences.in_flight:
            self._fences.wait(idle)
        else:
            self._free.join(idle)
