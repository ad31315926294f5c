"""A prefix cache over keys: hits, evictions and refusals, on real workloads and under any operations."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant, run_state_machine_as_test
from memory.prefix_shadow import Requests
from memory.states import state_of
from memory.workloads import BLOCK_SIZE, NUM_BLOCKS, digest, oracles, w1, w3

from kvref.errors import ArgumentError, KVError, OutOfBlocksError, OwnershipError, UnknownRequestError
from kvref.memory.cache_events import Cleared, Removed, Stored
from kvref.memory.keys import block_keys, sha256
from kvref.memory.namespace import COMMON, Namespace, Span
from kvref.memory.prefix_cache import PrefixCache
from kvref.memory.profiles import PROFILES, Profile
from kvref.memory.tables import Copy

KVREF = PROFILES["kvref"]


def two_bits(message: bytes) -> bytes:
    """A digest under which a quarter of all contents have the same key."""
    return bytes([hashlib.sha256(message).digest()[0] & 3])


MACHINES: dict[str, tuple[Profile, Callable[[bytes], bytes]]] = {
    "kvref": (KVREF, sha256),
    "vllm": (PROFILES["vllm"], sha256),
    "lmcache": (PROFILES["lmcache"], sha256),
    "plain-lru": (PROFILES["plain-lru"], sha256),
    "adopt": (replace(KVREF, duplicates="adopt"), sha256),
    "finished": (replace(KVREF, publish="finished", duplicates="free", plain="back"), sha256),
    "tail": (replace(KVREF, tail="keyed", last_token="token"), sha256),
    "weak keep": (KVREF, two_bits),
    "weak free": (replace(KVREF, duplicates="free", release="head_first"), two_bits),
    "weak adopt": (replace(KVREF, duplicates="adopt", release="head_first"), two_bits),
    "weak tail": (replace(KVREF, tail="keyed", last_token="none", cached_outputs=False), two_bits),
    "constant": (KVREF, lambda message: b""),
}


@pytest.mark.parametrize("name", MACHINES)
def test_every_request_reads_its_own_prefix(name: str) -> None:
    """Whatever is admitted, extended, computed and ended in whatever order, on a pool that is too small."""
    profile, weak = MACHINES[name]

    class Machine(Requests):
        capacity = 9
        make = staticmethod(lambda: PrefixCache(9 + profile.null_block, profile, 3, digest=weak))

    run(Machine)


@pytest.mark.parametrize("name", ["kvref", "vllm", "lmcache", "adopt", "finished", "tail"])
def test_mirror_of_events_is_the_cache(name: str) -> None:
    """A key is stored once, under its parent, with its tokens; whoever follows knows what is there."""
    profile, _ = MACHINES[name]

    class Machine(Requests):
        capacity = 9
        make = staticmethod(lambda: PrefixCache(9 + profile.null_block, profile, 3, events=True))

        def __init__(self) -> None:
            super().__init__()
            self.mirror: dict[bytes, bytes | None] = {}

        @invariant()
        def mirror_equals(self) -> None:
            cache: PrefixCache = self.shadow.cache
            for event in cache.take_events():
                if isinstance(event, Stored):
                    self.store(event)
                elif isinstance(event, Removed):
                    for key in event.keys:
                        del self.mirror[key]
                else:
                    self.mirror.clear()
            assert profile.tail == "keyed" or self.mirror.keys() == cache._index.keys()

        def store(self, event: Stored) -> None:
            base = replace(event.namespace, spans=())
            if event.namespace == base:
                start = 0 if event.parent is None else 3
                again = block_keys(event.tokens, 3, base, parent=event.parent, start=start)
                assert again == event.keys
            before = event.parent
            assert before is None or before in self.mirror
            assert (len(event.tokens), event.block_size) == (3 * len(event.keys), 3)
            for key in event.keys:
                assert key not in self.mirror
                self.mirror[key] = before
                before = key

    run(Machine)


def test_events_are_told_if_asked_for() -> None:
    """Removed before what the room was made for is stored; cleared by a reset."""
    cache = PrefixCache(2, KVREF, 2, events=True)
    served(cache, [(range(4), []), (range(50, 54), [])])
    cache.reset()
    old, new = block_keys(range(4), 2), block_keys(range(50, 54), 2)
    assert cache.take_events() == [
        Stored(old, None, [0, 1, 2, 3], 2, COMMON),
        Removed(old[::-1]),
        Stored(new, None, [50, 51, 52, 53], 2, COMMON),
        Cleared(),
    ]
    assert cache.take_events() == []
    with pytest.raises(ArgumentError, match="events = False, expected a cache that tells"):
        PrefixCache(2).take_events()


def run(machine: type[Requests]) -> None:
    """Draw programs and run them."""
    run_state_machine_as_test(  # type: ignore[no-untyped-call, unused-ignore]
        machine, settings=settings(max_examples=40, stateful_step_count=40)
    )


def served(cache: PrefixCache, requests: list[Any]) -> list[int]:
    """Serve prompts, with the tokens decoded after each, one at a time; return their hits in tokens."""
    hits = []
    for request, (prompt, decoded) in enumerate(requests):
        hits.append(cache.admit(request, prompt).num_cached_tokens)
        cache.commit(request)
        for token in decoded:
            cache.extend(request, [token])
            cache.commit(request)
        cache.finish(request)
    return hits


def test_hits_and_evictions_are_those_of_vllm() -> None:
    """Exactly, on shared documents and on conversations; vLLM's null block comes on top of the capacity."""
    known = oracles()["profiles"]["vllm"]
    documents: list[Any] = [(prompt, []) for prompt in w1()]
    turns = w3()
    assert digest([prompt for prompt, _ in documents]) == oracles()["digests"]["W1"]
    assert digest([prompt + decoded for prompt, decoded in turns]) == oracles()["digests"]["W3"]
    for name, requests in (("W1", documents), ("W3", turns)):
        cache = PrefixCache(NUM_BLOCKS + 1, "vllm", BLOCK_SIZE)
        hits = served(cache, requests)
        assert sum(len(prompt) for prompt, _ in requests) == known[name]["prompt_tokens"]
        assert (sum(hits), cache.evictions) == (known[name]["hit_tokens"], known[name]["evicted_blocks"])
        assert cache.num_free == NUM_BLOCKS
        if name == "W1":
            assert sum(hits[1000:]) == oracles()["last_half_W1"]["hit_tokens"]


