"""The queue of free blocks: who is handed out next, and what that evicts.

Blocks leave at the front. A cached block, whose contents somebody may still ask for, joins at the back, so
the one released longest ago is evicted first. A plain block, which nobody can use again, joins in front (it
is used before anything is evicted, and the block written last is written first) or behind all others.

Realises: KV-BLOCK-010 free-order.
For porters: a block must leave from the middle in constant time, because a hit takes it from there. An
intrusive doubly linked list does; a deque does not.
Source: vLLM's free queue (`plain="front"`; before 2026 all blocks joined at the back).
"""

from collections import OrderedDict
from collections.abc import Iterable, KeysView, Sequence

from kvref.arrays import check_word

#: Where a plain block joins: in front of all others (lifo) or behind them (fifo).
PLAIN = ("front", "back")


class FreeQueue:
    """Free blocks in the order in which they are handed out, and which blocks of the pool are cached.

    Raises: ArgumentError if `plain` is not one of `PLAIN`.
    """

    def __init__(self, blocks: Iterable[int], plain: str) -> None:
        check_word("plain", plain, PLAIN)
        self.cached: set[int] = set()  # free or held
        self.num_cached = 0  # of the free blocks
        self._front = plain == "front"
        self._order: OrderedDict[int, None] = OrderedDict.fromkeys(blocks)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, block: object) -> bool:
        return block in self._order

    def keys(self) -> KeysView[int]:
        """View the free blocks, the next to be handed out first."""
        return self._order.keys()

    def pop(self, count: int) -> tuple[list[int], list[int]]:
        """Take `count` blocks from the front; return them, and those of them that were cached until now."""
        take = self._order.popitem
        blocks = [take(last=False)[0] for _ in range(count)]
        evicted = self._cached_of(blocks) if self.num_cached else []
        self.cached.difference_update(evicted)
        self.num_cached -= len(evicted)
        return blocks, evicted

    def remove(self, blocks: Iterable[int]) -> None:
        """Take blocks from wherever they wait; the others keep their order."""
        for block in dict.fromkeys(blocks):
            del self._order[block]
            self.num_cached -= block in self.cached

    def join(self, blocks: Sequence[int]) -> None:
        """Add blocks: the cached at the back, the plain at their end, either in the order given."""
        order, kept = self._order, self._cached_of(blocks)
        self.num_cached += len(kept)
        if self._front and len(kept) < len(blocks):
            for block in reversed(blocks):
                if block not in self.cached:
                    order[block] = None
                    order.move_to_end(block, last=False)
            blocks = kept
        for block in blocks:
            order[block] = None

    def drop(self, block: int) -> None:
        """Let a block be cached no longer; a free one keeps its place."""
        self.num_cached -= block in self.cached and block in self._order
        self.cached.discard(block)

    def _cached_of(self, blocks: Sequence[int]) -> list[int]:
        if self.cached.issuperset(blocks):
            return list(blocks)
        return [block for block in blocks if block in self.cached]

    def check_invariants(self) -> None:
        """Assert that the queue reads alike from both ends and that the count of cached blocks is right."""
        assert list(reversed(self._order)) == list(self._order)[::-1], "the queue differs read from its back"
        assert self.num_cached == len(self.cached & self._order.keys()), "free cached blocks are miscounted"
