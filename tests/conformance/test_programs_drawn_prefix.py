"""Tests of drawn programs for prefixes: what they are full of, and that independent caches agree on them."""

import random
from dataclasses import replace
from typing import Any

import pytest

from kvref.memory.keys import sha256
from kvref.memory.prefix_cache import PrefixCache
from kvref.memory.profiles import PROFILES
from kvref_conformance.cases import PROGRAM, Case, opening
from kvref_conformance.claims import Claims
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.managers import MANAGERS
from kvref_conformance.programs.drawn import draw_case
from kvref_conformance.programs.order import Order
from kvref_conformance.programs.running import Run, run
from kvref_conformance.programs.step import parse
from kvref_conformance.subjects.lists import OF_PREFIXES, Lists, RadixOfLists
from kvref_conformance.subjects.lists.prefix import PrefixLists
from kvref_conformance.subjects.reference_memory import ReferenceMemory
from kvref_conformance.subjects.reference_prefix import NAMESPACES, CacheOfReference, ReferenceRadix, cut_to

MANAGERS_OF_PREFIXES = ("prefix_cache", "block_keys", "block_index")
SIZES, SHARED = (4, 1, 3), (*NAMESPACES, "weak_hash")


def drawn(manager: str, seed: int, claims: Claims = Lists.claims, length: int = 60) -> Case:
    """Return a drawn case in which every operation may be needed."""
    return draw_case(manager, random.Random(seed), claims, tuple(MANAGERS[manager].operations), length)


def performed(subject: Any, case: Case, claims: Claims = Lists.claims) -> Run:
    """Run the program of a case."""
    session = InProcessHost(subject).open(case.verb, **opening(case))
    return run(str(case.option(PROGRAM)), session, case, claims)


@pytest.mark.parametrize(
    ("lists", "reference", "choices"),
    [(Lists, ReferenceMemory, {}), (RadixOfLists, ReferenceRadix, {"eviction-order": "lru_node"})],
)
@pytest.mark.parametrize("seeds", range(10))
def test_lists_and_reference_leave_the_same_trace(
    lists: Any, reference: Any, choices: dict[str, str], seeds: int
) -> None:
    """Two implementations that share no line agree on every hit, refusal, shared block and count."""
    claims = Claims(block_sizes=SIZES, features=SHARED, choices=choices)
    for seed in range(15 * seeds, 15 * seeds + 15):
        case = drawn("prefix_cache", seed, claims)
        ours, theirs = performed(lists(), case, claims), performed(reference(), case, claims)
        assert not ours.breaches, (case.options, ours.breaches)
        assert not theirs.breaches, (case.options, theirs.breaches)
        assert ours.trace == theirs.trace, case.options


@pytest.mark.parametrize(
    "choices",
    [
        {"publish_time": "scheduled"},
        {"publish_time": "finished"},
        {"full_hit": "last_token"},
        {"eviction_order": "lru_head_first"},
        {"cached_outputs": "no"},
    ],
)
def test_honest_caches_breach_nothing_under_their_choices(choices: dict[str, str]) -> None:
    """What is declared is what is judged."""
    spelled = {name.replace("_", "-"): answer for name, answer in choices.items()}
    claims = Claims(block_sizes=SIZES, features=OF_PREFIXES, choices=spelled)
    subject = type("Subject", (), {"prefix_cache": type("Choosing", (PrefixLists,), choices)})
    for seed in range(60):
        case = drawn("prefix_cache", seed, claims)
        assert performed(subject(), case, claims).breaches == (), case.options


#: Fields of a profile of the reference, and what they are declared as.
PROFILED: list[tuple[dict[str, str], dict[str, str]]] = [
    ({"publish": "scheduled"}, {"publish-time": "scheduled"}),
    (
        {"publish": "scheduled", "last_token": "token"},
        {"publish-time": "scheduled", "full-hit": "last_token"},
    ),
    ({"tail": "keyed", "last_token": "token"}, {"tail-block": "keyed", "full-hit": "last_token"}),
    ({"plain": "back", "duplicates": "free"}, {}),
]