def test_hit_leaves_the_last_token() -> None:
    """A prompt of whole blocks computes its last block again, as vLLM does for lengths 7, 8 and 9 at 4."""
    for profile in ("kvref", "vllm"):
        cache = PrefixCache(20, profile, 4)
        served(cache, [(range(12), [])])
        assert [cache.admit(n, range(n)).num_cached_tokens for n in (7, 8, 9, 3)] == [4, 4, 8, 0]


def test_hit_to_the_token_is_copied() -> None:
    """The last block is shared with nobody: the next token is written behind what is copied."""
    cache = PrefixCache(4, "lmcache", 4)
    served(cache, [(range(8), [])])
    assert cache.admit(1, range(8)) == (7, [0, 1, 2, 3, 8, 9, 10, 11], [Copy(source=1, target=2, count=3)])
    assert cache.num_free == 1  # what is copied from is held as well
    cache.commit(1)
    assert cache.num_free == 2


def test_copy_that_does_not_fit_is_computed() -> None:
    """A request that fits the pool alone is not refused for the block it would copy from."""
    cache = PrefixCache(2, "lmcache", 4)
    served(cache, [(range(8), [])])
    assert cache.admit(1, range(8)) == (4, [0, 1, 2, 3, 4, 5, 6, 7], [])


def test_keyed_tail_is_hit_by_the_same_prompt_alone() -> None:
    """And only once its request has let go of the block, which it goes on writing to."""
    cache = PrefixCache(10, replace(KVREF, tail="keyed", last_token="none", cached_outputs=False), 4)
    cache.admit(0, range(6))
    cache.commit(0)
    assert cache.admit(1, range(6)).num_cached_tokens == 4
    cache.abort(1)
    cache.extend(0, [50])
    cache.commit(0)
    cache.finish(0)
    hits = [
        cache.admit(n, prompt).num_cached_tokens for n, prompt in enumerate((range(6), range(7), range(5)))
    ]
    assert hits == [6, 4, 4]


def test_tail_that_fills_is_a_block() -> None:
    """Decoded tokens filled it; it is hit under the key of the whole block, and no more as a tail."""
    cache = PrefixCache(10, replace(KVREF, tail="keyed", last_token="none"), 4)
    served(cache, [(range(6), [6, 7])])
    cache.check_invariants()
    assert [cache.admit(n, range(n)).num_cached_tokens for n in (6, 8, 9)] == [4, 8, 8]


