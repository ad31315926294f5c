"""A trace through the reference's own prefix cache, run as an engine runs its own.

The hit curve of `kvref.planning.distances` is what LRU could hit at best under a rule. An engine may hit less
or more: it holds a running request's blocks, keeps partial blocks without a key, computes the last token
again, evicts nodes instead of blocks. A replay runs the cache itself under a profile, one request after the
other, and counts what its lookups found. The ids of the trace stand for keys and contents, so no tokens are
made up; the size of a block is that of the trace.

What a trace does not tell is left out: when requests overlap, and what their outputs hold. So is what a hit
that ends inside a block costs: a cache copies that part, for which it needs a block more, or gives it up
(`kvref.memory.prefix_steps`), and a tree here does not hit it (`kvref.memory.radix_cache`). Under profiles
whose hits are whole blocks, a replay hits what the cache hits on tokens, at every capacity.

Realises: KV-PREFIX-002 hit-leaves-one and KV-PREFIX-003 hit-on-grid, as the profile has them.
For porters: one request is lookup, hold, evict and allocate, publish, release; nothing else happens here.
Source: the profiles' sources; see `kvref.memory.profiles`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from kvref.arrays import check_count
from kvref.errors import ArgumentError, OutOfBlocksError
from kvref.memory.prefix import PrefixIndex
from kvref.memory.profiles import Profile, profile_of
from kvref.memory.radix import RadixTree
from kvref.planning.counting import Counting, HitRates, rates_of
from kvref.planning.traces import Trace

#: How often `done` is called: after so many requests.
STRIDE = 256

_LAST = {
    "block_floor": "the block of the last token is computed again",
    "token": "the last token is computed again",
    "none": "all of a request may hit",
}


class Served(Protocol):
    """A cache that serves one request at a time."""

    def serve(self, keys: Sequence[int], most: int, num_blocks: int) -> int:
        """Return how many of the first `most` keys hit; the request holds `num_blocks` while it runs.

        Raises: OutOfBlocksError if it needs more blocks than there are.
        """
        ...


class Chain:
    """A cache of keyed blocks: `PrefixIndex`, one request at a time."""

    def __init__(self, num_blocks: int, profile: Profile) -> None:
        self.index: PrefixIndex[int] = PrefixIndex(num_blocks + profile.null_block, profile)

    def serve(self, keys: Sequence[int], most: int, num_blocks: int) -> int:
        """Look up, hold, publish what is new, release."""
        index = self.index
        row = index.match(keys[:most])
        hits = len(row)
        row += index.take(row, num_blocks - hits)
        index.publish(keys[hits:], row, hits)
        index.release(row)
        return hits


class Tree:
    """A radix cache: `RadixTree` and the blocks that are not in it, one request at a time."""

    def __init__(self, num_blocks: int, profile: Profile) -> None:
        self.tree = RadixTree(
            profile.policy, whole_nodes=profile.evict_unit == "node", split_renews=profile.split == "renews"
        )
        self.num_blocks = num_blocks
        self.free = list(range(num_blocks))

    def serve(self, keys: Sequence[int], most: int, num_blocks: int) -> int:
        """Look up, lock, evict for the rest, insert, unlock."""
        tree = self.tree
        contents = [key.to_bytes(8, "little") for key in keys]
        found = tree.find(contents[:most])
        needed, hits = num_blocks - found.num_blocks, found.num_blocks
        if needed > len(self.free) + tree.num_evictable - tree.num_takeable(found):
            raise OutOfBlocksError(f"{num_blocks} blocks are needed, but there are {self.num_blocks}")
        match = tree.take(found)
        tree.lock(match.node)
        self.free += tree.evict(max(0, needed - len(self.free)))
        own = [self.free.pop() for _ in range(needed)]
        inserted = tree.insert(
            contents, match.blocks + own[: len(keys) - hits], below=match.node, counted=hits
        )
        tree.unlock(match.node)
        self.free += [*inserted.duplicates, *own[len(keys) - hits :]]
        return hits


class Replay:
    """A trace, a profile, and how its hits are counted.

    Raises: ArgumentError if the profile is unknown, keeps one prefix a slot (a trace does not name slots), or
    keys partial tails that the trace has no ids for.
    """

    def __init__(self, trace: Trace, profile: Profile | str, *, warm_up: float = 0.0) -> None:
        self.profile = profile_of(profile)
        if self.profile.structure not in CACHES:
            raise ArgumentError(
                f"profile = {self.profile.name!r} keeps one prefix in each slot, and a trace names no slots; "
                f"expected a profile whose structure is {' or '.join(CACHES)}"
            )
        release, tail = self.profile.release, self.profile.tail
        self.counting = Counting(
            touch="head_first" if release == "head_first" else "tail_first",
            tail="keyed" if tail == "keyed" else "full_blocks",
            warm_up=warm_up,
        )
        self.trace = self.counting.applied_to(trace)

    @property
    def cache(self) -> str:
        """What is replayed, and which of it nobody has shown."""
        unsure = f" ({', '.join(self.profile.unverified)} unverified)" if self.profile.unverified else ""
        return f"{self.profile.structure} cache as {self.profile.name} runs it{unsure}"

    @property
    def rule(self) -> str:
        """How hits are counted, in words."""
        return f"{self.counting}; {_LAST[self.profile.last_token]}"

    def at(self, capacity: int | None, *, done: Callable[[int], object] = lambda n: None) -> HitRates:
        """Replay at one capacity, and return the rates; a request that does not fit hits nothing.

        `capacity` counts blocks, None is one that never evicts. `done` is told, now and then, how many more
        requests have been served.
        Raises: ArgumentError if the capacity is no count.
        """
        trace, size = self.trace, self.trace.block_size
        held = -(-trace.input_lengths // size)
        enough = max(1, int(held.sum()))  # so many are never used up, whatever is kept twice
        blocks = enough if capacity is None else min(check_count("capacity", capacity), enough)
        cache = CACHES[self.profile.structure](blocks, self.profile)
        most = held if self.profile.last_token != "block_floor" else (trace.input_lengths - 1) // size
        keys, starts = trace.blocks.tolist(), trace.starts.tolist()
        hits, refused = [], 0
        for at, (limit, needed) in enumerate(zip(most.tolist(), held.tolist(), strict=True)):
            try:
                hits.append(cache.serve(keys[starts[at] : starts[at + 1]], limit, needed))
            except OutOfBlocksError:
                hits.append(0)
                refused += 1
            if at % STRIDE == STRIDE - 1:
                done(STRIDE)
        done(trace.num_requests % STRIDE)
        hit = np.array(hits, np.int64)
        can = trace.input_lengths - (self.profile.last_token == "token")
        return rates_of(trace, self.counting, capacity, hit, np.minimum(hit * size, can), refused=refused)


#: Structure of a profile -> the cache that serves it.
CACHES: dict[str, Callable[[int, Profile], Served]] = {"chain": Chain, "radix": Tree}
