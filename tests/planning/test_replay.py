"""Replays through the reference's caches find what these find on tokens, and what the curve says."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning.requests import BLOCK, lists_of, lru, plain_lru, trace_of, traces

from kvref.errors import ArgumentError, OutOfBlocksError
from kvref.memory.prefix_cache import PrefixCache
from kvref.memory.profiles import PROFILES
from kvref.memory.radix_cache import RadixCache
from kvref.planning.counting import Counting
from kvref.planning.distances import HitCurve
from kvref.planning.replay import CACHES, Replay
from kvref.planning.traces import Trace

REPLAYED = sorted(name for name, profile in PROFILES.items() if profile.structure in CACHES)
MOONCAKE = Path(__file__).resolve().parents[1] / "data" / "traces" / "mooncake_conversation_trace.jsonl.gz"


def tokens_of(trace: Trace) -> list[list[int]]:
    """Prompts that share blocks as the trace says: each token names its block and its place in it."""
    return [
        [blocks[at // BLOCK] * BLOCK + at % BLOCK for at in range(length)]
        for blocks, length in zip(lists_of(trace), trace.input_lengths.tolist(), strict=True)
    ]


@given(traces(), st.integers(1, 20), st.sampled_from(["kvref", "vllm", "sglang"]))
def test_ids_replay_as_tokens_do(trace: Trace, capacity: int, name: str) -> None:
    """The ids of a trace, through the parts of a cache, hit what its prompts hit through the whole."""
    profile = PROFILES[name]
    made = RadixCache if profile.structure == "radix" else PrefixCache
    cache = made(capacity + profile.null_block, profile, BLOCK)
    hits, refused = 0, 0
    for number, tokens in enumerate(tokens_of(trace)):
        try:
            hits += cache.admit(number, tokens).num_cached_tokens
        except (OutOfBlocksError, ArgumentError):
            refused += 1
            continue
        cache.commit(number)
        cache.finish(number)
    found = Replay(trace, profile).at(capacity)
    assert (found.hit_tokens, found.refused) == (hits, refused)


@given(traces(), st.sampled_from(["kvref", "vllm", "plain-lru", "lmcache"]))
def test_with_room_for_copies_every_chain_replays_as_tokens_do(trace: Trace, name: str) -> None:
    """A hit that ends inside a block is copied in the cache, which costs blocks and nothing else."""
    cache = PrefixCache(1_000, name, BLOCK)
    hits = 0
    for number, tokens in enumerate(tokens_of(trace)):
        hits += cache.admit(number, tokens).num_cached_tokens
        cache.commit(number)
        cache.finish(number)
    assert cache.evictions == 0
    assert Replay(trace, name).at(1_000).hit_tokens == hits


@given(traces(), st.integers(5, 20))
def test_plain_lru_is_lru(trace: Trace, capacity: int) -> None:
    """Where every request fits, the profile hits what block-by-block LRU does, head first, or less.

    Less, because a block that a predecessor left behind is made room for before it is found again.
    """
    found = Replay(trace, "plain-lru").at(capacity)
    assert found.refused == 0
    assert found.hit_blocks <= sum(lru(lists_of(trace), capacity, "head_first").hits)
    whole = Replay(trace, "plain-lru").at(None)
    assert whole.as_dict() == HitCurve.of(trace, Counting(touch="head_first")).at(None).as_dict()


@given(traces(), st.integers(5, 20))
def test_a_keyed_tree_that_evicts_blocks_is_tail_first_lru(trace: Trace, capacity: int) -> None:
    """Leaf-first eviction by block is the stack algorithm whose curve is computed in one pass."""
    known = {"tail": "keyed", "last_token": "none", "evict_unit": "block", "split": "keeps"}
    tree = replace(PROFILES["sglang"], **known)
    found = Replay(trace, tree).at(capacity)
    assert found.hit_blocks == HitCurve.of(trace).at(capacity).hit_blocks


@pytest.mark.parametrize("name", REPLAYED)
def test_a_full_hit_leaves_what_the_profile_says(name: str) -> None:
    """The same prompt of two whole blocks, again: all of it, all but a token, or all but a block."""
    profile = PROFILES[name]
    found = Replay(trace_of([[0, 1], [0, 1]]), profile).at(None)
    left = {"none": 0, "token": 1, "block_floor": BLOCK}[profile.last_token]
    assert found.hit_tokens == 2 * BLOCK - left


@pytest.mark.parametrize("name", REPLAYED)
def test_a_request_that_does_not_fit_is_counted_and_changes_nothing(name: str) -> None:
    """Its tokens are in the denominator, its blocks nowhere."""
    found = Replay(trace_of([[0, 1], [2, 3, 4, 5], [0, 1, 6]]), PROFILES[name]).at(3)
    assert found.refused == 1
    assert found.hit_tokens == 2 * BLOCK
    assert found.input_tokens == 9 * BLOCK


@pytest.mark.parametrize("name", REPLAYED)
def test_progress_adds_up_to_every_request(name: str) -> None:
    """Whoever draws a bar is told of each request once."""
    told: list[int] = []
    Replay(trace_of([[0]] * 700), name).at(4, done=told.append)
    assert sum(told) == 700


def test_a_huge_capacity_costs_what_the_trace_needs() -> None:
    """No list of so many blocks is made."""
    assert Replay(trace_of([[0], [0, 1]]), "vllm").at(10**15).capacity == 10**15


def test_what_cannot_be_replayed_is_refused() -> None:
    """A cache of slots, ids that the trace does not have, lengths alone."""
    with pytest.raises(ArgumentError, match=r"'llama.cpp' keeps one prefix in each slot"):
        Replay(trace_of([[0]]), "llama.cpp")
    with pytest.raises(ArgumentError, match="no ids for partial tails"):
        Replay(trace_of([[0, 1]], [2]).full_blocks(), "plain-lru")
    with pytest.raises(ArgumentError, match="profile = 'mine', expected"):
        Replay(trace_of([[0]]), "mine")
    with pytest.raises(ArgumentError, match="capacity = 0"):
        Replay(trace_of([[0]]), "kvref").at(0)


def test_the_rule_names_what_counts() -> None:
    """Every number is printed with it, and with what nobody has shown of the profile."""
    replay = Replay(trace_of([[0]]), "lmcache", warm_up=0.5)
    assert replay.rule == (
        "hits of prefixes, tail-first touch, full blocks only, after the first 50% of requests; "
        "the last token is computed again"
    )
    assert "chain cache as lmcache runs it (" in replay.cache
    assert replay.cache.endswith("unverified)")


@pytest.mark.parametrize(("capacity", "expected"), [(1_000, 0.0445), (10_000, 0.2112), (50_000, 0.3546)])
def test_golden_rates_through_the_cache_itself(capacity: int, expected: float) -> None:
    """The conversation trace through the real component: the golden figures again."""
    trace = Trace.read(MOONCAKE)
    found = Replay(trace, "plain-lru").at(capacity)
    assert round(found.of_blocks, 4) == expected
    assert found.hit_blocks == sum(plain_lru(lists_of(trace), capacity, "head_first"))