def test_tail_that_was_not_computed_is_not_hit() -> None:
    """Its request ended before, or was not even given a slot for it."""
    cache = PrefixCache(10, replace(KVREF, tail="keyed", last_token="none"), 4)
    for request, most in enumerate((4, None)):
        cache.admit(request, range(6), max_new_tokens=most)
        cache.finish(request)
    cache.admit(2, range(6), max_new_tokens=5)
    cache.commit(2)
    cache.finish(2)
    assert cache.admit(3, range(6)).num_cached_tokens == 4


@pytest.mark.parametrize(
    ("publish", "seen"),
    [("scheduled", [8, 8, 8, 8]), ("computed", [0, 8, 8, 8]), ("finished", [0, 0, 0, 8])],
)
def test_blocks_are_hit_from_the_time_they_are_published(publish: str, seen: list[int]) -> None:
    """At the admission of their request, at its commit, at an extension, at its end."""
    cache, hits = PrefixCache(20, replace(KVREF, publish=publish), 4), []

    def look() -> None:
        hits.append(cache.admit(9, range(9)).num_cached_tokens)
        cache.abort(9)

    cache.admit(0, range(8))
    look()
    cache.commit(0)
    look()
    cache.extend(0, [50])
    look()
    cache.finish(0)
    look()
    assert hits == seen


def test_chunk_that_was_never_computed_is_not_hit() -> None:
    """An abort takes back what was published when it was scheduled, and keeps what was computed."""
    cache = PrefixCache(20, "vllm", 4)
    cache.admit(0, range(16), max_new_tokens=8)
    cache.commit(0)
    cache.extend(0)
    cache.abort(0)
    assert cache.admit(1, range(20)).num_cached_tokens == 8


@pytest.mark.parametrize(
    ("duplicates", "cached_blocks", "slots"),
    [("keep", 4, [8, 9, 10, 11]), ("free", 2, [8, 9, 10, 11]), ("adopt", 2, [0, 1, 2, 3])],
)
def test_second_copy_is_kept_freed_or_given_up(duplicates: str, cached_blocks: int, slots: list[int]) -> None:
    """Two requests compute the same two blocks at once; both read right, and all blocks return."""
    cache = PrefixCache(8, replace(KVREF, duplicates=duplicates), 4)
    cache.admit(0, range(8))
    cache.admit(1, range(8))
    for request in (0, 1):
        cache.commit(request)
    assert (cache.slots(0)[:4], cache.slots(1)[:4]) == ([0, 1, 2, 3], slots)
    for request in (0, 1):
        cache.finish(request)
    assert (cache.num_free, cache.pool.num_cached) == (8, cached_blocks)
    assert cache.admit(2, range(9)).num_cached_tokens == 8


def test_copy_answers_when_the_first_is_evicted() -> None:
    """The key is hit as long as one of its blocks is there."""
    cache = PrefixCache(5, KVREF, 4)
    cache.admit(0, range(8))
    cache.admit(1, range(8))
    for request in (0, 1):
        cache.commit(request)
        cache.finish(request)
    cache.admit(2, range(100, 112))
    assert cache.evictions == 2
    assert cache.admit(3, range(8)).num_cached_tokens == 4


def test_copy_takes_the_place_of_a_first_that_was_evicted() -> None:
    """Where second copies are their request's alone: or what comes behind them could not be hit."""
    cache = PrefixCache(3, replace(KVREF, duplicates="free"), 1, events=True)
    cache.admit(1, [1])
    cache.admit(2, [1, 2], max_new_tokens=1)
    for request in (1, 2):
        cache.commit(request)
    cache.finish(1)
    cache.admit(3, [7, 8])
    cache.abort(3)
    assert cache.evictions == 1
    cache.take_events()
    cache.extend(2)
    cache.commit(2)
    (stored,) = cache.take_events()
    assert isinstance(stored, Stored)
    assert (stored.parent, stored.tokens) == (None, [1, 2])
    cache.finish(2)
    assert cache.admit(4, [1, 2, 3]).num_cached_tokens == 2
    cache.check_invariants()


@pytest.mark.parametrize(("outputs", "hit"), [(True, 12), (False, 8)])
def test_decoded_tokens_are_hit_unless_declared(outputs: bool, hit: int) -> None:
    """The next turn begins with the whole of the last; 9 tokens of prompt leave one for the decoded block."""
    cache = PrefixCache(20, replace(KVREF, cached_outputs=outputs), 4)
    served(cache, [(range(9), [9, 10, 11, 12])])
    assert cache.admit(1, range(20)).num_cached_tokens == hit


