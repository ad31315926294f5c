"""A snapshot cache: whose state is restored, under any operations on memory that is too small."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from memory.snapshot_shadow import Hybrids
from memory.states import state_of

from kvref.errors import (
    ArgumentError,
    KVError,
    OutOfBlocksError,
    OutOfStatesError,
    OwnershipError,
    UnknownRequestError,
)
from kvref.memory.keys import block_keys, sha256
from kvref.memory.namespace import Namespace
from kvref.memory.snapshot_cache import SnapshotCache
from kvref.memory.snapshot_groups import AttentionGroup
from kvref.memory.snapshot_profiles import SNAPSHOT_PROFILES, SnapshotProfile, snapshot_profile_of
from kvref.memory.snapshots import Prefix
from kvref.planning.catalog import geometry_by_name
from kvref.planning.ranks import geometry_of_rank, hybrid_block_size

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden_hybrid.json").read_text(encoding="utf-8"))
KVREF = SNAPSHOT_PROFILES["kvref"]

#: Blocks, state slots, profile, block size, interval and window of caches that are too small for everything.
CACHES: dict[str, tuple[Any, ...]] = {
    "kvref": (9, 4, KVREF, 3, 3, None),
    "sparse": (9, 3, KVREF, 2, 6, None),
    "off the grid": (9, 6, KVREF, 2, 3, None),
    "one state": (9, 1, KVREF, 3, 3, None),
    "many states": (9, 30, KVREF, 2, 2, None),
    "chunk ends": (9, 4, replace(KVREF, saves="chunk_end", finish="donates"), 2, 2, None),
    "junctions alone": (9, 4, replace(KVREF, saves="branch"), 2, 2, None),
    "no junctions": (9, 4, replace(KVREF, junctions=False, finish="donates"), 2, 4, None),
    "window of one": (9, 5, KVREF, 3, 3, 1),
    "window": (9, 5, replace(KVREF, finish="donates"), 2, 2, 4),
    "wide window": (12, 6, KVREF, 2, 4, 7),
}
#: Blocks, state slots, interval, and groups as block size and window.
GROUPED: dict[str, tuple[Any, ...]] = {
    "full and window": (18, 6, 2, ((2, None), (2, 3))),
    "two windows": (18, 5, 4, ((2, 5), (2, 1))),
    "window of larger blocks": (16, 5, 4, ((2, None), (4, 4))),
    "sizes that do not divide": (20, 6, 2, ((3, None), (2, 4), (1, 2))),
}


def run(machine: type[Hybrids], **more: Any) -> None:
    """Draw programs of up to 50 operations."""
    run_state_machine_as_test(machine, settings=settings(stateful_step_count=50, **more))


@pytest.mark.parametrize("name", CACHES)
def test_every_step_starts_from_its_own_state(name: str) -> None:
    """Whatever is admitted, drafted, rejected, computed and ended in whatever order: KV-SNAP-001 to 022."""
    blocks, states, profile, size, interval, window = CACHES[name]

    class Machine(Hybrids):
        make = staticmethod(lambda: SnapshotCache(blocks, states, profile, size, interval, window=window))

    run(Machine)


@pytest.mark.parametrize("name", GROUPED)
def test_every_group_reads_its_own(name: str) -> None:
    """The same where layers of attention differ: one hit for all groups and the states, or none."""
    blocks, states, interval, pairs = GROUPED[name]
    groups = [AttentionGroup(*pair) for pair in pairs]

    class Machine(Hybrids):
        make = staticmethod(lambda: SnapshotCache(blocks, states, snapshot_interval=interval, groups=groups))

    run(Machine)


@pytest.mark.parametrize("saves", ["interval", "chunk_end", "branch"])
def test_what_the_rule_saves_is_hit(saves: str) -> None:
    """With memory for all, a hit is the longest that the profile's rule has left: KV-SNAP-014."""

    class Machine(Hybrids):
        ample = True
        make = staticmethod(lambda: SnapshotCache(500, 300, replace(KVREF, saves=saves), 2, 4))

    run(Machine)


def test_what_is_saved_is_hit_in_every_group() -> None:
    """The same with a window beside full attention, in blocks of other sizes."""

    class Machine(Hybrids):
        ample = True
        groups = (AttentionGroup(2), AttentionGroup(4, 5), AttentionGroup(1, 3))
        make = staticmethod(lambda: SnapshotCache(800, 300, snapshot_interval=8, groups=Machine.groups))

    run(Machine, max_examples=30)


