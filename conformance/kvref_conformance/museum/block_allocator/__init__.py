"""Faults of allocators: blocks given to two, lost, or handed out while somebody still writes them."""

from kvref_conformance.museum.block_allocator.counts import (
    FirstBlockKeptBack,
    FreedGoFirst,
    HoldersCountedAsBlocks,
    NegativeCountFromTheEnd,
    NeighboursOnly,
    NothingIsEverything,
    NullBlockHandedOut,
    RefusalKeepsWhatItTook,
    SharedBlocksStayAway,
)
from kvref_conformance.museum.block_allocator.flight import (
    EarlierStepsGoOn,
    FreedUnderTheStep,
    PinOnTheTwin,
    TimeoutFreesThePinned,
    UnpinnedByAnybody,
    WaitsForTheOldestStep,
)
from kvref_conformance.museum.block_allocator.owners import (
    FreedAsASet,
    HandedOutInTurn,
    HeldInTheFreeList,
    NegativeIdsCountFromTheEnd,
    QueuedTwice,
    SecondHolderForgotten,
    SentinelFreed,
)

__all__ = [
    "EarlierStepsGoOn",
    "FirstBlockKeptBack",
    "FreedAsASet",
    "FreedGoFirst",
    "FreedUnderTheStep",
    "HandedOutInTurn",
    "HeldInTheFreeList",
    "HoldersCountedAsBlocks",
    "NegativeCountFromTheEnd",
    "NegativeIdsCountFromTheEnd",
    "NeighboursOnly",
    "NothingIsEverything",
    "NullBlockHandedOut",
    "PinOnTheTwin",
    "QueuedTwice",
    "RefusalKeepsWhatItTook",
    "SecondHolderForgotten",
    "SentinelFreed",
    "SharedBlocksStayAway",
    "TimeoutFreesThePinned",
    "UnpinnedByAnybody",
    "WaitsForTheOldestStep",
]
