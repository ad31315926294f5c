"""Profiles of engines: what each says at the points where they differ."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest

from kvref.errors import ArgumentError
from kvref.memory.prefix_cache import PrefixCache
from kvref.memory.profiles import NAMED, PROFILES, Profile, profile_of
from kvref.memory.radix_cache import RadixCache
from kvref.memory.radix_contents import block_contents
from kvref.memory.slots import SlotCache


def test_canonical_profile_says_the_canonical_answers() -> None:
    """The first of each named set, and the defaults of a profile."""
    canonical = PROFILES["kvref"]
    assert {name: getattr(canonical, name) for name in NAMED} == {name: NAMED[name][0] for name in NAMED}
    assert replace(canonical, name="a", source="b") == Profile(name="a", source="b")


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_profile_has_a_source_and_names_what_is_unverified(profile: Profile) -> None:
    """A guess is marked as one, and no engine is named without where its answers were read."""
    assert PROFILES[profile.name] is profile
    assert profile.source
    assert set(profile.unverified) <= {field.name for field in fields(Profile)} - {"name", "source"}


def test_profiles_say_what_the_engines_do() -> None:
    """The points that decide hits, engine by engine."""
    points = ("block_size", "structure", "last_token", "publish", "duplicates", "release", "evict_unit")
    said = {name: tuple(getattr(profile, point) for point in points) for name, profile in PROFILES.items()}
    assert said == {
        "kvref": (16, "chain", "block_floor", "computed", "keep", "tail_first", "block"),
        "vllm": (16, "chain", "block_floor", "scheduled", "keep", "tail_first", "block"),
        "plain-lru": (512, "chain", "none", "computed", "adopt", "head_first", "block"),
        "sglang": (1, "radix", "block_floor", "computed", "adopt", "tail_first", "node"),
        "tensorrt-llm": (32, "radix", "token", "computed", "adopt", "tail_first", "block"),
        "llama.cpp": (1, "slot", "token", "finished", "keep", "tail_first", "slot"),
        "lmcache": (256, "chain", "token", "computed", "free", "tail_first", "block"),
    }


@pytest.mark.parametrize("name", NAMED)
def test_word_outside_a_named_set_is_refused(name: str) -> None:
    """Nothing is acceptable that has no name."""
    changed: dict[str, Any] = {name: "sometimes"}
    with pytest.raises(ArgumentError, match=f"{name} = 'sometimes', expected one of {NAMED[name][0]}"):
        replace(PROFILES["kvref"], **changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": 3}, "name = 3, expected text"),
        ({"block_size": 0}, "block_size = 0, expected an integer >= 1"),
        ({"cached_outputs": 1}, "cached_outputs = 1, expected True or False"),
        ({"null_block": None}, "null_block = None, expected True or False"),
        ({"unverified": ("color",)}, "unverified = .*, expected names of fields"),
        ({"duplicates": "adopt", "publish": "scheduled"}, "'adopt' with publish = 'scheduled'"),
    ],
)
def test_impossible_profile_is_refused(changed: dict[str, Any], message: str) -> None:
    """A profile is data, and checked as such."""
    with pytest.raises(ArgumentError, match=message):
        replace(PROFILES["kvref"], **changed)


def test_profile_is_found_by_its_name() -> None:
    """Or is given itself."""
    own = Profile(name="own", source="a test")
    assert profile_of(own) is own
    assert profile_of("vllm") is PROFILES["vllm"]
    for wrong in ("vLLM", None, 3):
        with pytest.raises(ArgumentError, match="expected a Profile or one of kvref, vllm"):
            profile_of(wrong)  # type: ignore[arg-type]


def hits_of(cache: PrefixCache | RadixCache | SlotCache, prompts: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that each prompt hits, one after the other."""
    hits = []
    for request, prompt in enumerate(prompts):
        hits.append(cache.admit(request, prompt).num_cached_tokens)
        cache.commit(request)
        cache.finish(request)
    return hits


def test_profiles_that_were_not_run_against_their_engine_hit_what_they_say() -> None:
    """Counted by hand: whole blocks of a tree; all but the last token of chunks, or of the best row."""
    tree = RadixCache(6, "tensorrt-llm", 2)
    assert hits_of(tree, [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 5, 6, 7], [1, 2, 5, 6, 8]]) == [0, 2, 2, 4]
    chunks = PrefixCache(8, "lmcache", 4)
    assert hits_of(chunks, [range(10), range(10), range(8), range(7)]) == [0, 8, 7, 4]
    rows = SlotCache(40, "llama.cpp", num_rows=2)
    prompts = [range(10), range(10), [0] + [50] * 9, [0, 1] + [60] * 8, range(10)]
    assert hits_of(rows, prompts) == [0, 9, 0, 2, 2]  # a tenth in common is not enough, two tenths are


def test_lowest_priority_goes_first() -> None:
    """In TensorRT-LLM's tree the end of its leaf, though another was used longer ago."""
    cache = RadixCache(4, "tensorrt-llm", 2)
    for request, (prompt, priority) in enumerate([([1, 2, 3, 4], 35), ([5, 6, 7, 8], 10)]):
        cache.admit(request, prompt, priority=priority)
        cache.commit(request)
        cache.finish(request)
    cache.admit(9, [9, 9])
    assert cache.evictions == 1
    assert cache.tree.find(block_contents([1, 2, 3, 4], 2)).num_blocks == 2
    assert cache.tree.find(block_contents([5, 6, 7, 8], 2)).num_blocks == 1
