"""Tests of drawn programs: what they are drawn from, and that two independent managers agree on them."""

import random

import pytest

from kvref_conformance.cases import PROGRAM, Case, opening
from kvref_conformance.claims import Claims
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.managers import MANAGERS
from kvref_conformance.programs.drawn import draw_case
from kvref_conformance.programs.running import Run, run
from kvref_conformance.programs.step import parse
from kvref_conformance.subjects.lists import Lists
from kvref_conformance.subjects.reference_memory import ReferenceMemory

MANAGERS_OF_BLOCKS = ("block_allocator", "block_tables")


def drawn(manager: str, seed: int, claims: Claims = Lists.claims, length: int = 60) -> Case:
    """Return a drawn case in which every operation may be needed."""
    return draw_case(manager, random.Random(seed), claims, tuple(MANAGERS[manager].operations), length)


def performed(subject: object, case: Case, claims: Claims = Lists.claims) -> Run:
    """Run the program of a case."""
    return run(
        str(case.option(PROGRAM)), InProcessHost(subject).open(case.verb, **opening(case)), case, claims
    )


@pytest.mark.parametrize("manager", MANAGERS_OF_BLOCKS)
@pytest.mark.parametrize("seeds", range(10))
def test_lists_and_reference_leave_the_same_trace(manager: str, seeds: int) -> None:
    """Two implementations that share no line agree on every table, refusal and count."""
    for seed in range(12 * seeds, 12 * seeds + 12):
        case = drawn(manager, seed)
        ours, theirs = performed(Lists(), case), performed(ReferenceMemory(), case)
        assert not ours.breaches, (case.options, ours.breaches)
        assert not theirs.breaches, (case.options, theirs.breaches)
        assert ours.trace == theirs.trace, case.options


@pytest.mark.parametrize("manager", MANAGERS_OF_BLOCKS)
def test_programs_follow_from_the_generator(manager: str) -> None:
    """A seed is enough to have a find again."""
    assert drawn(manager, 5) == drawn(manager, 5)
    assert drawn(manager, 5) != drawn(manager, 6)


@pytest.mark.parametrize("manager", MANAGERS_OF_BLOCKS)
def test_most_steps_make_sense(manager: str) -> None:
    """A search that is passed over finds nothing."""
    runs = [performed(Lists(), drawn(manager, seed)) for seed in range(40)]
    assert sum(run.performed for run in runs) > 0.5 * 40 * 60


@pytest.mark.parametrize("manager", MANAGERS_OF_BLOCKS)
def test_pools_are_nearly_full_and_often_refuse(manager: str) -> None:
    """Faults of eviction, atomicity and reuse need a pool that runs out."""
    refusals = 0
    for seed in range(40):
        case = drawn(manager, seed)
        session = InProcessHost(Lists()).open(case.verb, **opening(case))
        refusals += _refused(session, case)
    assert refusals > 40


def _refused(session: object, case: Case) -> int:
    """Count the refusals of a run."""
    counted = 0

    class Counting:
        def do(self, operation: str, /, **arguments: object) -> object:
            nonlocal counted
            try:
                return session.do(operation, **arguments)  # type: ignore[attr-defined]
            except Exception:
                counted += operation in ("allocate", "append")
                raise

    run(str(case.option(PROGRAM)), Counting(), case, Lists.claims)  # type: ignore[arg-type]
    return counted


def test_only_offered_operations_are_needed() -> None:
    """A subject that cannot fork is searched all the same."""
    for seed in range(20):
        case = draw_case(
            "block_tables", random.Random(seed), Claims(), ("add", "append", "free", "block_table"), 40
        )
        words = {step.name for step in parse(str(case.option(PROGRAM)))}
        assert words <= {
            "add",
            "append",
            "fill",
            "free",
            "drain",
            "add_again",
            "append_unknown",
            "append_none",
            "add_far",
            "free_unknown",
        }


def test_only_what_is_claimed_is_opened() -> None:
    """Windows and groups are features."""
    for seed in range(20):
        assert set(drawn("block_tables", seed, Claims()).options) == {"num_blocks", PROGRAM}
    every = {name for seed in range(40) for name in drawn("block_tables", seed).options}
    assert every == {"num_blocks", "block_sizes", "windows", PROGRAM}
