"""Tests of exhibits about prefixes: each is shown by its program, found by search, and made short again."""

import random
from importlib import import_module
from typing import Any

import pytest

from kvref_conformance.cases import PROGRAM, Case, opening
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.journal import Entry, Journaled
from kvref_conformance.managers import MANAGERS
from kvref_conformance.museum.exhibit import Exhibit
from kvref_conformance.programs.breach import Breach
from kvref_conformance.programs.drawn import draw_case
from kvref_conformance.programs.running import run
from kvref_conformance.programs.shrinking import shrink_program, steps_of
from kvref_conformance.subjects.lists import Lists, RadixOfLists

TOPICS = ("prefix_hits", "prefix_namespaces", "prefix_evictions", "prefix_lifecycle")
MORE_TOPICS = ("block_keys", "prefix_events", "block_index")
EXHIBITS: dict[str, Exhibit] = {
    name: value.exhibit
    for topic in (*TOPICS, *MORE_TOPICS)
    for name, value in vars(import_module(f"kvref_conformance.museum.{topic}")).items()
    if isinstance(value, type) and "exhibit" in vars(value)
}
#: Faults that no one run shows: a second process does.
ACROSS_RUNS = {"KeysOfThisProcess"}
SHOWN = [name for name in EXHIBITS if name not in ACROSS_RUNS]
#: Operations that a search may take, and steps of a drawn program.
OPERATIONS, LENGTHS = 200_000, (5, 10, 20, 40, 80)
#: Finds that are made short, for where one ends depends on where it began.
FINDS = 8
#: Every requirement of prefix caches, keys, events and indexes.
REQUIREMENTS = {
    f"KV-PREFIX-{number:03d}" for number in (*range(1, 29), *range(30, 35), *range(40, 47), *range(50, 54))
}


def shown(exhibit: Exhibit, case: Case) -> tuple[tuple[Breach, ...], int]:
    """Return what a program breaches on an exhibit, and how many operations it takes."""
    journal: list[Entry] = []
    session = Journaled(InProcessHost(exhibit.subject()).open(case.verb, **opening(case)), journal)
    ran = run(str(case.option(PROGRAM)), session, case, exhibit.subject.claims)
    return ran.breaches, len(journal)


def breaks(exhibit: Exhibit, case: Case) -> bool:
    """Say whether a program shows what an exhibit breaks."""
    return any(breach.requirement in exhibit.breaks for breach in shown(exhibit, case)[0])


def own_case(exhibit: Exhibit) -> Case:
    """Return the case of an exhibit's own program: six blocks; keys of one bit if it is about weak ones."""
    options: dict[str, Any] = {PROGRAM: exhibit.program}
    if exhibit.verbs == ("prefix_cache",):
        options["num_blocks"] = 6
    if "KV-PREFIX-034" in exhibit.breaks:
        options["hash_bits"] = 1
    sizes = exhibit.subject.claims.block_sizes
    return Case(verb=exhibit.verbs[0], seq_lens=(), query_lens=(), block_size=sizes[0], options=options)


def test_every_requirement_of_prefixes_has_an_exhibit() -> None:
    """A check that no fault has ever failed may be asking nothing."""
    assert {requirement for exhibit in EXHIBITS.values() for requirement in exhibit.breaks} == REQUIREMENTS


@pytest.mark.parametrize("name", SHOWN)
def test_program_shows_the_fault(name: str) -> None:
    """The program beside an exhibit shows what it breaks, and nothing on honest lists of either kind."""
    exhibit = EXHIBITS[name]
    case = own_case(exhibit)
    assert breaks(exhibit, case)
    for honest in (Lists, RadixOfLists):
        if hasattr(honest, case.verb):
            session = InProcessHost(honest()).open(case.verb, **opening(case))
            assert not run(exhibit.program, session, case, honest.claims).breaches


@pytest.mark.parametrize("name", SHOWN)
def test_no_step_of_the_program_can_be_left_out(name: str) -> None:
    """It is the shortest known: without any one step the fault does not show."""
    exhibit = EXHIBITS[name]
    case = own_case(exhibit)
    steps = steps_of(case)
    for at in range(len(steps)):
        shorter = "; ".join(steps[:at] + steps[at + 1 :])
        assert not breaks(exhibit, case.with_options(**{PROGRAM: shorter})), shorter


@pytest.mark.parametrize("name", SHOWN)
def test_search_finds_the_fault_and_makes_it_short(name: str) -> None:
    """Seeded programs show it within the limit, and one of the first is left with two steps more at most."""
    exhibit = EXHIBITS[name]
    manager, claims = exhibit.verbs[0], exhibit.subject.claims
    operations = tuple(
        name
        for name, operation in MANAGERS[manager].operations.items()
        if operation.feature is None or operation.feature in claims.features
    )
    most = len(steps_of(own_case(exhibit))) + 2
    rng, spent, short = random.Random(exhibit.name), 0, ""
    for _ in range(FINDS):
        while spent < OPERATIONS:
            case = draw_case(manager, rng, claims, operations, rng.choice(LENGTHS))
            breaches, count = shown(exhibit, case)
            spent += count
            if any(breach.requirement in exhibit.breaks for breach in breaches):
                break
        else:
            pytest.fail(f"not found in {spent} operations")
        found = shrink_program(case, lambda tried: breaks(exhibit, tried))
        short = str(found.option(PROGRAM))
        if len(steps_of(found)) <= most:
            return
    pytest.fail(f"{FINDS} finds, and none was made as short as {most} steps: {short}")
