"""Tests of the checks of snapshot caches: honest subjects pass, whatever they declare, and cheats do not."""

from collections.abc import Sequence
from typing import Any

import pytest
from blocks_judged import levels_ask
from subject_hosts import open_subject

from kvref_conformance.checks import all_checks
from kvref_conformance.claims import Claims
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.oracle import Oracle
from kvref_conformance.runner.evaluate import Evidence, evaluate, plan
from kvref_conformance.subjects.lists import OF_PREFIXES, OF_SNAPSHOTS, Lists
from kvref_conformance.subjects.lists.requests import Request
from kvref_conformance.subjects.lists.snapshots import NULL, ZEROS, SnapshotLists, Step
from kvref_conformance.subjects.reference_memory import ReferenceMemory

#: Requirements of snapshots, but that a state is kept as one: in this contract it is.
NUMBERS = set(range(1, 26)) - {4}
OPTIONS = {"num_blocks": 8, "block_size": 4, "num_states": 6, "snapshot_interval": 4}


def judged(subject: Any, level: Any = "quick") -> list[Evidence]:
    """Run all checks of snapshots that a subject must pass."""
    host = InProcessHost(subject)
    offered = tuple(name for name in host.hello().verbs if name.startswith("snapshot_cache"))
    oracle = Oracle(subject.claims)
    return [evaluate(check, case, host, oracle) for check, case in plan(offered, subject.claims, level)]


def asked(found: list[Evidence]) -> set[int]:
    """Return the numbers of the requirements that were asked about."""
    return {int(evidence.requirement[-3:]) for evidence in found}


def failed(subject: Any) -> set[int]:
    """Return the numbers of those that failed."""
    return asked([evidence for evidence in judged(subject) if evidence.status == "fail"])


def with_cache(cache: Any, features: tuple[str, ...] = (*OF_PREFIXES, *OF_SNAPSHOTS), **choices: str) -> Any:
    """Return a subject that offers a snapshot cache under these claims."""
    spelled = {name.replace("_", "-"): answer for name, answer in choices.items()}
    claims = Claims(block_sizes=(4, 1, 3), features=features, choices=spelled)
    return type("Subject", (), {"snapshot_cache": cache, "claims": claims})()


@pytest.mark.parametrize("subject", [Lists, ReferenceMemory])
def test_honest_caches_pass_every_check(subject: Any) -> None:
    """Twice each, and nobody looked at another's lines."""
    assert levels_ask(subject(), ("snapshot_cache",)) == 3 * [{f"KV-SNAP-{n:03d}" for n in NUMBERS}]
    found = judged(subject(), "exhaustive")
    assert [evidence for evidence in found if evidence.status == "fail"] == []


@pytest.mark.parametrize("saves", ["chunk_end", "branch"])
def test_another_rule_of_saving_may_be_declared(saves: str) -> None:
    """Who declares what it does passes; who does the same under the canonical name does not."""
    cache = type("Choosing", (SnapshotLists,), {"snapshot_saves": saves})
    assert failed(with_cache(cache, snapshot_saves=saves)) == set()
    assert failed(with_cache(cache, snapshot_saves="unspecified")) == set()
    assert 14 in failed(with_cache(cache))


def test_a_state_may_be_handed_over() -> None:
    """A step that ends where a snapshot is due may leave its own slot there and go on in another."""

    class HandsOver(SnapshotLists):
        def is_new(self, one: Request, position: int) -> bool:
            return position != one.scheduled and super().is_new(one, position)

        def save(self, one: Request, step: Step) -> None:
            super().save(one, step)
            known = self.find_state(one.content, step.stop) is not None
            if not step.num_drafts and not known and step.stop in self.positions(one, step):
                step.saves.append((step.stop, step.state))

    assert failed(with_cache(HandsOver)) == set()


def test_one_pool_may_serve_blocks_and_states() -> None:
    """What is declared of the pool has to be so: ids of two pools collide in one."""
    assert failed(with_cache(SnapshotLists, state_pool="shared"))


class HitsNothing(SnapshotLists):
    """Finds nothing, and so never reads anything wrong."""

    def joint_hit(self, *_: Any) -> tuple[int, list[int], int]:
        """Hit nothing."""
        return 0, [], ZEROS


class RefusesAll(SnapshotLists):
    """Refuses every admission."""

    def make_room(self, count: int, hits: list[int]) -> None:
        """Refuse."""
        raise MemoryError


class EveryoneInOneState(SnapshotLists):
    """Gives everybody the same state slot."""

    def told(self, step: Step) -> tuple[int, int, list[int], list[int]]:
        """Name slot 0."""
        return step.source, 0, [], []


class NoSlots(SnapshotLists):
    """Names no slot at all."""

    def slots(self, request: int) -> list[int]:
        """Return null."""
        return [NULL] * len(super().slots(request))


class KnowsNoSalt(SnapshotLists):
    """Has no such argument."""

    def admit(self, request: int, tokens: Sequence[int], max_new_tokens: int) -> Any:  # type: ignore[override]
        """Begin a request."""
        return super().admit(request, tokens, max_new_tokens)


@pytest.mark.parametrize(
    ("cheat", "caught"),
    [
        (HitsNothing, {14}),
        (RefusesAll, {11}),
        (EveryoneInOneState, {9}),
        (NoSlots, {10}),
        (KnowsNoSalt, {11}),
    ],
)
def test_cheats_are_caught(cheat: Any, caught: set[int]) -> None:
    """A cache that is safe because it does nothing is no cache."""
    assert failed(with_cache(cheat)) & (caught | {19})


def test_features_that_are_not_claimed_are_not_asked() -> None:
    """No drafts, junctions, windows or namespaces."""
    found = judged(with_cache(SnapshotLists, features=()))
    assert all(evidence.status == "pass" for evidence in found)
    assert asked(found) == NUMBERS - {13, 15, 19, 22}


def test_a_check_judges_one_requirement_by_name() -> None:
    """Whoever reads the report looks the requirement up."""
    checks = [check for check in all_checks() if "snapshot_cache" in check.verbs]
    assert all(check.operations and check.requirement.startswith("KV-SNAP-") for check in checks)
    assert len({check.name for check in checks}) == len(checks)


def test_vllm_hits_what_it_saved() -> None:
    """Its hybrid manager restores the state at the end of a step, and starts a new prompt from zeros."""
    host = open_subject("vllm_hybrid_manager")
    cache = host.open("snapshot_cache", **OPTIONS)
    first = cache.do("admit", request=1, tokens=list(range(8)), max_new_tokens=8)
    assert (first["num_cached_tokens"], first["source"]) == (0, -1)
    assert (first["save_positions"], first["save_states"]) == ([8], [first["state"]])
    cache.do("commit", request=1)
    second = cache.do("admit", request=2, tokens=list(range(9)), max_new_tokens=9)
    assert (second["num_cached_tokens"], second["source"]) == (8, first["state"])
    assert second["state"] != first["state"]
    host.close()
