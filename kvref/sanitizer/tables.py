"""Who has which block in a table, asked from either side, for one block or for many at a time.

Realises: KV-BLOCK-020 token-slot, KV-BLOCK-005 last-holder.
For porters: a look at a table takes time in its length; an event of many blocks takes one look, not one each.
Source: the definition.
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial

from kvref.sanitizer.requests import Request
from kvref.sanitizer.shadow import Block, Name

#: How many blocks are looked up in the tables of a request one by one.
FEW = 8


class Tables:
    """The blocks of a pool and the requests whose tables they are in."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.blocks: dict[int, Block] = {}
        self.requests: dict[Name, Request] = {}
        self.disturbed = False
        """Whether a block that somebody had verified was changed in this event."""

    def place(self, request: Request, block: int) -> tuple[int, int] | None:
        """Return group and entry where a request has a block."""
        for group, table in enumerate(request.tables):
            if block in table:
                return group, table.index(block)
        return None

    def places(self, request: Request) -> dict[int, tuple[int, int]]:
        """Return the group and entry of each block that a request has, for a look at many of them."""
        return {
            block: (group, index)
            for group in reversed(range(len(request.tables)))
            for index, block in reversed(list(enumerate(request.tables[group])))
        }

    def finder(self, request: Request, count: int) -> Callable[[int], tuple[int, int] | None]:
        """Return what says where a request has a block, for that many of them."""
        return self.places(request).get if count > FEW else partial(self.place, request)

    def holders(self, block: int) -> list[Request]:
        """List the requests whose tables have a block."""
        return [r for r in self.requests.values() if any(block in table for table in r.tables)]

    def changed(self, blocks: Collection[int], besides: Request | None = None) -> None:
        """Let everybody else who has some blocks in a table verify them again."""
        if not blocks:
            return
        self.disturbed, wanted = True, set(blocks)
        for request in self._who_has(blocks):
            for size, table in zip(self.sizes, request.tables, strict=True):
                if request is not besides and not wanted.isdisjoint(table):
                    first = next(index for index, block in enumerate(table) if block in wanted)
                    request.back_to(first * size)

    def _who_has(self, blocks: Collection[int]) -> Iterable[Request]:
        """Return at least those who have some of the blocks in a table: one where that is quick to see."""
        block = next(iter(blocks))
        known = self.blocks.get(block) if len(blocks) == 1 else None
        if known is not None and known.refs == 1 and known.holder is not None:
            alone = self.requests.get(known.holder)
            if alone is not None and self.place(alone, block) is not None:
                return [alone]
        return self.requests.values()
