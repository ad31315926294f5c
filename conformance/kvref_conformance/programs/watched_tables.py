"""Block tables under watch: whose tokens each request reads through the table it has.

Every slot of the pool has a shadow in the memory of each group, by block and offset, and of every token its
label is known. A block belongs to one group at a time: what is written there in one group is lost to the
others. Reading is asking: the subject tells the tables, and the shadow says what lies where they point.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvref_conformance.programs.running import Session
from kvref_conformance.programs.shadow import ShadowMemory, Written, label, root

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
    """The tables a subject tells, the labels of all tokens, and the shadow of the pool."""

    session: Session
    block_sizes: Sequence[int]
    null: tuple[int, ...]
    """Entries that stand for no block."""
    tables: Tables = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    """Request -> the label of each of its tokens."""
    memory: ShadowMemory = field(default_factory=ShadowMemory)
    _written: int = 0
    _group: dict[int, int] = field(default_factory=dict)
    """Block -> the group that wrote it last."""

    def ask(self) -> None:
        """Ask for the tables of all requests.

        Raises: Failed if the subject does not tell.
        """
        self.tables = {
            request: [self._table(request, group) for group in range(len(self.block_sizes))]
            for request in self.tokens
        }

    def grow(self, request: int, num_tokens: int) -> None:
        """Let a request have more tokens, none of them like any before."""
        own = self.tokens[request]
        for _ in range(num_tokens):
            self._written += 1
            own.append(label(own[-1] if own else root(), self._written))

    def write(self, request: int, group: int, start: int, slots: Sequence[int], step: int) -> None:
        """Write the labels of consecutive tokens into slots."""
        size = self.block_sizes[group]
        for position, slot in enumerate(slots, start):
            written = Written(self.tokens[request][position], request, position, step)
            self._own(group, slot // size)
            self.memory.write((group, slot // size, slot % size), written)

    def copy(self, group: int, source: int, target: int, count: int) -> None:
        """Copy the first slots of a block into another, in the memory of a group."""
        self._own(group, target)
        for offset in range(count):
            self.memory.copy((group, source, offset), (group, target, offset))

    def misread(self, request: int, pruned: Sequence[int]) -> Iterator[Misread]:
        """Yield in each group the first position at which a request reads what is not its own.

        `pruned` counts in each group the first blocks that need not be there.
        """
        for group, size in enumerate(self.block_sizes):
            table = self.tables[request][group]
            for position in range(pruned[group] * size, len(self.tokens[request])):
                at = position // size
                block = table[at] if at < len(table) else NULL
                if block in self.null:
                    yield Misread(request, group, position, "nothing: its table has no block there")
                    break
                expected = self.tokens[request][position]
                if found := self.memory.differs((group, block, position % size), expected):
                    where = f"(block {block}, slot {position % size})"
                    yield Misread(request, group, position, f"{found} {where}")
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

    def _own(self, group: int, block: int) -> None:
        """Let a block be of one group: what the others have in it is lost."""
        if self._group.setdefault(block, group) != group:
            size = self.block_sizes[self._group[block]]
            self.memory.erase((self._group[block], block, offset) for offset in range(size))
            self._group[block] = group

    def _table(self, request: int, group: int) -> list[int]:
        given: Mapping[str, Any] = self.session.do("block_table", request=request, group=group)
        return [int(block) for block in given["blocks"]]
