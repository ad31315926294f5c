"""Every argument of every call on a cache, a pool or its tables, given everything that it cannot be."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from memory.graphs import graph_of

from kvref.errors import KVError
from kvref.memory.blocks import BlockPool
from kvref.memory.contiguous import ContiguousPool
from kvref.memory.keys import block_keys, namespace_key
from kvref.memory.labels import Labels
from kvref.memory.namespace import COMMON, Namespace, Span
from kvref.memory.prefix_cache import PrefixCache
from kvref.memory.profiles import Profile
from kvref.memory.radix import RadixTree
from kvref.memory.radix_cache import RadixCache
from kvref.memory.slots import SlotCache
from kvref.memory.tables import BlockTables
from kvref.memory.vllm_keys import cbor, event_hash, vllm_block_keys, with_group

Cache = PrefixCache | RadixCache | SlotCache

LARGE = [2**63, 2**200, 10**5000, -(10**5000)]  # Python does not spell the last two
NO_COUNT: list[Any] = [
    *(-1, True, False, np.True_, 1.0, np.float64(2), float("nan"), 1j, "1", b"1", [], {}, object()),
    *(np.array([1]), np.array(1), *LARGE),
]
#: Beside these, a list that holds any of NO_COUNT.
NO_LIST: list[Any] = [None, 5, 1.0, True, "12", b"12", bytearray(b"1"), {1}, frozenset({1}), {1: 2}, object()]
NO_TOKENS = [
    *NO_LIST,
    *([value] for value in NO_COUNT if value is not LARGE[0]),
    [2**64],
    [None],
    np.zeros((2, 2)),
]
NO_BLOCKS = [*NO_TOKENS, [2**63], [99]]
NO_NAMESPACE = [None, "x", 5, {}, (), object()]

#: An argument: a value that is fine, and those that are not.
Argument = tuple[Any, list[Any]]
REQUEST: Argument = (2, [None, 99, *NO_COUNT])
NEW: Argument = (7, [None, 2, *NO_COUNT])
CHUNK: Argument = (1, [0, *NO_COUNT])


def used_pool() -> BlockPool:
    """Held, shared, pinned, cached, free and waiting blocks."""
    pool = BlockPool(8)
    blocks = pool.allocate(3).blocks
    pool.mark_cached(blocks[:2])
    pool.free(blocks[1:2])
    pool.pin(blocks[:1])
    pool.begin_step()
    pool.free(blocks[2:])
    return pool


def used_tables() -> BlockTables:
    """Two requests that share blocks of two groups, one of them with a window."""
    tables = BlockTables(BlockPool(16), [4, 2], windows=[None, 4])
    tables.add(2)
    tables.append(2, 9)
    tables.fork(2, 3)
    tables.append(3, 1)
    tables.prune(2)
    return tables


def used_piece() -> ContiguousPool:
    """One request in one piece."""
    pool = ContiguousPool(32)
    pool.add(2, 8)
    pool.append(2, 3)
    return pool


def used(make: Callable[[], Cache]) -> Callable[[], Cache]:
    """Return what makes a cache with a request that has ended and one that has not."""

    def made() -> Cache:
        cache = make()
        cache.admit(1, range(9))
        cache.commit(1)
        cache.finish(1)
        cache.admit(2, range(12))
        cache.commit(2)
        cache.extend(2, [5, 6])
        return cache

    return made


def used_tree() -> RadixTree:
    """One prefix in two nodes, of which the first is held."""
    tree = RadixTree()
    tree.insert([b"a", b"b", b"c"], [1, 2, 3])
    tree.lock(tree.match([b"a", b"b"]).node)
    return tree


CACHE = {
    "admit": {
        "request": NEW,
        "tokens": ([1, 2], [[], *NO_TOKENS]),
        "namespace": (COMMON, NO_NAMESPACE),
        "max_new_tokens": CHUNK,
    },
    "extend": {"request": REQUEST, "tokens": ([1], NO_TOKENS), "max_new_tokens": CHUNK},
    **{verb: {"request": REQUEST} for verb in ("commit", "slots", "finish", "abort")},
}
RADIX = CACHE | {"admit": {**CACHE["admit"], "priority": (35, [None, *NO_COUNT])}}

Calls = dict[str, dict[str, Argument]]
SUBJECTS: dict[str, tuple[Callable[[], Any], Calls]] = {
    "pool": (
        used_pool,
        {
            "allocate": {"num_blocks": (1, [None, 99, *NO_COUNT])},
            **{
                verb: {"blocks": ([0], NO_BLOCKS)}
                for verb in ("free", "touch", "pin", "unpin", "mark_cached", "drop_cached")
            },
            "end_step": {"step": (1, [None, 0, 2, *NO_COUNT])},
            **{
                verb: {"block": (0, [None, 8, *NO_COUNT])}
                for verb in ("ref_count", "is_free", "is_cached", "is_writable")
            },
        },
    ),
    "tables": (
        used_tables,
        {
            "add": {"request": NEW},
            "append": {"request": REQUEST, "num_tokens": (1, [None, 99, *NO_COUNT])},
            "fork": {"parent": REQUEST, "child": NEW},
            "truncate": {"request": REQUEST, "num_tokens": (8, [None, 0, 10, *NO_COUNT])},
            "prune": {"num_settled": (9, [10, *NO_COUNT]), "request": REQUEST},
            "free": {"request": REQUEST},
            "num_tokens": {"request": REQUEST},
            "table": {"request": REQUEST, "group": (0, [None, 2, *NO_COUNT])},
            "slots": {"request": REQUEST, "group": (0, [None, 2, *NO_COUNT])},
        },
    ),
    "piece": (
        used_piece,
        {
            "add": {"request": NEW, "num_slots": (3, [None, 0, 99, *NO_COUNT])},
            "append": {"request": REQUEST, "num_tokens": (2, [None, 9, 2**62, *NO_COUNT])},
            "free": {"request": REQUEST},
        },
    ),
    "chain": (used(lambda: PrefixCache(8, block_size=4, events=True)), CACHE),
    "vllm": (used(lambda: PrefixCache(8, "vllm", 4)), CACHE),
    "lmcache": (used(lambda: PrefixCache(8, "lmcache", 4)), CACHE),
    "radix": (used(lambda: RadixCache(8, block_size=4)), RADIX),
    "sglang": (used(lambda: RadixCache(32, "sglang")), RADIX),
    "slot": (used(lambda: SlotCache(8, block_size=4)), CACHE),
    "tree": (
        used_tree,
        {
            "find": {"contents": ([b"a"], [*NO_LIST, {b"a"}]), "namespace": (COMMON, NO_NAMESPACE)},
            "match": {"contents": ([b"a"], [*NO_LIST, {b"a"}]), "namespace": (COMMON, NO_NAMESPACE)},
            "insert": {
                "contents": ([b"a", b"x"], [*NO_LIST, [b"a"]]),
                "blocks": ([1, 9], [*NO_LIST, [1], [1, 2], [2, 9], [9, 9], [1, True], [1, 2.0], [1, None]]),
                "namespace": (COMMON, NO_NAMESPACE),
                "priority": (0, [None, *NO_COUNT]),
                "counted": (0, [None, *NO_COUNT]),
            },
            **{verb: {"node": (None, [None, 5, object()])} for verb in ("lock", "unlock", "access")},
            "evict": {"num_blocks": (1, [None, *NO_COUNT])},
            "take": {"found": (None, [None, 5, object()])},
        },
    ),
    "labels": (
        lambda: Labels(tokens=range(20)),
        {
            "extend": {"tokens": ([1], [*NO_LIST, [1.0], ["1"], [-1], *([n] for n in LARGE)])},
            "cut": {"num_tokens": (4, [None, 21, *NO_COUNT])},
        },
    ),
}
CALLS = [(subject, verb) for subject, (_, calls) in SUBJECTS.items() for verb in calls]


@pytest.mark.parametrize(("subject", "verb"), CALLS)
def test_what_an_argument_cannot_be_is_refused_and_changes_nothing(subject: str, verb: str) -> None:
    """An error of kvref, which names the argument and what was expected, in a line that can be read."""
    make, calls = SUBJECTS[subject]
    fine = {name: good for name, (good, _) in calls[verb].items()}
    for name, (_, wrong) in calls[verb].items():
        x = make()
        before = graph_of(x)
        for value in wrong:
            with pytest.raises(KVError, match=name) as raised:
                getattr(x, verb)(**{**fine, name: value})
            assert "expected" in str(raised.value) or ", but " in str(raised.value)
            assert len(str(raised.value)) < 250
            assert graph_of(x) == before, (name, type(value))


@pytest.mark.parametrize("subject", ["chain", "vllm", "lmcache", "radix", "sglang", "slot"])
def test_tokens_that_call_the_cache_while_they_are_read(subject: str) -> None:
    """The call they are an argument of has not begun, so it finds the cache as they leave it."""
    cache = SUBJECTS[subject][0]()

    def admitting() -> Iterator[int]:
        cache.admit(7, [1, 2])
        yield 3

    def finishing() -> Iterator[int]:
        cache.finish(2)
        yield 3

    with pytest.raises(KVError, match="request = 7 is there already"):
        cache.admit(7, admitting())
    with pytest.raises(KVError, match="request = 2, expected one that was admitted"):
        cache.extend(2, finishing())
    cache.finish(7)
    cache.check_invariants()
    assert cache.num_free == (32 if subject == "sglang" else 7 if subject == "vllm" else 8)


def test_a_prefix_found_before_the_tree_changed_is_not_taken() -> None:
    """Evicted as a whole, evicted in part, split elsewhere, or found in a namespace that came after."""
    tree = RadixTree()
    nothing = tree.find([b"x"])
    tree.insert([b"a", b"b", b"c"], [1, 2, 3])
    whole, part = tree.find([b"a", b"b", b"c"]), tree.find([b"a", b"b"])
    tree.evict(1)
    for stale in (nothing, whole):
        with pytest.raises(KVError, match="found"):
            tree.take(stale)
    assert tree.take(part).blocks == [1, 2]
    tree.evict(2)
    with pytest.raises(KVError, match="found"):
        tree.take(part)
    tree.check_invariants()


def test_contents_may_be_any_sequence() -> None:
    """A tuple is compared as a list is."""
    tree = RadixTree()
    tree.insert((b"a", b"b", b"c"), (1, 2, 3))
    assert tree.match((b"a", b"b", b"x")).blocks == [1, 2]
    assert tree.insert((b"a", b"b", b"c"), (4, 2, 3)).duplicates == [4]
    tree.check_invariants()


WRONG: list[tuple[str, Callable[[], object]]] = [
    ("pool", lambda: BlockTables(None, [4])),  # type: ignore[arg-type]
    ("plain", lambda: BlockPool(4, plain=np.array(["front", "back"]))),  # type: ignore[arg-type]
    ("digest", lambda: PrefixCache(4, digest=None)),  # type: ignore[arg-type]
    ("digest", lambda: PrefixCache(4, digest=lambda m: "x").admit(1, range(17))),  # type: ignore[arg-type, return-value]
    ("digest", lambda: block_keys([1], 1, digest=5)),  # type: ignore[arg-type]
    ("digest", lambda: namespace_key(COMMON, lambda m: "x")),  # type: ignore[arg-type, return-value]
    ("namespace", lambda: Labels(None)),  # type: ignore[arg-type]
    ("unverified", lambda: Profile(name="a", source="b", unverified=None)),  # type: ignore[arg-type]
    ("unverified", lambda: Profile(name="a", source="b", unverified=["plain"])),  # type: ignore[arg-type]
    ("kind", lambda: Span(kind=np.array(["media"]), digest="d", offset=0, length=1)),  # type: ignore[arg-type]
    ("salt", lambda: Namespace(salt=10**5000)),  # type: ignore[arg-type]
    ("group", lambda: with_group(b"", 2**32)),
    ("key", lambda: with_group("x", 0)),  # type: ignore[arg-type]
    ("key", lambda: event_hash(5)),  # type: ignore[arg-type]
    ("embeddings", lambda: vllm_block_keys([1, 2], 1, embeddings=[1, 2])),  # type: ignore[list-item]
    ("embeddings", lambda: vllm_block_keys([1, 2], 1, embeddings=[b""] * 3)),
    *(("value", lambda value=value: cbor(value)) for value in (True, 1.0, 2**64, -(2**64) - 1, {}, "\ud800")),
]


@pytest.mark.parametrize(("name", "call"), WRONG, ids=[name for name, _ in WRONG])
def test_what_else_cannot_be_is_refused(name: str, call: Callable[[], object]) -> None:
    """Constructors and functions name the argument as well."""
    with pytest.raises(KVError, match=name):
        call()


def test_blocks_of_any_size_have_keys() -> None:
    """Too few tokens for a block: no key, though the size of a block fits no 32 bits."""
    assert block_keys([1, 2], 2**40) == []
