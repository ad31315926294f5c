"""The shadow of a pool's blocks: which token each slot holds, and who wrote it.

Every token of every request has a number of its own, so the number stands for the whole prefix that ends in
it. Requests share a number only where one was forked from the other, and then they share the prefix.

A block belongs to one group at a time: what is written there in one group is lost to the others.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

#: What a slot holds that was never written.
NOTHING = 0


@dataclass
class _Block:
    """The slots of a block, in the memory of the group that wrote it last."""

    group: int
    slots: list[int]


@dataclass
class BlockMemory:
    """The slots of every block that was ever written; sizes are those of the groups."""

    block_sizes: Sequence[int]
    _blocks: dict[int, _Block] = field(default_factory=dict)
    _first: list[int] = field(default_factory=list)
    """The first of the tokens that were made together, in rising order."""
    _made: list[tuple[int, int, int]] = field(default_factory=list)
    """For each of them its request, its position there, and the step of the program."""
    _next: int = NOTHING + 1

    def make(self, request: int, position: int, count: int, step: int) -> range:
        """Return consecutive tokens of a request, none of them like any before."""
        made = range(self._next, self._next + count)
        self._first.append(self._next)
        self._made.append((request, position, step))
        self._next += count
        return made

    def write(self, group: int, slots: Sequence[int], tokens: Sequence[int]) -> None:
        """Overwrite slots, each with its token."""
        size, last, own = self.block_sizes[group], -1, self._empty(group)
        for slot, token in zip(slots, tokens, strict=True):
            if slot // size != last:
                last = slot // size
                own = self._own(group, last)
            own[slot % size] = token

    def copy(self, group: int, source: int, target: int, count: int) -> None:
        """Overwrite the first slots of a block with those of another, never written ones included."""
        self._own(group, target)[:count] = self._read(group, source)[:count]

    def differs(self, group: int, block: int, expected: Sequence[int]) -> int | None:
        """Return the first slot of a block that does not hold the token that is expected there."""
        held = self._read(group, block)[: len(expected)]
        if held == expected:
            return None
        return next(at for at, (found, due) in enumerate(zip(held, expected, strict=True)) if found != due)

    def told(self, group: int, block: int, offset: int) -> str:
        """Say in words what a slot holds."""
        token = self._read(group, block)[offset]
        if token == NOTHING:
            return "what nobody has written"
        at = bisect_right(self._first, token) - 1
        request, position, step = self._made[at]
        return (
            f"what request {request} wrote at position {position + token - self._first[at]}, in step {step}"
        )

    def _read(self, group: int, block: int) -> list[int]:
        held = self._blocks.get(block)
        return held.slots if held is not None and held.group == group else self._empty(group)

    def _own(self, group: int, block: int) -> list[int]:
        """Let a block be of one group, and return its slots."""
        held = self._blocks.get(block)
        if held is None or held.group != group:
            held = self._blocks[block] = _Block(group, self._empty(group))
        return held.slots

    def _empty(self, group: int) -> list[int]:
        return [NOTHING] * self.block_sizes[group]
