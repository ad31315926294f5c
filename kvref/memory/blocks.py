"""A pool of blocks: which are free, in which order they are handed out, and how many hold each.

A block is held by requests (`ref_count`), by pins, and by the steps in flight when its last holder let go.
It is free otherwise, and every block is one or the other:

    num_free + num_held = capacity.

A free block may be cached: what it holds is published under some key, and a later request may touch it back.
Handing it out to someone else evicts it. Free blocks wait in one queue and leave at its front: cached blocks
join at the back, so the one released longest ago goes first, and plain blocks, which nobody can use again,
at the end the pool is told.

Every operation costs the same in a pool of any size, except `free_order` and `check_invariants`.

Realises: KV-BLOCK-004 counts-add-up, KV-BLOCK-007 foreign-block, KV-BLOCK-008 null-block, KV-BLOCK-010
free-order, KV-BLOCK-013 count-valid. The others up to there are kept by `kvref.memory.holdings`.
For porters: this is the edge, where every argument is checked before anything changes. The queue must lose a
block from its middle in constant time (`touch` takes one): an intrusive doubly linked list does.
Source: vLLM's block pool (free queue, null block, cached blocks are free); PagedAttention (Kwon et al. 2023).
"""

from collections.abc import Iterable

from kvref.arrays import check_count, check_flag
from kvref.errors import OwnershipError, shown
from kvref.memory.holdings import Allocation, Holdings
from kvref.memory.ids import as_ids


class BlockPool:
    """Blocks 0 to num_blocks − 1; with `null_block`, block 0 is nobody's and never handed out.

    Raises: ArgumentError if no block is left to hand out, or `plain` is not front or back.
    """

    def __init__(self, num_blocks: int, *, null_block: bool = False, plain: str = "front") -> None:
        first = int(check_flag("null_block", null_block))
        stop = check_count("num_blocks", num_blocks, minimum=first + 1)
        self.holdings = Holdings(range(first, stop), plain)
        """Who holds what, for a caller whose ids are the pool's own."""

    @property
    def capacity(self) -> int:
        """How many blocks there are to hand out."""
        return len(self.holdings.own)

    @property
    def num_free(self) -> int:
        """How many blocks an allocation can have now; cached blocks count."""
        return len(self.holdings.free_queue)

    @property
    def num_held(self) -> int:
        """How many blocks are held by a request, a pin or a step in flight."""
        return self.capacity - self.num_free

    @property
    def num_cached(self) -> int:
        """How many blocks are free and still hold something published."""
        return self.holdings.free_queue.num_cached

    @property
    def num_fenced(self) -> int:
        """How many blocks only a step in flight keeps from being free."""
        return len(self.holdings.fences)

    def allocate(self, num_blocks: int) -> Allocation:
        """Hand out blocks from the front of the queue, each held once.

        Raises: ArgumentError if the number is no count; OutOfBlocksError if fewer are free (KV-BLOCK-002).
        """
        return self.holdings.allocate(check_count("num_blocks", num_blocks, minimum=0))

    def free(self, blocks: Iterable[int]) -> None:
        """Let go of each block once; those that nobody holds any more join the queue, the first named first.

        Raises: OwnershipError if a block is named more often than it is held (KV-BLOCK-006 double-free) or is
        not of the pool (KV-BLOCK-007 foreign-block); ArgumentError if one is no integer.
        """
        self.holdings.free(self._ids(blocks))

    def touch(self, blocks: Iterable[int]) -> None:
        """Hold each block once more; a cached block that is free leaves the queue with what it holds.

        Raises: OwnershipError if a block is neither held nor cached, so that it holds nothing to share, or is
        not of the pool; ArgumentError if one is no integer.
        """
        self.holdings.touch(self._ids(blocks))

    def pin(self, blocks: Iterable[int]) -> None:
        """Keep each block from being free until it is unpinned as often, whoever lets go of it.

        Raises: as `touch`.
        """
        self.holdings.pin(self._ids(blocks))

    def unpin(self, blocks: Iterable[int]) -> None:
        """Take back one pin of each block.

        Raises: OwnershipError if a block is named more often than it is pinned (KV-BLOCK-006 double-free) or
        is not of the pool; ArgumentError if one is no integer.
        """
        self.holdings.unpin(self._ids(blocks))

    def mark_cached(self, blocks: Iterable[int]) -> None:
        """Say that what held blocks hold is published, so that it is worth keeping while they are free.

        Marking one again changes nothing. Raises: OwnershipError if nobody holds a block or it is not of the
        pool; ArgumentError if one is no integer.
        """
        self.holdings.mark_cached(self._ids(blocks))

    def drop_cached(self, blocks: Iterable[int]) -> None:
        """Say that what blocks hold is published no longer; a free one keeps its place in the queue.

        Dropping one again changes nothing. Raises: OwnershipError if one is not of the pool; ArgumentError if
        it is no integer.
        """
        for block in self._ids(blocks):
            self.holdings.free_queue.drop(block)

    def begin_step(self) -> int:
        """Begin a step that may write any block held now, and return its number."""
        return self.holdings.fences.begin()

    def end_step(self, step: int) -> None:
        """End a step and each before it; blocks that waited for these, and for no later one, are free.

        Raises: ArgumentError if the step is not in flight.
        """
        self.holdings.end_step(step)

    def ref_count(self, block: int) -> int:
        """How often a block is held, pins included.

        Raises: OwnershipError if it is not of the pool.
        """
        return self.holdings.refs[self._id(block)]

    def is_free(self, block: int) -> bool:
        """Whether an allocation may hand the block out: touching it costs one free block."""
        return self._id(block) in self.holdings.free_queue

    def is_cached(self, block: int) -> bool:
        """Whether what the block holds is published, by a held block or a free one."""
        return self._id(block) in self.holdings.free_queue.cached

    def is_writable(self, block: int) -> bool:
        """Whether its one holder may write it in place: nobody shares it and it is not published."""
        own = self._id(block)
        return self.holdings.refs[own] == 1 and own not in self.holdings.free_queue.cached

    def free_order(self) -> list[int]:
        """List the free blocks, the next to be handed out first."""
        return list(self.holdings.free_queue.keys())

    def check_invariants(self) -> None:
        """Assert what holds between any two operations; costs time in the size of the pool."""
        self.holdings.check_invariants()

    def _id(self, block: int) -> int:
        known = type(block) is int and block in self.holdings.own
        return block if known else self._ids([block])[0]

    def _ids(self, blocks: Iterable[int]) -> list[int]:
        ids, own = as_ids("blocks", blocks), self.holdings.own
        if ids and not (own.start <= min(ids) and max(ids) < own.stop):
            found = next(block for block in ids if block not in own)
            raise OwnershipError(
                f"blocks names block {shown(found)}, expected {own.start} to {own.stop - 1} "
                "(KV-BLOCK-007 foreign-block)"
            )
        return ids
