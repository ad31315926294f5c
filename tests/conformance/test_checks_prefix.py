"""Tests of the checks of prefix caches, keys and indexes: honest subjects pass, whatever they declare."""

from collections.abc import Sequence
from typing import Any

import pytest
from blocks_judged import levels_ask

from kvref_conformance.checks import all_checks
from kvref_conformance.claims import Claims
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.managers import offering
from kvref_conformance.oracle import Oracle
from kvref_conformance.programs.asking_caches import served
from kvref_conformance.runner.evaluate import Evidence, evaluate, plan
from kvref_conformance.runner.unasked_of_manager import unasked_of_manager
from kvref_conformance.subjects.lists import OF_PREFIXES, Lists, RadixOfLists
from kvref_conformance.subjects.lists.prefix import PrefixLists
from kvref_conformance.subjects.reference_memory import ReferenceMemory
from kvref_conformance.subjects.reference_prefix import ReferenceRadix

MANAGERS = ("prefix_cache", "block_keys", "block_index")
NUMBERS = {*range(1, 29), *range(30, 35), *range(40, 47), *range(50, 54)}
NODES = {"eviction-order": "lru_node"}


def judged(subject: Any, level: Any = "quick") -> list[Evidence]:
    """Run all checks of prefixes that a subject must pass."""
    host = InProcessHost(subject)
    offered = tuple(name for name in host.hello().verbs if name.partition(".")[0] in MANAGERS)
    oracle = Oracle(subject.claims)
    return [evaluate(check, case, host, oracle) for check, case in plan(offered, subject.claims, level)]


def asked(found: list[Evidence]) -> set[int]:
    """Return the numbers of the requirements that were asked about."""
    return {int(evidence.requirement[-3:]) for evidence in found}


def failed(subject: Any, level: Any = "quick") -> set[int]:
    """Return the numbers of those that failed."""
    return asked([evidence for evidence in judged(subject, level) if evidence.status == "fail"])


def with_cache(cache: Any, features: tuple[str, ...] = OF_PREFIXES, **choices: str) -> Any:
    """Return a subject that offers a prefix cache under these claims."""
    spelled = {name.replace("_", "-"): answer for name, answer in choices.items()}
    claims = Claims(block_sizes=(4, 1, 3), features=features, choices=spelled)
    return type("Subject", (), {"prefix_cache": cache, "claims": claims})()


@pytest.mark.parametrize(
    ("subject", "unasked"),
    [
        (Lists, {33}),
        (RadixOfLists, {23, 30, 31, 32, 33, 50, 51, 52, 53}),
        (ReferenceMemory, set()),
        (ReferenceRadix, {23, *range(30, 34), *range(40, 47), *range(50, 54)}),
    ],
)
def test_honest_caches_pass_every_check(subject: Any, unasked: set[int]) -> None:
    """Keys and runs, twice each, and nobody looked at another's lines."""
    due = {f"KV-PREFIX-{number:03d}" for number in NUMBERS - unasked}
    assert levels_ask(subject(), MANAGERS) == 3 * [due]
    found = judged(subject(), "exhaustive")
    assert [evidence for evidence in found if evidence.status == "fail"] == []


@pytest.mark.parametrize(
    "choices",
    [
        {"publish_time": "scheduled"},
        {"publish_time": "finished"},
        {"full_hit": "last_token"},
        {"eviction_order": "lru_head_first"},
        {"cached_outputs": "no"},
        {"cached_outputs": "no", "publish_time": "finished", "full_hit": "last_token"},
    ],
)
def test_another_choice_may_be_declared(choices: dict[str, str]) -> None:
    """Who declares what it does passes; who does the same under the canonical name does not."""
    cache = type("Choosing", (PrefixLists,), choices)
    assert failed(with_cache(cache, **choices)) == set()
    if choices != {"publish_time": "finished"}:
        assert failed(with_cache(cache))


def test_unspecified_order_is_not_compared() -> None:
    """Whoever promises no order is held to none, but that the deeper block goes first."""
    found = judged(with_cache(PrefixLists, eviction_order="unspecified"))
    assert {24} & asked(found) == set()
    assert {23} <= asked(found)


def test_null_block_may_be_reserved() -> None:
    """The cache then holds one block less, and block 0 is given to nobody."""

    class FromOne(PrefixLists):
        def __init__(self, num_blocks: int, block_size: int, hash_bits: int = 0) -> None:
            super().__init__(num_blocks, block_size, hash_bits)
            self.num_blocks = num_blocks - 1
            self.waiting.remove(0)

    assert failed(with_cache(FromOne, null_block="reserved")) == set()
    assert 22 in failed(with_cache(FromOne))
    assert 28 in failed(with_cache(PrefixLists, null_block="reserved"))


