"""Faults of forks: who is counted, and who writes first into what is shared."""

from collections.abc import Iterable

from kvref_conformance.museum.block_tables.slots import TABLES
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.lists.tables import Appended, ListTables


@exhibit(
    as_if="a fork did not count itself among the holders",
    fault="F07 ownership",
    seen_in=("apache/tvm#16666",),
    breaks=("KV-BLOCK-023",),
    may_also_break=(
        "KV-BLOCK-004",
        "KV-BLOCK-021",
        "KV-BLOCK-022",
        "KV-BLOCK-024",
        "KV-BLOCK-026",
        "KV-BLOCK-027",
        "KV-BLOCK-032",
    ),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; append 0 1; fork 0 1; free 0",
)
class ForkNotCounted(ListTables):
    """The child has its parent's blocks, and the reference counts stay.

    The parent ends, its blocks are free, and the child reads what the next request writes there.
    """

    def share(self, blocks: Iterable[int]) -> None:
        """Count nobody."""


@exhibit(
    as_if="a fork was given copies of all blocks",
    fault="F08 accounting",
    breaks=("KV-BLOCK-023",),
    may_also_break=("KV-BLOCK-003", "KV-BLOCK-004", "KV-BLOCK-021"),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; append 0 1; fork 0 1",
)
class ForkTakesBlocks(ListTables):
    """The child is given blocks of its own, into which nobody copies.

    A plant: parallel samples cost as much memory as separate requests, and read nothing.
    """

    def fork(self, parent: int, child: int) -> None:
        """Take as many blocks as the parent has."""
        super().fork(parent, child)
        held = [block for table in self.tables[child] for block in table]
        self.pool.check_room(len(held))
        self.drop(held)
        for table in self.tables[child]:
            table[:] = self.pool.take(len(table))


@exhibit(
    as_if="a shared block was written in place",
    fault="F07 ownership",
    breaks=("KV-BLOCK-022", "KV-BLOCK-024"),
    may_also_break=("KV-BLOCK-004", "KV-BLOCK-021", "KV-BLOCK-027", "KV-BLOCK-032"),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; append 0 1; fork 0 1; append 1 1",
)
class WrittenInPlace(ListTables):
    """The first write after a fork goes where the table says, shared or not.

    A plant: parent and child write their next token into one slot, and both read the later one.
    """

    def needs_copy(self, request: int, group: int) -> bool:
        """Never copy."""
        return False


@exhibit(
    as_if="only children made a copy before they wrote",
    fault="F21 one path only",
    breaks=("KV-BLOCK-022", "KV-BLOCK-024"),
    may_also_break=("KV-BLOCK-004", "KV-BLOCK-027", "KV-BLOCK-032"),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; append 0 1; fork 0 1; append 0 1",
)
class ParentWritesInPlace(ListTables):
    """A parent counts as the owner of its blocks, whoever shares them.

    A plant: tests fork and let the child go on. Here the parent is the first to write.
    """

    def fork(self, parent: int, child: int) -> None:
        """Remember who is a child."""
        super().fork(parent, child)
        self.__dict__.setdefault("children", set()).add(child)

    def needs_copy(self, request: int, group: int) -> bool:
        """Copy for children."""
        return super().needs_copy(request, group) and request in self.__dict__.get("children", set())


@exhibit(
    as_if="source and target of a copy were exchanged",
    fault="F06 order",
    breaks=("KV-BLOCK-024",),
    may_also_break=("KV-BLOCK-021", "KV-BLOCK-027"),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; append 0 1; fork 0 1; append 1 1",
)
class CopiedBackwards(ListTables):
    """The new block is copied over the shared one.

    A plant: both lists hold block ids, and nothing in their type says which is which.
    """

    def append(self, request: int, num_tokens: int) -> Appended:
        """Exchange the lists."""
        slots, sources, targets, counts, groups = super().append(request, num_tokens)
        return slots, targets, sources, counts, groups


@exhibit(
    as_if="the last token of a shared block was not copied",
    fault="F01 boundary",
    breaks=("KV-BLOCK-025",),
    may_also_break=("KV-BLOCK-021", "KV-BLOCK-024"),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; append 0 1; fork 0 1; append 1 1",
)
class LastTokenLeftBehind(ListTables):
    """A copy covers the tokens up to the last one, and not the last one.

    A plant: the index of the last token is taken for their number.
    """

    def num_copied(self, num_tokens: int, group: int) -> int:
        """Copy one less."""
        return super().num_copied(num_tokens, group) - 1
