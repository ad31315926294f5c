"""Faults of allocators: blocks given to two, lost, or handed out while somebody still writes them."""

from kvref_conformance.museum.block_allocator.counts import (
    FirstBlockKeptBack,
    FreedGoFirst,
    HoldersCountedAsBlocks,
    NegativeCountFromTheEnd,
    NeighboursOnly,
    NullBlockHandedOut,
    RefusalKeepsWhatItTook,
    SharedBlocksStayAway,
)
from kvref_conformance.museum.block_allocator.owners import (
    FreedAsASet,
    FreedUnderTheStep,
    HandedOutInTurn,
    NegativeIdsCountFromTheEnd,
    PinOnTheTwin,
    QueuedTwice,
    SecondHolderForgotten,
    SentinelFreed,
    TimeoutFreesThePinned,
    WaitsForTheOldestStep,
)

__all__ = [
    "FirstBlockKeptBack",
    "FreedAsASet",
    "FreedGoFirst",
    "FreedUnderTheStep",
    "HandedOutInTurn",
    "HoldersCountedAsBlocks",
    "NegativeCountFromTheEnd",
    "NegativeIdsCountFromTheEnd",
    "NeighboursOnly",
    "NullBlockHandedOut",
    "PinOnTheTwin",
    "QueuedTwice",
    "RefusalKeepsWhatItTook",
    "SecondHolderForgotten",
    "SentinelFreed",
    "SharedBlocksStayAway",
    "TimeoutFreesThePinned",
    "WaitsForTheOldestStep",
]
