"""Who holds which block: what an allocator should know, kept in the plainest way.

Blocks the subject has never handed out have no record here: the shadow of a pool learns ids as they come.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

#: What a block is, in the words of a message.
HELD, SHARED, PINNED, FENCED, FREE = "held", "shared", "pinned", "fenced", "free"


@dataclass
class Held:
    """A block that is not free."""

    owner: int
    """The allocation it was handed out in."""
    holders: int = 1
    pins: int = 0
    was_shared: bool = False
    waits_for: set[int] = field(default_factory=set)
    """Steps in flight since before its last holder let go, pins aside."""


@dataclass
class Holders:
    """Every block of a pool that is not free."""

    capacity: int
    blocks: dict[int, Held] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    """Steps in flight, the oldest first."""

    @property
    def num_fenced(self) -> int:
        """Blocks that only wait for a step."""
        return sum(not held.holders and not held.pins for held in self.blocks.values())

    @property
    def num_free(self) -> int:
        """Blocks that may be handed out now."""
        return self.capacity - len(self.blocks)

    def state(self, block: int) -> str:
        """Return what a block is."""
        held = self.blocks.get(block)
        if held is None:
            return FREE
        if held.holders:
            return SHARED if held.was_shared else HELD
        return PINNED if held.pins else FENCED

    def take(self, blocks: Iterable[int], owner: int) -> None:
        """Hand blocks out."""
        for block in blocks:
            self.blocks[block] = Held(owner)

    def touch(self, blocks: Iterable[int]) -> None:
        """Hold each block once more."""
        for block in blocks:
            self.blocks[block].holders += 1
            self.blocks[block].was_shared = True

    def let_go(self, blocks: Iterable[int]) -> list[int]:
        """Let go of each block once, and return those that are free now."""
        for block in blocks:
            self.blocks[block].holders -= 1
        return self._idle(blocks)

    def pin(self, blocks: Iterable[int]) -> None:
        """Pin each block once more."""
        for block in blocks:
            self.blocks[block].pins += 1

    def unpin(self, blocks: Iterable[int]) -> list[int]:
        """Take back a pin of each block, and return those that are free now."""
        for block in blocks:
            self.blocks[block].pins -= 1
        return self._free_if_idle(blocks)

    def may_unpin(self, block: int) -> bool:
        """Say whether it is clear what a block waits for if it loses a pin: the steps it waits for anyway."""
        held = self.blocks[block]
        return bool(held.pins) and (bool(held.holders) or held.waits_for == set(self.steps))

    def end(self, step: int) -> list[int]:
        """End a step and each before it, and return the blocks that are free now."""
        ended = self.steps[: self.steps.index(step) + 1]
        del self.steps[: len(ended)]
        waited = [block for block, held in self.blocks.items() if held.waits_for]
        for block in waited:
            self.blocks[block].waits_for.difference_update(ended)
        return self._free_if_idle(waited)

    def _idle(self, blocks: Iterable[int]) -> list[int]:
        """Let blocks without holders wait for the steps in flight; return those that are free now."""
        for block in blocks:
            if not self.blocks[block].holders:
                self.blocks[block].waits_for = set(self.steps)
        return self._free_if_idle(blocks)

    def _free_if_idle(self, blocks: Iterable[int]) -> list[int]:
        freed = []
        for block in dict.fromkeys(blocks):
            held = self.blocks[block]
            if not (held.holders or held.pins or held.waits_for):
                del self.blocks[block]
                freed.append(block)
        return freed


@dataclass
class FreeOrder:
    """The declared order of free blocks: groups of blocks that became free together, the next one first.

    Within a group any order is right, and so it is among blocks that were never handed out, and in the list
    of one allocation.
    """

    order: str
    """`fifo` or `lifo`; where it is unspecified, any order is right."""
    fresh: int
    """Blocks never handed out."""
    groups: list[set[int]] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    """Blocks handed out at some time."""

    def put(self, blocks: Iterable[int]) -> None:
        """Let blocks become free together."""
        if group := set(blocks):
            self.groups.append(group)

    def take(self, blocks: list[int]) -> str:
        """Hand blocks out; say in words what should have come first, if it did not."""
        wrong, left = "", set(blocks)
        while left:
            due = self._due()
            taken = left & due if due else left - self.seen
            if not taken and not wrong:
                before = f"before block {min(due)}" if due else "again before blocks that never were"
                wrong = f"block {min(left)} is handed out {before}"
            for block in taken or set(left):
                self.leave(block)
                left.discard(block)
        return "" if self.order == "unspecified" else wrong

    def _due(self) -> set[int]:
        """Return the blocks of which the next is one; empty where it is any that was never handed out."""
        if self.order == "fifo" and self.fresh:
            return set()
        return self.groups[0 if self.order == "fifo" else -1] if self.groups else set()

    def leave(self, block: int) -> None:
        """Let a block be free no more."""
        if block not in self.seen:
            self.fresh -= 1
            self.seen.add(block)
        for group in self.groups:
            group.discard(block)
        self.groups = [group for group in self.groups if group]
