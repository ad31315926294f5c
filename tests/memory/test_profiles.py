"""Profiles of engines: what each says at the points where they differ."""

from dataclasses import fields, replace
from typing import Any

import pytest

from kvref.errors import ArgumentError
from kvref.memory.profiles import NAMED, PROFILES, Profile, profile_of


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
