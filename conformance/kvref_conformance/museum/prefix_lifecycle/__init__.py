"""Faults of requests in a prefix cache: counts, copies, aborts, resets, and slots that move."""

from kvref_conformance.museum.prefix_lifecycle.counts import (
    AbortFreesFromTheFirstToken,
    EachChunkStartsOver,
    SharedBlocksCountedTwice,
    WholeNodeHeld,
)
from kvref_conformance.museum.prefix_lifecycle.requests import (
    AbortPublishes,
    FullHitWrittenInPlace,
    LetsGoOfTheOtherCopy,
    ResetKeepsTheIndex,
    ResetKeepsTheKeys,
    ResetUnderRequests,
    RowRewrittenBackwards,
    SecondAdmissionReplaces,
    StrangersWelcome,
    TableOfNewBlocks,
)

__all__ = [
    "AbortFreesFromTheFirstToken",
    "AbortPublishes",
    "EachChunkStartsOver",
    "FullHitWrittenInPlace",
    "LetsGoOfTheOtherCopy",
    "ResetKeepsTheIndex",
    "ResetKeepsTheKeys",
    "ResetUnderRequests",
    "RowRewrittenBackwards",
    "SecondAdmissionReplaces",
    "SharedBlocksCountedTwice",
    "StrangersWelcome",
    "TableOfNewBlocks",
    "WholeNodeHeld",
]
