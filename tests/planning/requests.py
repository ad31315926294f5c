"""Requests drawn at random, and LRU played directly: what the hit curve is compared with."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from kvref.planning.counting import Touch
from kvref.planning.trace_lines import TraceRequest
from kvref.planning.traces import Trace

BLOCK = 4


class Played(NamedTuple):
    """What a direct simulation found."""

    hits: list[int]
    """Blocks of each request's prefix that were there at lookup."""
    single: list[int]
    """Blocks of each request that were there at lookup, wherever they stand."""
    contents: list[frozenset[int]]
    """What was cached after each request."""


def lru(requests: Iterable[Sequence[int]], capacity: int, touch: Touch, *, refuse: bool = False) -> Played:
    """Play LRU block by block, on a few blocks; `refuse` turns requests larger than the capacity away."""
    cache: OrderedDict[int, None] = OrderedDict()
    played = Played([], [], [])
    for blocks in requests:
        there = [block in cache for block in blocks]
        played.hits.append(there.index(False) if False in there else len(there))
        played.single.append(sum(there))
        for block in blocks if touch == "head_first" else reversed(blocks):
            if refuse and len(blocks) > capacity:
                break
            cache[block] = None
            cache.move_to_end(block)
            if len(cache) > capacity:
                cache.popitem(last=False)
        played.contents.append(frozenset(cache))
    return played


def plain_lru(requests: Iterable[Sequence[int]], capacity: int, touch: Touch) -> list[int]:
    """Play LRU at full speed and return the hits of each request."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = []
    for blocks in requests:
        hit = 0
        for block in blocks:
            if block not in cache:
                break
            hit += 1
        hits.append(hit)
        for block in blocks if touch == "head_first" else reversed(blocks):
            if block in cache:
                cache.move_to_end(block)
            else:
                cache[block] = None
                if len(cache) > capacity:
                    cache.popitem(last=False)
    return hits


def lists_of(trace: Trace) -> list[list[int]]:
    """The blocks of each request."""
    return [trace.blocks[a:b].tolist() for a, b in zip(trace.starts[:-1], trace.starts[1:], strict=True)]


def trace_of(prompts: Iterable[Sequence[int]], tails: Iterable[int] = ()) -> Trace:
    """A trace of prompts, each a sequence of symbols that stand for a block's content.

    The last block of a prompt has BLOCK tokens, or fewer where `tails` says so.
    """
    ids: dict[tuple[tuple[int, ...], int], int] = {}
    requests = []
    rests = dict(enumerate(tails))
    for line, prompt in enumerate(prompts, 1):
        prefixes = [tuple(prompt[: end + 1]) for end in range(len(prompt))]
        tokens = len(prompt) * BLOCK - (BLOCK - rests.get(line - 1, BLOCK))
        ends = [min(end * BLOCK, tokens) for end in range(1, len(prompt) + 1)]
        pairs = zip(prefixes, ends, strict=True)
        named = tuple(ids.setdefault(pair, 7 * len(ids) + 3) for pair in pairs)
        requests.append(TraceRequest(line, float(line), tokens, line % 3, named))
    return Trace.of(requests, name="drawn", block_size=BLOCK)


@st.composite
def traces(draw: st.DrawFn, max_requests: int = 14) -> Trace:
    """Traces in which prompts share beginnings, and some end in a partial block."""
    prompts = st.lists(st.integers(0, 2), min_size=1, max_size=5)
    drawn = draw(st.lists(prompts, min_size=1, max_size=max_requests))
    tails = draw(st.lists(st.integers(1, BLOCK), min_size=len(drawn), max_size=len(drawn)))
    return trace_of(drawn, tails)