@pytest.mark.parametrize("bits", [2, 0])
def test_a_hit_is_verified_where_keys_collide(bits: int) -> None:
    """A quarter of all prefixes, or all of them, have one key: whose state it is must still be told apart."""

    def weak(message: bytes) -> bytes:
        return bytes([sha256(message)[0] & (1 << bits) - 1])

    class Machine(Hybrids):
        make = staticmethod(lambda: SnapshotCache(9, 5, block_size=2, snapshot_interval=2, digest=weak))

    run(Machine)


def served(cache: SnapshotCache, request: int, tokens: list[int], **given: Any) -> Any:
    """A request that is computed and finished at once."""
    admission = cache.admit(request, tokens, **given)
    cache.commit(request)
    cache.finish(request)
    cache.check_invariants()
    return admission


def small(**given: Any) -> SnapshotCache:
    """Blocks of 2, a snapshot every 4 tokens."""
    sizes = {"num_blocks": 16, "num_states": 6, "block_size": 2, "snapshot_interval": 4, **given}
    return SnapshotCache(**sizes)


def test_founding_figure() -> None:
    """A prompt that parts from another after 3,700 tokens: 3,072 of them are reused, 628 computed again."""
    golden = GOLDEN["hybrid_prefix_cache"]
    inputs, expect = golden["inputs"], golden["expect"]
    length, at = inputs["shared_prompt"], inputs["diverges_at"]
    cache = SnapshotCache(2000, 40, "kvref", inputs["block_size"], inputs["snapshot_every"])
    first = served(cache, 0, list(range(length)))
    second = served(cache, 1, [*range(at), *range(length, 2 * length - at)])
    assert len(first.save_positions) == expect["snapshots_kept"]
    assert second.num_cached_tokens == expect["hybrid_reuse"]
    assert at - second.num_cached_tokens == expect["hybrid_recompute"]
    assert second.save_positions[0] == expect["full_attention_reuse"]


def test_the_third_to_part_starts_at_the_junction() -> None:
    """The second request saved its state where its blocks were hit to: KV-SNAP-013."""
    cache, stem = small(num_blocks=40), list(range(7))
    hits = [served(cache, at, [*stem, 10 + at, 20 + at, 30 + at]).num_cached_tokens for at in range(3)]
    assert hits == [0, 4, 6]


def test_losing_a_snapshot_loses_no_block() -> None:
    """A tombstone shows in the blocks: the same question saves the same states again."""
    cache, question = small(num_states=2), list(range(9))
    assert served(cache, 0, question).save_positions == [8]
    served(cache, 1, list(range(20, 25)))
    assert cache.pool.num_cached == 6
    assert served(cache, 2, question).num_cached_tokens == 0
    assert served(cache, 3, question).num_cached_tokens == 8


def test_losing_blocks_frees_the_snapshot() -> None:
    """Its slot is plain again, and is handed out before a snapshot is evicted."""
    cache = small(num_blocks=5, num_states=6)
    served(cache, 0, list(range(8)))
    assert cache.state_pool.num_cached == 2
    served(cache, 1, list(range(20, 24)))
    assert cache.pool.num_cached == 5
    assert [cache.admit(2, [*range(4), 9]).num_cached_tokens, cache.state_pool.num_cached] == [4, 1]


def test_losing_a_block_of_any_group_frees_the_snapshot() -> None:
    """A snapshot needs the last blocks of its window: it is forgotten with the first that is evicted."""
    groups = [AttentionGroup(2), AttentionGroup(2, 4)]
    for number, at, left in ((0, 0, 0), (0, 3, 1), (1, 0, 1), (1, 1, 1), (1, 2, 1)):
        cache = SnapshotCache(40, 6, snapshot_interval=4, groups=groups)
        cache.admit(0, list(range(8)))
        own = cache._requests[0]
        cache.commit(0)
        cache.finish(0)
        assert cache.state_pool.num_cached == 2
        keys = own.keys(number, at, 4 if number == 0 else at + 1)  # behind a lost block, nothing is left
        cache._index.withdraw([block for key in keys for block in cache._index.every(key)])
        cache._snapshots.forget(cache._index.lost)
        cache.check_invariants()
        assert cache.state_pool.num_cached == left, (number, at)


def test_the_last_state_slot_is_taken_over() -> None:
    """A request that cannot copy the snapshot runs in it, and then it is a snapshot no more."""
    cache = small(num_states=1)
    assert served(cache, 0, list(range(5))).save_positions == []
    cache = small(num_states=2)
    served(cache, 0, list(range(5)))
    cache.admit(1, [9])
    again = cache.admit(2, list(range(6)))
    assert (again.num_cached_tokens, again.source) == (4, again.state)
    cache.commit(2)
    cache.finish(2)
    assert cache.admit(3, list(range(6))).num_cached_tokens == 0