def test_check_needs_only_the_operations_it_asks_for() -> None:
    """Whoever can admit, commit and finish is judged by what that shows."""

    class Smallest:
        def __init__(self, num_blocks: int, block_size: int) -> None:
            cache = PrefixLists(num_blocks, block_size)
            self._cache = cache

        def admit(self, request: int, tokens: list[int], max_new_tokens: int) -> Any:
            return self._cache.admit(request, tokens, max_new_tokens)

        def commit(self, request: int) -> None:
            self._cache.commit(request)

        def finish(self, request: int) -> None:
            self._cache.finish(request)

    found = judged(with_cache(Smallest, features=()))
    assert all(evidence.status == "pass" for evidence in found)
    assert asked(found) == {1, 2, 4, 6, 14, 16, 17, 18, 23, 24}


def test_features_that_are_not_claimed_are_not_asked() -> None:
    """No adapters, salts, media, embeddings, weak keys or events."""
    found = judged(with_cache(PrefixLists, features=()))
    assert all(evidence.status == "pass" for evidence in found)
    assert not asked(found) & {*range(7, 14), 34, *range(40, 47)}


@pytest.mark.parametrize("manager", MANAGERS)
def test_a_check_judges_one_requirement_by_name(manager: str) -> None:
    """Whoever reads the report looks the requirement up."""
    checks = [check for check in all_checks() if manager in check.verbs]
    assert all(check.operations and check.requirement.startswith("KV-PREFIX-") for check in checks)
    assert len({check.name for check in checks}) == len(checks)


def test_serve_stands_for_three_steps() -> None:
    """A request from beginning to end is written as one step in the checks."""
    assert served("serve 12 1 3b; abort 2") == "admit 12 1 3b; commit 12; finish 12; abort 2"


class HitsNothing(PrefixLists):
    """Finds nothing, and so never reads anything wrong."""

    def find(self, *_: Any) -> list[int]:
        """Return no block."""
        return []


class RefusesAll(PrefixLists):
    """Refuses every admission."""

    def make_room(self, count: int, hits: list[int]) -> None:
        """Refuse."""
        raise MemoryError


class Silent(PrefixLists):
    """Tells nothing."""

    def take_events(self) -> str:
        """Return no event."""
        return "[]"


class EveryoneInOneBlock(PrefixLists):
    """Gives everybody the same block."""

    def slots(self, request: int) -> list[int]:
        """Count from 0."""
        return list(range(len(super().slots(request))))


class RefusesSalts(PrefixLists):
    """Admits everybody but those who are kept apart."""

    def admit(self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any) -> Any:
        """Refuse a salt."""
        if given.get("salt"):
            raise MemoryError
        return super().admit(request, tokens, max_new_tokens, **given)


class KnowsNoSalt(PrefixLists):
    """Has no such argument."""

    def admit(self, request: int, tokens: Sequence[int], max_new_tokens: int) -> Any:  # type: ignore[override]
        """Begin a request."""
        return super().admit(request, tokens, max_new_tokens)


@pytest.mark.parametrize(
    ("cheat", "caught"),
    [
        (HitsNothing, {6, 14}),
        (RefusesAll, {18}),
        (Silent, {46}),
        (EveryoneInOneBlock, {16, 28}),
        (RefusesSalts, {18}),
        (KnowsNoSalt, {18}),
    ],
)
def test_cheats_are_caught(cheat: Any, caught: set[int]) -> None:
    """A cache that is safe because it does nothing is no cache."""
    assert caught <= failed(with_cache(cheat))


@pytest.mark.parametrize("features", ["salt", "adapter", "adapter adapter_version", "media", "embeddings"])
def test_what_is_claimed_has_to_be_taken(features: str) -> None:
    """An argument that is claimed and is not there is no refusal, whichever it is."""
    assert 18 in failed(with_cache(KnowsNoSalt, features=tuple(features.split())))
    assert failed(with_cache(PrefixLists, features=tuple(features.split()))) == set()


@pytest.mark.parametrize(
    ("choices", "requirement"),
    [
        ({"eviction_order": "lru_head_first"}, 24),
        ({"eviction_order": "lru_node"}, 24),
        ({"eviction_order": "lru_node_renewed"}, 24),
        ({"eviction_order": "all_at_once"}, 24),
        ({"tail_block": "keyed"}, 3),
        ({"event_copies": "each_copy"}, 41),
    ],
)
def test_what_is_declared_has_to_be_done(choices: dict[str, str], requirement: int) -> None:
    """A canonical cache that declares another answer is held to it."""
    assert requirement in failed(with_cache(PrefixLists, **choices))


def test_copies_are_declared_by_those_who_tell() -> None:
    """Nothing can be asked about events of a cache that has none."""
    claims = Claims(block_sizes=(4,), choices={"event-copies": "each_copy"})
    offered = offering("prefix_cache")
    found = unasked_of_manager("prefix_cache", offered, claims, plan(offered, claims, "quick"))
    assert any("event-copies" in each for each in found)
