"""What an LRU cache of `capacity` blocks holds when requests are served one at a time: keys alone.

Served at once, a request has touched all of its blocks when the next one comes, so the cache holds the
`capacity` keys touched last, whatever blocks they lie in. A hit is a run of keys from the request's first.

Head first, a block may stay while the one before it is gone, and cannot be hit then; tail first never.

Source: the stack property of LRU (Mattson et al. 1970). Tail first, `PrefixIndex.serve` finds the same hits;
head first it may find fewer, because it makes room for a block that a later one of the same request turns out
to hold already.
For porters: `kvref.memory.prefix` is the cache; this is the shortest thing that a replay can be checked with.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile
from typing import Generic

from kvref.arrays import check_count, check_word
from kvref.errors import OutOfBlocksError
from kvref.memory.copies import Key
from kvref.memory.profiles import NAMED


class LruKeys(Generic[Key]):
    """The `capacity` keys touched last; `release` says which end of a request counts as touched first.

    Raises: ArgumentError if the capacity is no count, or `release` is neither head_first nor tail_first.
    """

    def __init__(self, capacity: int, release: str = "head_first") -> None:
        check_word("release", release, NAMED["release"])
        self.capacity = check_count("capacity", capacity)
        self.evictions = 0
        """Keys evicted so far."""
        self._step = 1 if release == "head_first" else -1
        self._held: OrderedDict[Key, None] = OrderedDict()  # the one touched longest ago first

    def __len__(self) -> int:
        return len(self._held)

    def serve(self, keys: Sequence[Key]) -> int:
        """Serve a request, and return how many of its first blocks were there.

        Raises: OutOfBlocksError if it has more blocks than the cache.
        """
        if len(keys) > self.capacity:
            raise OutOfBlocksError(f"keys names {len(keys)} blocks, expected at most {self.capacity}")
        held = self._held
        hits = len(list(takewhile(held.__contains__, keys)))
        for key in keys[:: self._step]:
            if key in held:
                held.move_to_end(key)
            else:
                held[key] = None
        excess = len(held) - self.capacity
        for _ in range(excess):
            held.popitem(last=False)
        self.evictions += max(0, excess)
        return hits

    def order(self) -> list[Key]:
        """List the keys, the next to be evicted first."""
        return list(self._held)