@pytest.mark.parametrize("accepted", range(4))
def test_drafts_are_taken_back(accepted: int) -> None:
    """The next step starts from the state after the accepted drafts: none, some, or all."""
    cache = small()
    cache.admit(0, [1, 2, 3])
    cache.commit(0)
    step = cache.extend(0, [4, 5, 6], num_drafts=3)
    where = {3: step.source, **dict(zip(step.save_positions, step.save_states, strict=True)), 6: step.state}
    cache.commit(0, num_accepted=accepted)
    assert cache.extend(0, [7]).source == where[3 + accepted]
    assert len(cache.slots(0)) == 4 + accepted
    cache.check_invariants()


def test_an_aborted_step_leaves_nothing() -> None:
    """What was scheduled and not committed can be hit by nobody: KV-SNAP-016."""
    cache = small()
    cache.admit(0, list(range(9)))
    assert cache.admit(1, list(range(9))).num_cached_tokens == 0
    cache.abort(0)
    cache.abort(1)
    assert (cache.num_free, cache.num_free_states, cache.state_pool.num_cached) == (16, 6, 0)
    assert cache.admit(2, list(range(9))).num_cached_tokens == 0


def test_finish_may_donate_the_last_state() -> None:
    """The state after the last token is a snapshot if it ends a block, where the profile says so."""
    cache = small(profile=replace(KVREF, finish="donates"), snapshot_interval=100)
    served(cache, 0, list(range(6)))
    assert served(cache, 1, list(range(8))).num_cached_tokens == 6


#: Kimi K3 on eight ranks as LMCache's recipe has it: format of keys and values, how many blocks of attention
#: a block of states covers, and the tokens of either and of a chunk.
RECIPE = [("B300", "bfloat16", 1, 768, 768, 768), ("MI355X", "fp8_e4m3", 2, 1536, 3072, 3072)]


