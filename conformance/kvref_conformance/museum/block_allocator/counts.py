"""Faults of accounting: blocks are lost, kept back, handed out in another order, or not handed out at all."""

from kvref.errors import OutOfBlocksError
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.lists.allocator import ListAllocator

ALLOCATOR = ("block_allocator",)


@exhibit(
    as_if="a refused allocation kept what it had taken so far",
    fault="F08 accounting",
    breaks=("KV-BLOCK-002",),
    verbs=ALLOCATOR,
    program="allocate 0 99",
)
class RefusalKeepsWhatItTook(ListAllocator):
    """Blocks are taken one by one until none is left, and only then the allocation is refused.

    A plant: nobody has a table from which the blocks taken so far could be freed.
    """

    def check_room(self, num_blocks: int) -> None:
        """Take what there is before refusing."""
        if num_blocks > len(self.free_blocks):
            self.take(len(self.free_blocks))
            raise OutOfBlocksError("the pool is empty")


@exhibit(
    as_if="an allocation needed neighbouring blocks",
    fault="F22 no progress",
    seen_in=("ggml-org/llama.cpp#23720",),
    breaks=("KV-BLOCK-003",),
    may_also_break=("KV-BLOCK-002", "KV-BLOCK-006", "KV-BLOCK-007", "KV-BLOCK-009"),
    verbs=ALLOCATOR,
    program="rest 0; free 0 0; free 0 2; rest 1",
)
class NeighboursOnly(ListAllocator):
    """An allocation is served from one run of neighbouring blocks, or refused.

    Requests of unequal lifetime leave holes, and a batch is refused with half of the pool free.
    """

    def take(self, count: int) -> list[int]:
        """Look for a run."""
        for first in sorted(self.free_blocks):
            run = list(range(first, first + count))
            if set(run) <= set(self.free_blocks):
                self.free_blocks = [block for block in self.free_blocks if block not in run]
                for block in run:
                    self.holders[block] = 1
                return run
        raise OutOfBlocksError(f"no {count} free blocks lie side by side")


@exhibit(
    as_if="holders were counted in place of blocks",
    fault="F08 accounting",
    breaks=("KV-BLOCK-004",),
    may_also_break=("KV-BLOCK-005", "KV-BLOCK-006"),
    verbs=ALLOCATOR,
    program="allocate 0 1; touch 0",
)
class HoldersCountedAsBlocks(ListAllocator):
    """The number of free blocks is the capacity less all reference counts.

    A plant: right until a block is shared. Then admission sees a fuller pool than there is.
    """

    def num_free(self) -> int:
        """Subtract every holder."""
        return self.num_blocks - sum(self.holders)


@exhibit(
    as_if="block 0 were handed out, which is declared to be null",
    fault="F09 padding as data",
    breaks=("KV-BLOCK-008",),
    verbs=ALLOCATOR,
    choices={"null-block": "reserved"},
    program="allocate 0 1",
)
class NullBlockHandedOut(ListAllocator):
    """The pool knows nothing of the null block.

    A plant: tables use 0 for no block, and the first request is given block 0. Padding of all others reads
    its tokens.
    """


@exhibit(
    as_if="block 0 was never handed out",
    fault="F08 accounting",
    breaks=("KV-BLOCK-008",),
    verbs=ALLOCATOR,
    program="rest 0",
)
class FirstBlockKeptBack(ListAllocator):
    """One block is kept for a purpose that nobody declares.

    A plant: a pool that was sized for n blocks serves n - 1, and the request that fits exactly never runs.
    """

    first = 1


@exhibit(
    as_if="blocks that were shared once are never handed out again",
    fault="F08 accounting",
    breaks=("KV-BLOCK-009",),
    may_also_break=("KV-BLOCK-003", "KV-BLOCK-006"),
    verbs=ALLOCATOR,
    program="allocate 0 1; touch 0; drain",
)
class SharedBlocksStayAway(ListAllocator):
    """The last holder of a shared block lets go, and the block joins no list.

    A plant: the count is derived from the holders and looks right, so the leak shows only when the whole pool
    is asked for.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.shared: set[int] = set()

    def hold(self, block: int) -> None:
        """Remember that the block was shared."""
        super().hold(block)
        self.shared.add(block)

    def put_back(self, block: int) -> None:
        """Lose it."""
        if block not in self.shared:
            super().put_back(block)

    def num_free(self) -> int:
        """Count blocks without holders."""
        return self.holders.count(0)


@exhibit(
    as_if="the block freed last was handed out first",
    fault="F06 order",
    breaks=("KV-BLOCK-010",),
    verbs=ALLOCATOR,
    choices={"free-order": "fifo"},
    program="allocate 0 1; free 0; allocate 1 1",
)
class FreedGoFirst(ListAllocator):
    """Freed blocks join the end that is handed out.

    A plant: the order is declared to be first in, first out, and what was cached last is overwritten first.
    """

    def put_back(self, block: int) -> None:
        """Join the wrong end."""
        self.free_blocks.insert(0, block)


@exhibit(
    as_if="a negative number of blocks was all but so many",
    fault="F14 empty state",
    breaks=("KV-BLOCK-013",),
    verbs=ALLOCATOR,
    program="allocate_negative 1",
)
class NegativeCountFromTheEnd(ListAllocator):
    """A number below zero passes every test for too large a number.

    A plant: a budget that is overdrawn asks for -1 blocks, and as the end of a slice that is all but one.
    """

    def check_count(self, num_blocks: int) -> None:
        """Let every number pass."""


@exhibit(
    as_if="an allocation of no blocks was given all of them",
    fault="F14 empty state",
    breaks=("KV-BLOCK-001",),
    verbs=ALLOCATOR,
    program="allocate_none",
)
class NothingIsEverything(ListAllocator):
    """The last n entries of a list are taken, and the last 0 are all of them.

    A plant: a request whose next token fits its last block asks for no block, and empties the pool.
    """

    def take(self, count: int) -> list[int]:
        """Take from the end."""
        taken = self.free_blocks[-count:]
        del self.free_blocks[-count:]
        for block in taken:
            self.holders[block] = 1
        return taken
