"""The hit curve of LRU: what every capacity would hit, from one pass over a trace.

LRU with room for C blocks holds the C blocks touched last, whatever C is. So a block is there if and only if
fewer than C other blocks were touched since its own last touch: its stack distance, itself included, is
at most C. One distance per reference answers for all capacities at once (Mattson et al. 1970).

A hit of a prefix needs more: the block and all blocks before it. Block i of a request is part of the hit at
capacity C if and only if the largest distance among blocks 0..i is at most C, so the running maximum
within the request takes the place of the distance. This is exact under both orders of touch: distances are
those at the moment of lookup, before the request touches anything, so the order within the request cannot
change what it finds. It only changes what later requests find, and there it is part of the distance.
Touched tail first, a block is always less recent than its predecessor, so distances never fall along a
request and the running maximum changes nothing. Touched head first, a predecessor is older and leaves first;
what follows it stays behind and is found by nobody, and the running maximum says so.

How a distance is computed: number all touches by time. A reference at lookup time S whose block was last
touched at p has seen S - 1 - p touches since. Those of blocks that were touched before within that stretch
count twice or more; there is one such repetition for each touch s < S whose own previous touch lies after p.
So with `prev` for the previous touch of a block,

    distance = S - p - #{s < S : prev(s) > p},

and what is left is counting, for each element of a list, the earlier elements that are larger.

Realises: KV-PREFIX-024 eviction-order (lru_tail_first, lru_head_first), for requests that run one at a time.
For porters: `larger_before` is a Fenwick tree in other languages; the rest is three lines.
Source: Mattson, Gecsei, Slutz, Traiger, Evaluation techniques for storage hierarchies (1970).
"""

from dataclasses import dataclass

import numpy as np

from kvref.arrays import Array, check_count
from kvref.errors import ArgumentError, shown
from kvref.planning.counting import Counting, HitRates, Touch, rates_of
from kvref.planning.traces import Trace

#: The distance of a block that was never touched before.
NEVER = np.iinfo(np.int64).max


def larger_before(ranks: Array) -> Array:
    """Return, for each element of a permutation of 0..n-1, how many earlier elements are larger. [n]

    One round per bit, the highest first. Elements that agree in all higher bits stand together, in their
    first order: as the ranks are a permutation, at just the places whose index has these bits too. Two
    elements part at the first bit in which they differ; the larger one has a one there, and is counted then.

    >>> larger_before(np.array([2, 0, 3, 1])).tolist()
    [0, 1, 0, 2]
    """
    n = len(ranks)
    at = np.arange(n)
    found = np.zeros(n, np.int64)  # in the order of `order`, which ends up sorted by rank
    order = ranks.astype(np.int64)  # the elements, named by their ranks
    for bit in reversed(range(max(n - 1, 0).bit_length())):
        ones = order >> bit & 1
        before = np.concatenate([[0], np.cumsum(ones)])  # ones before each place
        start = at >> bit + 1 << bit + 1  # where the place's group begins
        ones_before = before[:-1] - before[start]
        found += np.where(ones, 0, ones_before)
        to = start + np.where(ones, (1 << bit) + ones_before, at - start - ones_before)
        order, found = _moved(order, to), _moved(found, to)
    return found[ranks]


def stack_distances(trace: Trace, touch: Touch) -> Array:
    """Return the stack distance of each block asked for, at lookup; `NEVER` if it is new. [num_blocks]"""
    n, request = len(trace.blocks), trace.request_of_blocks()
    begins = trace.starts[request]
    times = np.arange(n)
    if touch == "tail_first":
        times = begins + trace.starts[request + 1] - 1 - times
    by_block = np.argsort(trace.blocks, kind="stable")  # references of one block together, in their order
    again = trace.blocks[by_block[1:]] == trace.blocks[by_block[:-1]]
    prev = np.full(n, -1)
    prev[by_block[1:][again]] = times[by_block[:-1][again]]

    repeated = np.flatnonzero(prev >= 0)
    # within a request by rising `prev`, so that none of its own touches is counted
    repeated = repeated[np.lexsort((prev[repeated], request[repeated]))]
    ranks = np.empty(len(repeated), np.int64)
    ranks[np.argsort(prev[repeated])] = np.arange(len(repeated))
    distances = np.full(n, NEVER)
    distances[repeated] = begins[repeated] - prev[repeated] - larger_before(ranks)
    return distances


def prefix_capacities(trace: Trace, distances: Array) -> Array:
    """Return the least capacity at which each block is part of a hit: the running maximum. [num_blocks]"""
    known = np.minimum(distances, len(trace.blocks) + 1)
    lift = trace.request_of_blocks() * (len(trace.blocks) + 2)  # lifts each request above the one before
    highest = np.maximum.accumulate(known + lift) - lift
    return np.where(highest > len(trace.blocks), NEVER, highest)


@dataclass(frozen=True, eq=False)
class HitCurve:
    """What a trace hits at every capacity of LRU, requests one at a time."""

    trace: Trace
    counting: Counting
    needs: Array
    """[num_blocks] the least capacity at which each block hits."""

    @classmethod
    def of(cls, trace: Trace, counting: Counting | None = None) -> "HitCurve":
        """Compute the curve of a trace.

        Raises: ArgumentError if the trace has no blocks, or not those that the rule counts.
        """
        counting = Counting() if counting is None else counting
        if not isinstance(counting, Counting):
            raise ArgumentError(f"counting = {shown(counting)}, expected a Counting")
        applied = counting.applied_to(trace)
        return cls(applied, counting, prefix_capacities(applied, stack_distances(applied, counting.touch)))

    def at(self, capacity: int | None) -> HitRates:
        """Return the rates at one capacity in blocks, or of a cache that never evicts (None).

        A request of more blocks than the capacity leaves those that it touched last.
        Raises: ArgumentError if the capacity is no count of blocks.
        """
        limit = NEVER - 1 if capacity is None else check_count("capacity", capacity)
        hit = self.needs <= limit
        request, size = self.trace.request_of_blocks(), self.trace.num_requests
        blocks = np.bincount(request[hit], minlength=size)
        tokens = np.bincount(request[hit], self.trace.tokens_of_blocks()[hit], size).astype(np.int64)
        return rates_of(self.trace, self.counting, capacity, blocks, tokens)

    def points(self) -> tuple[Array, Array, Array]:
        """Return where the curve rises: capacities, and hits in blocks and in tokens from there on.

        Shapes: [num_points] each, the capacities rising. Below the first of them nothing hits.
        """
        request, first = self.trace.request_of_blocks(), self.counting.first_counted(self.trace)
        counted = (self.needs < NEVER) & (request >= first)
        needs = self.needs[counted]
        blocks = np.bincount(needs)
        tokens = np.bincount(needs, self.trace.tokens_of_blocks()[counted])
        capacities = np.flatnonzero(blocks)
        return capacities, np.cumsum(blocks[capacities]), np.cumsum(tokens[capacities]).astype(np.int64)


def _moved(x: Array, to: Array) -> Array:
    moved = np.empty_like(x)
    moved[to] = x
    return moved
