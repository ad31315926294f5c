"""Allocations of an allocator's program, by name: which blocks are whose."""

from dataclasses import dataclass, field

from kvref_conformance.managers import MAX_LIST
from kvref_conformance.programs.holders import FREE, Holders


@dataclass
class Lots:
    """Allocation -> its blocks, until all of them are free; and what each had then."""

    holders: Holders
    held: dict[int, list[int]] = field(default_factory=dict)
    past: dict[int, list[int]] = field(default_factory=dict)

    def may_begin(self, lot: int) -> bool:
        """Say whether an allocation can have this name."""
        return lot >= 0 and lot not in self.held

    def own(self, lot: int, at: int | None = None) -> list[int]:
        """Return the blocks of an allocation, or one of them, that are not free and still its own."""
        blocks = self.held.get(lot, [])
        if at is not None:
            blocks = blocks[at : at + 1] if at >= 0 else []
        known = self.holders.blocks
        return [block for block in blocks if block in known and known[block].owner == lot]

    def in_requests(self, lot: int, at: int | None = None) -> list[int]:
        """Return those that a request holds: no more than one call can name beside another block."""
        return [block for block in self.own(lot, at) if self.holders.blocks[block].holders][: MAX_LIST - 1]

    def pinned(self, lot: int, at: int | None = None) -> list[int]:
        """Return those that are pinned."""
        return [block for block in self.own(lot, at) if self.holders.blocks[block].pins][: MAX_LIST - 1]

    def had(self, lot: int, at: int) -> list[int]:
        """Return a block of an allocation, whether it is still its own or not."""
        blocks = self.held.get(lot, self.past.get(lot, []))
        return blocks[at : at + 1] if at >= 0 else []

    def pass_on(self) -> None:
        """Let allocations be past whose blocks are all free."""
        for lot in list(self.held):
            if not any(self.holders.state(block) != FREE for block in self.own(lot)):
                self.past[lot] = self.held.pop(lot)