def test_weak_digest_is_verified_where_tokens_are_compared() -> None:
    """All keys collide. vLLM trusts them and finds a stranger's block: as safe as its digest."""
    for name, hit in (("kvref", [0, 4]), ("vllm", [4, 4])):
        cache = PrefixCache(20, name, 4, digest=lambda message: b"")
        served(cache, [(range(5), [])])
        assert cache.admit(1, range(50, 55)).num_cached_tokens == hit[0]
        assert cache.admit(2, range(5)).num_cached_tokens == hit[1]


def test_weak_digest_compares_what_came_before() -> None:
    """The second blocks are alike and the first are not: a block is what its whole prefix made it."""
    cache = PrefixCache(20, KVREF, 2, digest=lambda message: b"")
    wrote = {}
    for request, first in enumerate((1, 3)):
        wrote[first] = cache.admit(request, [first, 2, 7, 7, 0]).slots[:4]
        cache.commit(request)
    for request, first in enumerate((1, 3), start=2):
        assert cache.admit(request, [first, 2, 7, 7, 0]).slots[:4] == wrote[first]
    assert cache.admit(8, [5, 6, 7, 7, 0]).num_cached_tokens == 0


def test_namespace_decides_with_the_tokens() -> None:
    """Whatever the values depend on keeps blocks apart; an image only from its first block on."""
    image = Span(kind="media", digest="cat", offset=5, length=2)
    apart = [
        Namespace(model="m"),
        Namespace(adapter="a"),
        Namespace(adapter="a", adapter_version="2"),
        Namespace(salt="a"),
        Namespace(spans=(image,)),
        Namespace(spans=(replace(image, offset=6),)),
        Namespace(spans=(replace(image, digest="dog"),)),
        Namespace(spans=(replace(image, kind="embeddings"),)),
    ]
    cache = PrefixCache(100, KVREF, 4)
    served(cache, [(range(12), [])])
    for number, namespace in enumerate(apart):
        hit = cache.admit(number, range(12), namespace=namespace).num_cached_tokens
        assert hit == (4 if namespace.spans else 0)
        cache.commit(number)
    for number, namespace in enumerate(apart):
        again = cache.admit(100 + number, range(12), namespace=replace(namespace)).num_cached_tokens
        assert again == 8


def test_next_turn_hits_what_was_decoded_after_an_image() -> None:
    """Blocks that fill later stand where they stand, behind the rows of the image."""
    namespace = Namespace(spans=(Span(kind="media", digest="cat", offset=1, length=2),))
    cache = PrefixCache(20, KVREF, 4)
    cache.admit(0, range(5), namespace=namespace)
    for token in range(5, 12):
        cache.extend(0, [token])
    cache.commit(0)
    cache.finish(0)
    assert cache.admit(1, range(13), namespace=namespace).num_cached_tokens == 12


def test_reset_forgets_and_is_refused_while_a_request_is_there() -> None:
    """New weights make every slot a slot of the old ones."""
    cache = PrefixCache(8, KVREF, 4)
    served(cache, [(range(8), [])])
    cache.admit(1, [5])
    before = state_of(cache)
    with pytest.raises(OwnershipError, match=r"1 requests hold blocks, expected none \(KV-PREFIX-015"):
        cache.reset()
    assert state_of(cache) == before
    cache.finish(1)
    cache.reset()
    assert (cache.num_free, cache.pool.num_cached) == (8, 0)
    assert cache.admit(2, range(9)).num_cached_tokens == 0


def test_reset_waits_for_steps_in_flight() -> None:
    """A step that was begun may still write the blocks of a request that has ended."""
    cache = PrefixCache(8, KVREF, 4)
    step = cache.pool.begin_step()
    served(cache, [(range(8), [])])
    with pytest.raises(OwnershipError, match="2 blocks are held"):
        cache.reset()
    assert cache.admit(1, range(8)).num_cached_tokens == 4
    cache.finish(1)
    cache.pool.end_step(step)
    cache.reset()
    assert cache.num_free == 8


def busy() -> PrefixCache:
    """A cache with something published, one request that runs, and three of ten blocks that can be had."""
    cache = PrefixCache(10, KVREF, 4)
    served(cache, [(range(12), [])])
    cache.admit(1, range(40, 68), max_new_tokens=27)
    return cache