@pytest.mark.parametrize(("fields", "choices"), PROFILED, ids=str)
def test_profiles_of_the_reference_breach_nothing(fields: dict[str, Any], choices: dict[str, str]) -> None:
    """What an abort takes back, and what finds no block to be copied into, is owed nobody."""
    profile = replace(PROFILES["kvref"], **fields)

    def cache(num_blocks: int, block_size: int, hash_bits: int = 0) -> CacheOfReference:
        digest = cut_to(hash_bits) if hash_bits else sha256
        return CacheOfReference(PrefixCache(num_blocks, profile, block_size, digest=digest))

    features = tuple(feature for feature in OF_PREFIXES if feature != "events")
    claims = Claims(block_sizes=SIZES, features=features, choices=choices)
    subject = type("Subject", (), {"prefix_cache": staticmethod(cache)})
    for seed in range(60):
        case = drawn("prefix_cache", seed, claims)
        assert performed(subject(), case, claims).breaches == (), case.options


def test_what_an_aborted_request_computed_may_be_dropped() -> None:
    """It is in no order of eviction, then."""

    class Dropping(PrefixLists):
        def __init__(self, num_blocks: int, block_size: int, hash_bits: int = 0) -> None:
            super().__init__(num_blocks, block_size, hash_bits)
            self.read: set[int] = set()

        def hold(self, blocks: list[int]) -> None:
            self.read.update(blocks)
            super().hold(blocks)

        def abort(self, request: int) -> None:
            one = self.requests.get(request)
            for block in one.blocks[one.hit // self.block_size :][::-1]:
                if self.holders[block] == 1 and block not in self.read:
                    self.forget(block)
            super().abort(request)

    subject = type("Subject", (), {"prefix_cache": Dropping})
    for seed in range(60):
        case = drawn("prefix_cache", seed)
        assert performed(subject(), case).of("KV-PREFIX-023") is None, case.options


@pytest.mark.parametrize("manager", ["block_keys", "block_index"])
def test_honest_lists_breach_nothing(manager: str) -> None:
    """Keys and paths are drawn as well."""
    for seed in range(60):
        case = drawn(manager, seed)
        assert performed(Lists(), case).breaches == (), case.options


@pytest.mark.parametrize("manager", MANAGERS_OF_PREFIXES)
def test_programs_follow_from_the_generator(manager: str) -> None:
    """A seed is enough to have a find again."""
    assert drawn(manager, 5) == drawn(manager, 5)
    assert drawn(manager, 5) != drawn(manager, 6)


@pytest.mark.parametrize("manager", MANAGERS_OF_PREFIXES)
def test_most_steps_make_sense(manager: str) -> None:
    """A search that is passed over finds nothing."""
    cases = [drawn(manager, seed) for seed in range(40)]
    steps = sum(len(parse(str(case.option(PROGRAM)))) for case in cases)
    assert sum(performed(Lists(), case).performed for case in cases) > 0.5 * steps


def test_pools_refuse_hit_and_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults need refusals, hits, and orders of eviction that can be compared."""
    followed: list[int | None] = []
    expected = Order.expected

    def noting(self: Order, *given: Any) -> int | None:
        followed.append(expected(self, *given))
        return followed[-1]

    monkeypatch.setattr(Order, "expected", noting)
    lines = [line for seed in range(60) for line in performed(Lists(), drawn("prefix_cache", seed)).trace]
    assert sum("is refused" in line for line in lines) > 60
    assert sum("hits" in line and "hits 0" not in line for line in lines) > 100
    assert sum(bool(hit) for hit in followed) > 20


def test_only_what_is_claimed_is_drawn() -> None:
    """No salts, images or weak keys for a cache that knows none."""
    for seed in range(20):
        case = drawn("prefix_cache", seed, Claims(block_sizes=SIZES))
        names = {step.name for step in parse(str(case.option(PROGRAM)))}
        assert not names & {"adapter", "version", "salt", "image", "embed"}
        assert "hash_bits" not in case.options
