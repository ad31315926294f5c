"""Faults of addressing: slots that are not those of the table, and tables that are another's."""

from kvref_conformance.museum.block_allocator.owners import InCircles
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.lists.tables import Appended, ListTables

TABLES = ("block_tables",)


@exhibit(
    as_if="slots were counted in blocks half as large as those of the table",
    fault="F02 unit",
    seen_in=("vllm-project/vllm#54359", "vllm-project/vllm#51031"),
    breaks=("KV-BLOCK-020",),
    may_also_break=("KV-BLOCK-021", "KV-BLOCK-022", "KV-BLOCK-024", "KV-BLOCK-028", "KV-BLOCK-034"),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; append 0 5",
)
class SlotsOfKernelBlocks(ListTables):
    """The table counts in one block size and the slots in another.

    The manager's blocks hold 640 tokens, those of the kernel 128, and the mapping multiplies by the wrong
    one: thousands of tokens share a few hundred slots.
    """

    def slot(self, request: int, group: int, position: int) -> int:
        """Multiply by half a block."""
        size = self.block_sizes[group]
        return self.tables[request][group][position // size] * (size // 2) + position % size


@exhibit(
    as_if="the table stayed as it was when the prefix was loaded",
    fault="F21 one path only",
    seen_in=("NVIDIA/TensorRT-LLM#13320",),
    breaks=("KV-BLOCK-020", "KV-BLOCK-032"),
    may_also_break=(
        "KV-BLOCK-004",
        "KV-BLOCK-021",
        "KV-BLOCK-022",
        "KV-BLOCK-024",
        "KV-BLOCK-033",
        "KV-BLOCK-034",
    ),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; append 0 1; append 0 4",
)
class TableFrozen(ListTables):
    """A request whose prefix came from elsewhere is given no blocks for what it decodes.

    Its number of tokens grows, its list of blocks does not, and new tokens are written over those of its last
    block. Here the first append is the prefix.
    """

    def append(self, request: int, num_tokens: int) -> Appended:
        """Say which appends give no blocks."""
        self.frozen = bool(self.lengths.get(request))
        return super().append(request, num_tokens)

    def num_missing(self, request: int, group: int, num_tokens: int) -> int:
        """Need nothing more."""
        return 0 if self.frozen else super().num_missing(request, group, num_tokens)

    def slot(self, request: int, group: int, position: int) -> int:
        """Stay in the last block."""
        held = len(self.tables[request][group]) * self.block_sizes[group]
        return super().slot(request, group, min(position, held - 1))


@exhibit(
    as_if="every group had the block size of the first",
    fault="F02 unit",
    seen_in=("vllm-project/vllm-ascend#14536",),
    breaks=("KV-BLOCK-020", "KV-BLOCK-031"),
    may_also_break=("KV-BLOCK-003", "KV-BLOCK-021", "KV-BLOCK-034"),
    verbs=TABLES,
    block_sizes=(4, 2),
    features=("groups",),
    program="add 0; append 0 3",
)
class SlotsByTheFirstGroup(ListTables):
    """One slot mapping is computed and used for all groups of layers.

    In the report a sharded cache is written through the mapping of the replicated one. Here the groups have
    unequal block sizes.
    """

    def slot(self, request: int, group: int, position: int) -> int:
        """Use the first group's size."""
        size = self.block_sizes[0]
        return self.tables[request][group][position // size] * size + position % size


@exhibit(
    as_if="rows moved up when a request ended, and their requests did not",
    fault="F18 row mapping",
    breaks=("KV-BLOCK-021",),
    may_also_break=("KV-BLOCK-032",),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; add 1; add 2; append 2 1; free 0",
)
class RowsMoveUp(ListTables):
    """Tables are kept in the rows of a batch, which is closed up when a request leaves it.

    A plant: those behind the gap move up by one, and each reads the row of the next.
    """

    def free(self, request: int) -> None:
        """Give each later request the row behind its own."""
        known = list(self.tables)
        later = known[known.index(request) + 1 :] if request in known else []
        super().free(request)
        rows = [self.tables[other] for other in later]
        for other, row in zip(later, rows[1:] + rows[:1], strict=True):
            self.tables[other] = row


@exhibit(
    as_if="blocks were handed out in turn, held or not",
    fault="F07 ownership",
    breaks=("KV-BLOCK-022",),
    may_also_break=("KV-BLOCK-021", "KV-BLOCK-024"),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; append 0 1; add 1; fill 1; free 1; add 2; append 2 1",
)
class TablesOverARing(ListTables):
    """The pool below the tables is a ring, and what it hands out is not always free.

    A plant: a long request outlives its successors, and the newest one writes over its first block.
    """

    pool_class = InCircles
