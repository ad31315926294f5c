"""Tests of exhibits about prefixes: each is shown by its program, found by search, and made short again."""

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
#: Finds that are made short, for where one ends depends on where it began.
FINDS = 8
#: Every requirement of prefix caches, keys, events and indexes.
REQUIREMENTS = {
    f"KV-PREFIX-{number:03d}" for number in (*range(1, 29), *range(30, 35), *range(40, 47), *range(50, 54))
}


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
    assert not list(breaks_without(exhibit, own_case(exhibit)))


@pytest.mark.parametrize("name", SHOWN)
def test_search_finds_the_fault_and_makes_it_short(name: str) -> None:
    """Seeded programs show it within the limit, and one of the first is left with two steps more at most."""
    exhibit = EXHIBITS[name]
    most = len(steps_of(own_case(exhibit))) + 2
    cases = islice(finds(exhibit, random.Random(exhibit.name)), FINDS)
    short = (shrink_program(case, lambda tried: breaks(exhibit, tried)) for case in cases)
    assert any(len(steps_of(case)) <= most for case in short), f"of {FINDS} finds none has {most} steps"
