"""The index of a prefix cache: keys over a pool, their copies, contents compared, and LRU over keys alone."""

import gzip
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory.states import state_of

from kvref.errors import ArgumentError, OutOfBlocksError, OwnershipError
from kvref.memory.content import Content, contents, equal, root
from kvref.memory.copies import Copies
from kvref.memory.lru_keys import LruKeys
from kvref.memory.namespace import COMMON, Namespace
from kvref.memory.prefix import PrefixIndex
from kvref.memory.profiles import PROFILES, Profile

KVREF = PROFILES["kvref"]
TRACE = Path(__file__).parents[1] / "data" / "traces" / "mooncake_conversation_trace.jsonl.gz"
#: Capacity in blocks -> hit rate by blocks and by tokens (golden_figures.json of the founding document).
HIT_RATES = {
    10**6: (0.3664, 0.3736),
    100_000: (0.3637, 0.3708),
    50_000: (0.3546, 0.3615),
    30_000: (0.3257, 0.3321),
    10_000: (0.2112, 0.2153),
    1_000: (0.0445, 0.0454),
}

#: Requests as the ids of their prefixes: each id is the whole prefix, so equal ids follow equal ids.
REQUESTS = st.lists(
    st.lists(st.integers(0, 1), min_size=1, max_size=5).map(
        lambda steps: [tuple(steps[:stop]) for stop in range(1, len(steps) + 1)]
    ),
    max_size=30,
)


@cache
def requests() -> list[tuple[list[int], int]]:
    """Ids of blocks, and tokens, of the Mooncake conversation trace."""
    with gzip.open(TRACE) as lines:
        return [(line["hash_ids"], line["input_length"]) for line in map(json.loads, lines)]


@pytest.mark.parametrize("capacity", HIT_RATES)
def test_lru_over_a_real_trace_has_the_known_hit_rates(capacity: int) -> None:
    """Prefix hits, head first, every input block counted; weighted by blocks and by tokens."""
    lru: LruKeys[int] = LruKeys(capacity)
    hits = [(lru.serve(ids), tokens) for ids, tokens in requests()]
    by_blocks = sum(hit for hit, _ in hits) / sum(len(ids) for ids, _ in requests())
    by_tokens = sum(min(512 * hit, tokens) for hit, tokens in hits) / sum(tokens for _, tokens in hits)
    assert (round(by_blocks, 4), round(by_tokens, 4)) == HIT_RATES[capacity]
    assert len(lru) == min(capacity, 182_790)


@pytest.mark.parametrize("capacity", [1_000, 10_000])
def test_cache_of_blocks_has_the_same_hits_on_a_real_trace(capacity: int) -> None:
    """The cache itself, on keys that came with the trace, hits as often as LRU over keys alone."""
    index: PrefixIndex[int] = PrefixIndex(capacity, "plain-lru")
    lru: LruKeys[int] = LruKeys(capacity)
    found = wanted = 0
    for ids, _ in requests():
        found += index.serve(ids)
        wanted += lru.serve(ids)
    assert found == wanted
    index.check_invariants()


@given(REQUESTS, st.integers(5, 12))
def test_lru_keys_are_those_touched_last(served: list[Any], capacity: int) -> None:
    """One key after the other through an OrderedDict, which evicts as soon as it is over."""
    for release in ("head_first", "tail_first"):
        lru: LruKeys[Any] = LruKeys(capacity, release)
        plain: OrderedDict[Any, None] = OrderedDict()
        for keys in served:
            hits = next((at for at, key in enumerate(keys) if key not in plain), len(keys))
            for key in keys if release == "head_first" else keys[::-1]:
                plain[key] = None
                plain.move_to_end(key)
                if len(plain) > capacity:
                    plain.popitem(last=False)
            assert lru.serve(keys) == hits
            assert lru.order() == list(plain)


@given(REQUESTS, st.integers(5, 12))
def test_cache_served_one_at_a_time_is_lru(served: list[Any], capacity: int) -> None:
    """Tail first, a block never outlives the one before it, so both hold the same keys at any time."""
    index: PrefixIndex[Any] = PrefixIndex(capacity, replace(PROFILES["plain-lru"], release="tail_first"))
    lru: LruKeys[Any] = LruKeys(capacity, "tail_first")
    for keys in served:
        assert index.serve(keys) == lru.serve(keys)
        assert index.evictions == lru.evictions
        index.check_invariants()


@given(REQUESTS, st.integers(5, 9), st.sampled_from(["keep", "free", "adopt"]), st.booleans())
def test_what_is_found_was_published_under_its_key(
    served: list[Any], capacity: int, duplicates: str, head: bool
) -> None:
    """Whatever becomes of copies and in whatever order blocks go; a run ends where a key is missing."""
    profile = replace(KVREF, duplicates=duplicates, release="head_first" if head else "tail_first")
    index: PrefixIndex[Any] = PrefixIndex(capacity, profile)
    memory: dict[int, Any] = {}
    for keys in served:
        row = index.match(keys)
        hits = len(row)
        assert [memory[block] for block in row] == keys[:hits]
        assert hits == len(keys) or index.find(keys[hits]) is None
        row += index.take(row, len(keys) - hits)
        memory.update(zip(row[hits:], keys[hits:], strict=True))
        index.publish(keys[hits:], row, hits)
        assert [memory[block] for block in row] == keys
        index.release(row)
        index.check_invariants()
    assert index.pool.num_free == capacity


