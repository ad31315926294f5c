"""Faults of ownership: a block is given to two, or freed under somebody who holds or writes it."""

from collections.abc import Iterable

from kvref.errors import OwnershipError
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.lists.allocator import ListAllocator

ALLOCATOR = ("block_allocator",)


class InCircles(ListAllocator):
    """Blocks are handed out by number, one after the other, whoever holds them."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.handed_out = 0

    def take(self, count: int) -> list[int]:
        """Go on where the last allocation ended, and start again at the end of the pool."""
        taken = [(self.handed_out + i) % self.num_blocks for i in range(count)]
        self.handed_out += count
        del self.free_blocks[:count]
        for block in taken:
            self.holders[block] = 1
        return taken


@exhibit(
    as_if="blocks were handed out in turn, held or not",
    fault="F07 ownership",
    breaks=("KV-BLOCK-001",),
    may_also_break=("KV-BLOCK-002", "KV-BLOCK-005", "KV-BLOCK-006", "KV-BLOCK-007", "KV-BLOCK-013"),
    verbs=ALLOCATOR,
    program="allocate 0 1; rest 1; free 1; allocate 2 1",
)
class HandedOutInTurn(InCircles):
    """A cursor runs through the pool and does not look whether a block is free.

    A plant: the pool is a ring, right as long as requests end in the order in which they began. The first one
    that outlives its successors is overwritten.
    """


@exhibit(
    as_if="a second holder was not counted",
    fault="F07 ownership",
    breaks=("KV-BLOCK-005",),
    may_also_break=("KV-BLOCK-004", "KV-BLOCK-006", "KV-BLOCK-009"),
    verbs=ALLOCATOR,
    program="allocate 0 1; touch 0; free 0",
)
class SecondHolderForgotten(ListAllocator):
    """Touching a block that somebody holds leaves its count as it is.

    A plant: the count is raised only where a block comes back from the free list.
    """

    def hold(self, block: int) -> None:
        """Count a first holder only."""
        self.holders[block] = max(self.holders[block], 1)


@exhibit(
    as_if="a block named twice in one call was freed once",
    fault="F07 ownership",
    seen_in=("vllm-project/vllm#3347",),
    breaks=("KV-BLOCK-006",),
    may_also_break=("KV-BLOCK-004", "KV-BLOCK-009"),
    verbs=ALLOCATOR,
    program="allocate 0 1; free_twice 0 0",
)
class FreedAsASet(ListAllocator):
    """Blocks are counted one by one when they are shared, and as a set when they are freed.

    A sliding window reuses a block, so it stands several times in a table. A fork counts each time, freeing
    counts once, and what two calls disagree about is never free again.
    """

    def free(self, blocks: list[int]) -> None:
        """Free each block once, however often it is named."""
        super().free(list(dict.fromkeys(blocks)))


@exhibit(
    as_if="a block that was freed twice stood twice in the free list",
    fault="F07 ownership",
    breaks=("KV-BLOCK-006",),
    verbs=ALLOCATOR,
    program="allocate 0 1; free 0; free_again 0 0",
)
class QueuedTwice(ListAllocator):
    """Freeing does not ask whether anybody holds the block.

    A plant: two paths end a request, by abort and by the last token, and now and then both run. The block is
    in the list twice, and two requests will write it.
    """

    def check_held(self, blocks: list[int]) -> None:
        """Let everything pass."""


@exhibit(
    as_if="the null block was freed and handed out",
    fault="F07 ownership",
    seen_in=("sgl-project/sglang#38519",),
    breaks=("KV-BLOCK-007",),
    verbs=ALLOCATOR,
    choices={"null-block": "reserved"},
    program="free_null 0",
)
class SentinelFreed(ListAllocator):
    """Entries that stand for nothing are freed with the others.

    Slots without a partner in the window pool map to 0. Freeing a node frees what its entries map to, zeros
    included, and the sentinel is handed out as memory.
    """

    first = 1

    def free(self, blocks: list[int]) -> None:
        """Take the null block for an ordinary one."""
        for block in blocks:
            if block == 0:
                self.put_back(block)
        super().free([block for block in blocks if block != 0])


@exhibit(
    as_if="a negative id counted from the end of the pool",
    fault="F09 padding as data",
    breaks=("KV-BLOCK-007",),
    verbs=ALLOCATOR,
    program="rest 0; free_outside 1 -1",
)
class NegativeIdsCountFromTheEnd(ListAllocator):
    """An id is held to the end of the pool and not to its beginning.

    A plant: tables are padded with -1, and as an index -1 is the last block. Freeing a padded row frees
    somebody else's.
    """

    def check_in_pool(self, blocks: Iterable[int]) -> None:
        """Look at one side only."""
        if any(block >= self.num_blocks for block in blocks):
            raise OwnershipError("a block is beyond the pool")

    def put_back(self, block: int) -> None:
        """Let a block be free by its right name, which comes too late."""
        super().put_back(block % self.num_blocks)


@exhibit(
    as_if="a block that nobody held was held and stayed in the free list",
    fault="F07 ownership",
    breaks=("KV-BLOCK-001",),
    may_also_break=("KV-BLOCK-004",),
    verbs=ALLOCATOR,
    program="touch_idle 0 0",
)
class HeldInTheFreeList(ListAllocator):
    """A hit raises the count of its block, wherever the block is.

    A plant: a hit on a block that was let go of has to take it from the free list. Counted alone it is handed
    out to the next request, and two requests hold it.
    """

    def check_somebody_holds(self, blocks: Iterable[int]) -> None:
        """Let free blocks pass."""
