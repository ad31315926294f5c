"""Who holds which block of a pool, and which blocks are nobody's.

A block is held by requests (its count), by pins, and by the steps in flight when its last holder let go. It
is free otherwise, and waits in the queue. Here the rules of ownership are kept, for ids that the pool has:
`kvref.memory.blocks` sees to it that ids are ids before they come here, and `kvref.memory.prefix` passes on
those that it was given.

Realises: KV-BLOCK-001 alloc-distinct, KV-BLOCK-002 alloc-atomic, KV-BLOCK-003 alloc-complete, KV-BLOCK-005
last-holder, KV-BLOCK-006 double-free, KV-BLOCK-009 all-returned, KV-BLOCK-011 fenced-free, KV-BLOCK-012
pinned-stays.
For porters: build `allocate` and `free` first. Two refusals decide whether a pool is safe: check the whole
call before changing anything, and refuse a block that nobody holds.
Source: vLLM's block pool (held and pinned blocks, deferred frees); PagedAttention (Kwon et al. 2023).
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from kvref.errors import OutOfBlocksError, OwnershipError
from kvref.memory.fences import Fences
from kvref.memory.free_queue import FreeQueue


class Allocation(NamedTuple):
    """Blocks handed out, and those of them that were cached until now: what they held is lost."""

    blocks: list[int]
    evicted: list[int]


class Holdings:
    """Holders, pins and fences of the blocks `own`, all of them free at first.

    Raises: ArgumentError if `plain` is not front or back.
    """

    def __init__(self, own: range, plain: str) -> None:
        self.own = own
        self.refs = [0] * own.stop
        """How often each block is held, pins included; blocks before the first have none."""
        self.free_queue = FreeQueue(own, plain)
        self.fences = Fences()
        self._pins: Counter[int] = Counter()  # of the pinned blocks alone

    def allocate(self, count: int) -> Allocation:
        """Hand out blocks from the front of the queue, each held once.

        Raises: OutOfBlocksError if fewer are free (KV-BLOCK-002).
        """
        if count > len(self.free_queue):
            raise OutOfBlocksError(
                f"num_blocks = {count}, but {len(self.free_queue)} of {len(self.own)} blocks are free "
                "(KV-BLOCK-003 alloc-complete)"
            )
        blocks, evicted = self.free_queue.pop(count)
        for block in blocks:
            self.refs[block] = 1
        return Allocation(blocks, evicted)

    def free(self, ids: Sequence[int]) -> None:
        """Let go of each block once; those that nobody holds any more join the queue, the first named first.

        Raises: OwnershipError if a block is named more often than it is held (KV-BLOCK-006 double-free).
        """
        counts = list(map(self.refs.__getitem__, ids))
        once = not self._pins and len(set(ids)) == len(ids)
        if once and counts.count(1) == len(ids):  # the usual case, and nothing is left to look for
            for block in ids:
                self.refs[block] = 0
            self._idle(ids)
        else:
            if not once or 0 in counts:
                self._check_held(ids)
            self._let_go(ids)

    def touch(self, ids: Sequence[int]) -> None:
        """Hold each block once more; a cached block that is free leaves the queue with what it holds.

        Raises: OwnershipError if a block is neither held nor cached, so that it holds nothing to share.
        """
        refs = self.refs
        idle = [block for block in ids if not refs[block]]
        if not self.free_queue.cached.issuperset(idle):
            found = next(block for block in idle if block not in self.free_queue.cached)
            raise OwnershipError(
                f"blocks names block {found}, expected a held or a cached block (KV-BLOCK-005 last-holder)"
            )
        for block in ids:
            refs[block] += 1
        self.free_queue.remove(self.fences.take_back(idle))

    def pin(self, ids: Sequence[int]) -> None:
        """Touch each block, and count it as pinned.

        Raises: as `touch`.
        """
        self.touch(ids)
        self._pins.update(ids)

    def unpin(self, ids: Sequence[int]) -> None:
        """Take back one pin of each block.

        Raises: OwnershipError if a block is named more often than it is pinned (KV-BLOCK-006 double-free).
        """
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

    def mark_cached(self, ids: Sequence[int]) -> None:
        """Say that what held blocks hold is published.

        Raises: OwnershipError if nobody holds a block.
        """
        if 0 in map(self.refs.__getitem__, ids):
            found = next(block for block in ids if not self.refs[block])
            raise OwnershipError(
                f"blocks names block {found}, expected held blocks (KV-BLOCK-005 last-holder)"
            )
        self.free_queue.cached.update(ids)

    def end_step(self, step: int) -> None:
        """End a step and each before it; blocks that waited for these, and for no later one, are free.

        Raises: ArgumentError if the step is not in flight.
        """
        self.free_queue.join(self.fences.end(step))

    def check_invariants(self) -> None:
        """Assert what holds between any two operations; costs time in the size of the pool."""
        own, free, waiting = self.own, self.free_queue.keys(), self.fences.keys()
        assert min(self.refs) >= 0, "a block is held less often than never"
        assert {block for block in own if not self.refs[block]} == free | waiting, "a block is lost, or held"
        assert not free & waiting, "a block is free and waits for a step"
        assert not any(self.refs[: own.start]), "the null block is held"
        assert self.free_queue.cached <= set(own), "a block outside the pool is cached"
        assert all(0 < n <= self.refs[block] for block, n in self._pins.items()), "a pin does not hold"
        self.free_queue.check_invariants()
        self.fences.check_invariants()

    def _check_held(self, ids: Sequence[int]) -> None:
        for block, times in Counter(ids).items():
            held = self.refs[block] - self._pins.get(block, 0)
            if times > held:
                raise OwnershipError(
                    f"blocks names block {block} {times} times, expected at most its {held} holders "
                    "(KV-BLOCK-006 double-free)"
                )

    def _let_go(self, ids: Sequence[int]) -> None:
        refs = self.refs
        for block in ids:
            refs[block] -= 1
        self._idle([block for block in ids if not refs[block]])

    def _idle(self, blocks: Sequence[int]) -> None:
        if self.fences.in_flight:
            self.fences.wait(blocks)
        else:
            self.free_queue.join(blocks)
