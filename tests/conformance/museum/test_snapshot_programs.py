"""Tests of exhibits about snapshots: each is shown by its program, found by search, and made short again."""

import random
from importlib import import_module
from itertools import islice
from typing import Any

import pytest
from exhibits import breaks, breaks_without, finds

from kvref_conformance.cases import PROGRAM, Case, opening
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.museum.exhibit import Exhibit
from kvref_conformance.programs.running import run
from kvref_conformance.programs.shrinking import shrink_program, steps_of
from kvref_conformance.subjects.lists import Lists
from kvref_conformance.subjects.reference_memory import ReferenceMemory

TOPICS = ("snapshots_hits", "snapshots_states", "snapshots_evictions")
EXHIBITS: dict[str, Exhibit] = {
    name: value.exhibit
    for topic in TOPICS
    for name, value in vars(import_module(f"kvref_conformance.museum.{topic}")).items()
    if isinstance(value, type) and "exhibit" in vars(value)
}
#: Faults that show in caches of other sizes: fewer blocks or states, snapshots further apart.
OPENED: dict[str, dict[str, int]] = {
    "HitOfBlocksAlone": {"snapshot_interval": 8},
    "JunctionNeverSaved": {"snapshot_interval": 8},
    "IntervalFromTheHit": {"snapshot_interval": 8},
    "SplitLosesTheState": {"snapshot_interval": 8},
    "AbortLetsGoTwice": {"num_states": 3},
    "NewestSnapshotGoesFirst": {"num_states": 4},
    "RestoresRenewNothing": {"num_states": 3},
    "FirstComersKeepTheirSlots": {"num_states": 3},
    "StateTakesItsBlocksAlong": {"num_states": 3},
    "RefusedRequestKeepsAState": {"num_states": 24},
    "BlocksEvictedUnderTheState": {"num_blocks": 3},
    "BlockTakesAllStatesAlong": {"num_blocks": 3},
    "WindowCutShort": {"window": 5},
    "WindowForgotten": {"window": 5, "num_blocks": 4},
}
#: Finds that are made short, for where one ends depends on where it began.
FINDS = 8
#: Every requirement of snapshots but the one that no contract of slots can show.
REQUIREMENTS = {f"KV-SNAP-{number:03d}" for number in range(1, 26) if number != 4}


def own_case(exhibit: Exhibit) -> Case:
    """Return the case of an exhibit's own program: eight blocks, six states, a snapshot every block."""
    options: dict[str, Any] = {"num_blocks": 8, "num_states": 6, "snapshot_interval": 4}
    options |= {**OPENED.get(exhibit.name, {}), PROGRAM: exhibit.program}
    return Case(verb="snapshot_cache", seq_lens=(), query_lens=(), block_size=4, options=options)


def test_every_requirement_of_snapshots_has_an_exhibit() -> None:
    """A check that no fault has ever failed may be asking nothing."""
    assert {requirement for exhibit in EXHIBITS.values() for requirement in exhibit.breaks} == REQUIREMENTS


@pytest.mark.parametrize("name", EXHIBITS)
def test_program_shows_the_fault(name: str) -> None:
    """The program beside an exhibit shows what it breaks, and nothing on honest caches."""
    exhibit = EXHIBITS[name]
    case = own_case(exhibit)
    assert breaks(exhibit, case)
    for honest in (Lists, ReferenceMemory):
        session = InProcessHost(honest()).open(case.verb, **opening(case))
        assert not run(exhibit.program, session, case, honest.claims).breaches


@pytest.mark.parametrize("name", EXHIBITS)
def test_no_step_of_the_program_can_be_left_out(name: str) -> None:
    """It is the shortest known: without any one step the fault does not show."""
    exhibit = EXHIBITS[name]
    assert not list(breaks_without(exhibit, own_case(exhibit)))


@pytest.mark.parametrize("name", EXHIBITS)
def test_search_finds_the_fault_and_makes_it_short(name: str) -> None:
    """Seeded programs show it within the limit, and one of the first is left with two steps more at most."""
    exhibit = EXHIBITS[name]
    most = len(steps_of(own_case(exhibit))) + 2
    cases = islice(finds(exhibit, random.Random(exhibit.name)), FINDS)
    short = (shrink_program(case, lambda tried: breaks(exhibit, tried)) for case in cases)
    assert any(len(steps_of(case)) <= most for case in short), f"of {FINDS} finds none has {most} steps"
