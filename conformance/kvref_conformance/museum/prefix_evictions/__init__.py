"""Faults of eviction: what is found too late, goes too early, or is not made room for."""

from kvref_conformance.museum.prefix_evictions.order import (
    HeadGoesFirst,
    HitsDoNotRenew,
    InnerNodesEvicted,
)
from kvref_conformance.museum.prefix_evictions.room import (
    EmptyNode,
    NothingEvictedForRoom,
    RefusalEvicts,
    RefusalKeepsTheHit,
)
from kvref_conformance.museum.prefix_evictions.stale import (
    EvictedStaysKnown,
    EvictsItsOwnHit,
    HitRemembered,
    HitsNotHeld,
)

__all__ = [
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
]