REFUSED: dict[str, tuple[type[KVError], Callable[[PrefixCache], object]]] = {
    "admitted already": (UnknownRequestError, lambda cache: cache.admit(1, [1])),
    "request is no integer": (ArgumentError, lambda cache: cache.admit("1", [1])),  # type: ignore[arg-type]
    "request is a truth value": (ArgumentError, lambda cache: cache.admit(True, [1])),
    "request is negative": (ArgumentError, lambda cache: cache.admit(-1, [1])),
    "no tokens": (ArgumentError, lambda cache: cache.admit(2, [])),
    "tokens are text": (ArgumentError, lambda cache: cache.admit(2, "12")),  # type: ignore[arg-type]
    "token is a float": (ArgumentError, lambda cache: cache.admit(2, [1, 2.0])),  # type: ignore[list-item]
    "token is a truth value": (ArgumentError, lambda cache: cache.admit(2, [True])),
    "token is negative": (ArgumentError, lambda cache: cache.admit(2, [1, -1])),
    "token is too large": (ArgumentError, lambda cache: cache.admit(2, [1 << 64])),
    "namespace is text": (ArgumentError, lambda cache: cache.admit(2, [1], namespace="a")),  # type: ignore[arg-type]
    "span is too long": (
        ArgumentError,
        lambda cache: cache.admit(
            2, [1, 2], namespace=Namespace(spans=(Span(kind="media", digest="a", offset=1, length=2),))
        ),
    ),
    "nothing to schedule": (ArgumentError, lambda cache: cache.admit(2, [1], max_new_tokens=0)),
    "larger than the pool": (OutOfBlocksError, lambda cache: cache.admit(2, range(41), max_new_tokens=1)),
    "larger than what is free": (OutOfBlocksError, lambda cache: cache.admit(2, range(16))),
    "its hit is what is free": (OutOfBlocksError, lambda cache: cache.admit(2, range(13))),
    "extension is unknown": (UnknownRequestError, lambda cache: cache.extend(2, [1])),
    "extension has a bad token": (ArgumentError, lambda cache: cache.extend(1, [-1])),
    "extension schedules a fraction": (
        ArgumentError,
        lambda cache: cache.extend(1, max_new_tokens=1.5),  # type: ignore[arg-type]
    ),
    "extension does not fit": (OutOfBlocksError, lambda cache: cache.extend(1, range(13))),
    "commit is unknown": (UnknownRequestError, lambda cache: cache.commit(0)),
    "slots are unknown": (UnknownRequestError, lambda cache: cache.slots(0)),
    "finish is unknown": (UnknownRequestError, lambda cache: cache.finish(0)),
    "abort is unknown": (UnknownRequestError, lambda cache: cache.abort(0)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_call_changes_nothing(name: str) -> None:
    """Not the order of eviction either: a lookup that leads to nothing has touched nothing."""
    error, call = REFUSED[name]
    cache = busy()
    before = state_of(cache)
    with pytest.raises(error):
        call(cache)
    assert state_of(cache) == before
    cache.check_invariants()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"num_blocks": 4, "profile": "sglang"},
            "profile 'sglang' has structure = 'radix', expected 'chain'",
        ),
        ({"num_blocks": 4, "profile": replace(KVREF, policy="lfu")}, "policy = 'lfu', expected 'lru'"),
        ({"num_blocks": 4, "profile": "vLLM"}, "profile = 'vLLM', expected a Profile or one of kvref, vllm"),
        ({"num_blocks": 4, "block_size": 0}, "block_size = 0, expected an integer >= 1"),
        ({"num_blocks": 1, "profile": "vllm"}, "num_blocks = 1, expected an integer >= 2"),
    ],
)
def test_cache_that_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    """A profile of another structure is another cache."""
    with pytest.raises(ArgumentError, match=message):
        PrefixCache(**arguments)


def test_request_can_extend_before_its_step_is_done() -> None:
    """Tokens are scheduled while others are in flight; commit says that all of them are computed."""
    cache = PrefixCache(8, KVREF, 4)
    first = cache.admit(0, range(10), max_new_tokens=3)
    assert first == (0, [0, 1, 2], [])
    assert cache.extend(0, max_new_tokens=3) == [3, 4, 5]
    assert cache.extend(0, [70]) == [6, 7, 8, 9, 10]
    assert cache.extend(0) == []
    assert cache.slots(0) == list(range(11))
    cache.commit(0)
    assert cache.admit(1, range(10), namespace=COMMON).num_cached_tokens == 8