def test_match_ends_at_the_first_missing_block() -> None:
    """What lies beyond it is there, and is no prefix."""
    index: PrefixIndex[int] = PrefixIndex(6, KVREF)
    assert index.serve([1, 2, 3, 4]) == 0
    index.withdraw([1])
    assert index.match([1, 2, 3, 4]) == [0]
    assert [index.find(key) for key in (2, 3, 4)] == [None, 2, 3]


def test_hits_nobody_holds_use_up_free_blocks() -> None:
    """Three of four free blocks are the hit; two more cannot be had, and counting late would take them."""
    index: PrefixIndex[int] = PrefixIndex(4, KVREF)
    index.serve([1, 2, 3])
    row = index.match([1, 2, 3, 4, 5])
    before = state_of(index)
    with pytest.raises(OutOfBlocksError, match="2 blocks are needed, but 1 of 4 can be had"):
        index.take(row, 2)
    assert state_of(index) == before
    assert index.take(row, 1) == [3]
    assert index.pool.num_free == 0
    assert index.take(row, 0) == []  # held twice now, which takes nothing more


def test_request_larger_than_the_cache_is_refused() -> None:
    """And changes nothing, in the cache and in its short form."""
    both: tuple[Any, ...] = (PrefixIndex(3, KVREF), LruKeys(3))
    for served in both:
        served.serve([1, 2])
        before = state_of(served)
        with pytest.raises(OutOfBlocksError):
            served.serve([1, 2, 3, 4])
        assert state_of(served) == before


def test_reset_needs_all_blocks_back() -> None:
    """A held block would be written by the new model and read by the old."""
    index: PrefixIndex[int] = PrefixIndex(3, KVREF)
    index.serve([1, 2])
    held = index.match([1])
    index.take(held, 0)
    with pytest.raises(OwnershipError, match="1 blocks are held, expected none"):
        index.reset()
    index.release(held)
    index.reset()
    assert (index.match([1]), index.is_published(0), index.pool.num_free) == ([], False, 3)


def test_oldest_copy_answers() -> None:
    """And when it goes, the one that came after it."""
    copies: Copies[int] = Copies()
    for block in (7, 3, 5):
        copies.add(1, block)
    for block, rest in ((7, [3, 5]), (5, [3]), (3, [])):
        copies.drop([block])
        assert copies.every(1) == rest


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans()), max_size=40))
def test_copies_are_a_map_of_lists(calls: list[tuple[int, int, bool]]) -> None:
    """Against a dict of lists: the oldest answers, and a key without blocks is gone."""
    copies: Copies[int] = Copies()
    plain: dict[int, list[int]] = {}
    for key, block, add in calls:
        known = any(block in blocks for blocks in plain.values())
        if add and not known:
            copies.add(key, block)
            plain.setdefault(key, []).append(block)
        elif not add:
            copies.drop([block])
            plain = {k: [b for b in blocks if b != block] for k, blocks in plain.items()}
            plain = {k: blocks for k, blocks in plain.items() if blocks}
        copies.check_invariants()
        assert {k: copies.every(k) for k in range(4) if copies.every(k)} == plain
        assert [copies.first(k) for k in range(4)] == [plain.get(k, [None])[0] for k in range(4)]
        assert len(copies) == len(plain)


@pytest.mark.parametrize(
    ("keys", "new"), [((5, 6), True), ((), True), ((5, 5), False), ((1, 5), False), ((5, 1), False)]
)
def test_keys_are_added_at_once_only_if_all_are_new(keys: Sequence[int], new: bool) -> None:
    """Otherwise nothing is added: some blocks are copies, one by one."""
    copies: Copies[int] = Copies()
    copies.add(1, 0)
    before = state_of(copies)
    assert copies.add_new(keys, range(10, 10 + len(keys))) is new
    assert new or state_of(copies) == before
    copies.check_invariants()


MESSAGES = st.lists(st.sampled_from([b"a", b"b"]), max_size=5)
SALTS = st.sampled_from([COMMON, Namespace(salt="x")])


@given(MESSAGES, SALTS, MESSAGES, SALTS)
def test_contents_are_equal_from_the_namespace_on(
    a: list[bytes], a_in: Namespace, b: list[bytes], b_in: Namespace
) -> None:
    """And linked if they are, so that the next comparison ends at once."""

    def chain(messages: list[bytes], namespace: Namespace) -> list[Content]:
        start = root(namespace)
        return [start, *contents(messages, start)]

    x, y = chain(a, a_in)[-1], chain(b, b_in)[-1]
    assert equal(x, y) == ((a, a_in) == (b, b_in))
    if equal(x, y):
        assert x.before is y.before


@pytest.mark.parametrize(
    ("capacity", "release"), [(0, "head_first"), (1.5, "head_first"), (3, "middle"), (3, None)]
)
def test_impossible_cache_is_refused(capacity: Any, release: Any) -> None:
    """A capacity is a count, and a request has two ends."""
    with pytest.raises(ArgumentError):
        LruKeys(capacity, release)


def test_unknown_profile_is_refused() -> None:
    """By name; a profile of any structure may say what becomes of blocks."""
    with pytest.raises(ArgumentError, match="profile = 'lru', expected a Profile or one of"):
        PrefixIndex(3, "lru")
    profile: Profile = PrefixIndex(3, "vllm").profile
    assert profile.null_block
