"""Faults of eviction: what is found too late, goes too early, or is not made room for."""

from kvref_conformance.museum.prefix_evictions.order import (
    HeadGoesFirst,
    HitsDoNotRenew,
    InnerNodesEvicted,
    SplitRenewsTheRest,
    TailGoesFirst,
)
from kvref_conformance.museum.prefix_evictions.room import (
    EmptyNode,
    NothingEvictedForRoom,
    RefusalEvicts,
    RefusalKeepsTheHit,
    RefusedTokensKeyed,
)
from kvref_conformance.museum.prefix_evictions.stale import (
    CopiesStayKnown,
    EvictedStaysKnown,
    EvictsItsOwnHit,
    HitRemembered,
    HitsNotHeld,
)

__all__ = [
    "CopiesStayKnown",
    "EmptyNode",
    "EvictedStaysKnown",
    "EvictsItsOwnHit",
    "HeadGoesFirst",
    "HitRemembered",
    "HitsDoNotRenew",
    "HitsNotHeld",
    "InnerNodesEvicted",
    "NothingEvictedForRoom",
    "RefusalEvicts",
    "RefusalKeepsTheHit",
    "RefusedTokensKeyed",
    "SplitRenewsTheRest",
    "TailGoesFirst",
]