@pytest.mark.parametrize(("form", "blocks", "attention", "state", "chunk"), [row[1:] for row in RECIPE])
def test_chunk_of_lmcache_follows_from_its_blocks(
    form: Any, blocks: int, attention: int, state: int, chunk: int
) -> None:
    """768 is of one configuration: a block is as large as a state, and a chunk ends one in every group."""
    rank = geometry_of_rank(geometry_by_name("Kimi-K3"), 8)
    size = hybrid_block_size(rank, form, multiple=128)
    assert (size, blocks * size) == (attention, state)
    groups = [AttentionGroup(size)]
    cache = SnapshotCache(40, 9, "lmcache-k3", groups=groups, snapshot_interval=blocks * size)
    assert cache.snapshot_grid == chunk
    prompt = list(range(3 * chunk + 5))
    assert cache.admit(0, prompt, max_new_tokens=chunk).save_positions == [chunk]
    cache.commit(0)
    assert cache.extend(0, max_new_tokens=chunk // 2).save_positions == []
    cache.commit(0)
    assert cache.extend(0, max_new_tokens=chunk // 2).save_positions == [2 * chunk]
    cache.commit(0)
    cache.finish(0)
    assert cache.admit(1, prompt).num_cached_tokens == 2 * chunk


def test_a_restore_needs_the_last_state_alone() -> None:
    """A row of opaque states is as a window of one block: those before the hit may be gone."""
    cache = small(num_blocks=40)
    served(cache, 0, list(range(13)))
    prefix = block_keys(list(range(13)), 2)
    for position in (4, 8):
        slot = cache._snapshots.find(Prefix(prefix[position // 2 - 1], None))
        assert slot is not None
        cache._snapshots.take_over(slot)
        cache._snapshots.release([slot])
    cache.check_invariants()
    assert served(cache, 1, list(range(13))).num_cached_tokens == 12


BAD: list[tuple[type[KVError], str, Any]] = [
    (UnknownRequestError, "request = 5", lambda c: c.extend(5, [1])),
    (UnknownRequestError, "request = 5", lambda c: c.commit(5)),
    (UnknownRequestError, "request = 5", lambda c: c.finish(5)),
    (UnknownRequestError, "request = 5", lambda c: c.abort(5)),
    (UnknownRequestError, "request = 5", lambda c: c.slots(5)),
    (UnknownRequestError, "request = 0", lambda c: c.admit(0, [1])),
    (ArgumentError, "request", lambda c: c.commit("0")),
    (ArgumentError, "tokens", lambda c: c.admit(1, [])),
    (ArgumentError, "tokens", lambda c: c.admit(1, [-1])),
    (ArgumentError, "max_new_tokens", lambda c: c.admit(1, [1], max_new_tokens=0)),
    (ArgumentError, "namespace", lambda c: c.admit(1, [1], namespace="x")),
    (ArgumentError, "num_drafts = 2", lambda c: c.extend(0, [1], num_drafts=2)),
    (ArgumentError, "num_drafts = 1", lambda c: c.extend(0, [1, 2], max_new_tokens=1, num_drafts=1)),
    (ArgumentError, "num_drafts", lambda c: c.extend(0, [1], num_drafts=-1)),
    (ArgumentError, "num_accepted = 1", lambda c: c.commit(0, num_accepted=1)),
    (OutOfStatesError, "6 state slots are needed, but 5 of 6", lambda c: c.extend(0, [1] * 7, num_drafts=6)),
    (OutOfBlocksError, "20 blocks are needed, but 13 of 16", lambda c: c.extend(0, [1] * 40)),
    (OutOfBlocksError, "33 tokens, which take 17 blocks, but 16", lambda c: c.admit(1, [1] * 33)),
    (OwnershipError, "1 requests", lambda c: c.reset()),
]


@pytest.mark.parametrize(
    ("error", "words", "call"), BAD, ids=[f"{at}-{e.__name__}" for at, (e, *_) in enumerate(BAD)]
)
def test_what_is_refused_changes_nothing(error: type[KVError], words: str, call: Any) -> None:
    """Each error names what was found, and the cache is as before, in every part."""
    cache = small()
    served(cache, 9, [7, 7, 7, 7, 7])
    cache.admit(0, [1, 2, 3, 4, 5, 6])
    cache.commit(0)
    before = state_of(cache)
    with pytest.raises(error, match=words):
        call(cache)
    assert state_of(cache) == before


STEPS_IN_FLIGHT: list[Any] = [
    lambda c: c.extend(0, [6]),
    lambda c: c.extend(0),
    lambda c: c.extend(0, [6], num_drafts=1),
    lambda c: c.finish(0),
]


@pytest.mark.parametrize("num_drafts", [0, 1])
@pytest.mark.parametrize("call", STEPS_IN_FLIGHT, ids=["tokens", "nothing", "drafts", "finish"])
def test_a_step_in_flight_is_waited_for(call: Any, num_drafts: int) -> None:
    """Nothing can be scheduled behind it, and no request ends as computed that is not: KV-SNAP-023."""
    cache = small()
    cache.admit(0, [1, 2, 3])
    if num_drafts:
        cache.commit(0)
        cache.extend(0, [4, 5], num_drafts=num_drafts)
    before = state_of(cache)
    with pytest.raises(ArgumentError, match="request = 0 has a step in flight, expected its commit first"):
        call(cache)
    assert state_of(cache) == before
    cache.commit(0)
    cache.finish(0)


@pytest.mark.parametrize("num_drafts", [1, 2])
def test_drafts_behind_a_snapshot_need_no_slot_for_it(num_drafts: int) -> None:
    """After a rejection the request stands at a snapshot, apart from the slot it runs in: one slot fewer."""
    cache = SnapshotCache(16, num_drafts + 1, block_size=1)
    cache.admit(0, [1])
    cache.commit(0)
    cache.extend(0, [2, 3], num_drafts=1)
    cache.commit(0, num_accepted=0)
    assert cache.num_free_states == num_drafts - 1
    step = cache.extend(0, [4] * num_drafts, num_drafts=num_drafts)
    assert step.source != step.state
    cache.check_invariants()
    cache.commit(0, num_accepted=0)
    cache.check_invariants()


def test_namespaces_share_no_state() -> None:
    """The same tokens under another salt start from zeros: KV-SNAP-019."""
    cache, question = small(num_blocks=40), list(range(9))
    served(cache, 0, question)
    assert served(cache, 1, question, namespace=Namespace(salt="x")).source == -1
    assert served(cache, 2, question).num_cached_tokens == 8


@pytest.mark.parametrize("given", [{"saves": "never"}, {"interval": 0}, {"junctions": 1}, {"name": 3}])
def test_profiles_are_of_their_sets(given: dict[str, Any]) -> None:
    """A field says one of the words it has."""
    with pytest.raises(ArgumentError):
        SnapshotProfile(**{"name": "x", "source": "y", **given})
    with pytest.raises(ArgumentError, match="expected a SnapshotProfile or one of kvref"):
        snapshot_profile_of("nobody")
