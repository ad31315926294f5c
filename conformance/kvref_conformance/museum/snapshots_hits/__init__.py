"""Faults of hits in a snapshot cache: the wrong state, states without blocks, and hits that never come."""

from kvref_conformance.museum.snapshots_hits.positions import (
    BlocksEvictedUnderTheState,
    HitOfBlocksAlone,
    IndexOfAnEarlierBlockSize,
    IntervalFromTheHit,
    RowOfTheWholeBatch,
    SavedATokenEarly,
    SavedATokenLate,
    StatesKnownByLength,
)
from kvref_conformance.museum.snapshots_hits.restores import (
    AskedOneBlockLower,
    BlockTakesAllStatesAlong,
    JunctionNeverSaved,
    PublishedWhenScheduled,
    RestoredBehindTheLastToken,
    RunsInTheSnapshot,
    SplitLosesTheState,
    StagedCopyNeverMade,
    StartsFromTheLastOnesState,
    StateTakesItsBlocksAlong,
    WindowCutShort,
    WindowForgotten,
)

__all__ = [
    "AskedOneBlockLower",
    "BlockTakesAllStatesAlong",
    "BlocksEvictedUnderTheState",
    "HitOfBlocksAlone",
    "IndexOfAnEarlierBlockSize",
    "IntervalFromTheHit",
    "JunctionNeverSaved",
    "PublishedWhenScheduled",
    "RestoredBehindTheLastToken",
    "RowOfTheWholeBatch",
    "RunsInTheSnapshot",
    "SavedATokenEarly",
    "SavedATokenLate",
    "SplitLosesTheState",
    "StagedCopyNeverMade",
    "StartsFromTheLastOnesState",
    "StateTakesItsBlocksAlong",
    "StatesKnownByLength",
    "WindowCutShort",
    "WindowForgotten",
]
