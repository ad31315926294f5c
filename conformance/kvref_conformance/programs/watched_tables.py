"""Block tables under watch: whose tokens each request reads through the table it has.

Reading is asking: the subject tells the tables, and the shadow of the pool says what lies where they point.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvref_conformance.programs.block_memory import BlockMemory
from kvref_conformance.programs.running import Session

#: A table's entry where a block was pruned.
NULL = -1
Tables = dict[int, list[list[int]]]


@dataclass(frozen=True)
class Misread:
    """A request reads at some position what its own prefix has not written."""

    request: int
    group: int
    position: int
    found: str
    """What it reads, and where: all that follows "reads at position 5"."""

    def __str__(self) -> str:
        group = f" in group {self.group}" if self.group else ""
        return f"request {self.request} reads at position {self.position}{group} {self.found}"


@dataclass
class WatchedTables:
    """The tables a subject tells, the tokens of all requests, and the shadow of the pool."""

    session: Session
    block_sizes: Sequence[int]
    null: tuple[int, ...]
    """Entries that stand for no block."""
    tables: Tables = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    """Request -> its tokens, each a number of its own."""
    memory: BlockMemory = field(init=False)

    def __post_init__(self) -> None:
        self.memory = BlockMemory(self.block_sizes)

    def ask(self) -> None:
        """Ask for the tables of all requests.

        Raises: Failed if the subject does not tell.
        """
        self.tables = {
            request: [self._table(request, group) for group in range(len(self.block_sizes))]
            for request in self.tokens
        }

    def grow(self, request: int, num_tokens: int, step: int) -> None:
        """Let a request have more tokens, none of them like any before."""
        own = self.tokens[request]
        own += self.memory.make(request, len(own), num_tokens, step)

    def write(self, request: int, group: int, start: int, slots: Sequence[int]) -> None:
        """Write consecutive tokens into slots."""
        self.memory.write(group, slots, self.tokens[request][start : start + len(slots)])

    def misread(self, request: int, pruned: Sequence[int]) -> Iterator[Misread]:
        """Yield in each group the first position at which a request reads what is not its own.

        `pruned` counts in each group the first blocks that need not be there.
        """
        own = self.tokens[request]
        for group, size in enumerate(self.block_sizes):
            table = self.tables[request][group]
            for first in range(pruned[group] * size, len(own), size):
                at = first // size
                block = table[at] if at < len(table) else NULL
                if block in self.null:
                    yield Misread(request, group, first, "nothing: its table has no block there")
                    break
                offset = self.memory.differs(group, block, own[first : first + size])
                if offset is not None:
                    where = f"(block {block}, slot {offset})"
                    found = f"{self.memory.told(group, block, offset)} {where}"
                    yield Misread(request, group, first + offset, found)
                    break

    def holder_of(self, block: int, *, but: int) -> int | None:
        """Return another request that has a block in a table."""
        for request, rows in self.tables.items():
            if request != but and any(block in row for row in rows):
                return request
        return None

    def blocks(self) -> set[int]:
        """Return every block that is in a table."""
        every = {block for rows in self.tables.values() for row in rows for block in row}
        return every - set(self.null)

    def _table(self, request: int, group: int) -> list[int]:
        """Return a table without what fills it up behind its last block: that is no block."""
        given: Mapping[str, Any] = self.session.do("block_table", request=request, group=group)
        blocks = [int(block) for block in given["blocks"]]
        while blocks and blocks[-1] in self.null:
            blocks.pop()
        return blocks
