"""Faults of block tables: slots that are not the table's, rows that are others', blocks that are lost."""

from kvref_conformance.museum.block_tables.held import (
    AddedAgain,
    GroupsOneByOne,
    OneBlockAhead,
    PrunedByScheduled,
    PrunedFreedAgain,
    PruningStopsShort,
    ShortRequestsLeak,
    StrangersFreed,
    WholePromptEachChunk,
)
from kvref_conformance.museum.block_tables.slots import (
    RowsMoveUp,
    SlotsByTheFirstGroup,
    SlotsOfKernelBlocks,
    TableFrozen,
    TablesOverARing,
)

__all__ = [
    "AddedAgain",
    "GroupsOneByOne",
    "OneBlockAhead",
    "PrunedByScheduled",
    "PrunedFreedAgain",
    "PruningStopsShort",
    "RowsMoveUp",
    "ShortRequestsLeak",
    "SlotsByTheFirstGroup",
    "SlotsOfKernelBlocks",
    "StrangersFreed",
    "TableFrozen",
    "TablesOverARing",
    "WholePromptEachChunk",
]
