"""Tests of exhibits about blocks: each is shown by its program, found by search, and made short again."""

import random
from typing import Any

import pytest
from exhibits import OPERATIONS, breaks, breaks_without, finds

from kvref_conformance.cases import PROGRAM, Case, opening
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.museum import block_allocator, block_sharing, block_tables
from kvref_conformance.museum.diagnose_managers import diagnose_manager
from kvref_conformance.museum.exhibit import Exhibit
from kvref_conformance.oracle import Oracle
from kvref_conformance.programs.running import run
from kvref_conformance.programs.shrinking import shrink_program, steps_of
from kvref_conformance.runner.evaluate import evaluate, plan
from kvref_conformance.subjects.lists import Lists

EXHIBITS: dict[str, Exhibit] = {
    name: value.exhibit
    for module in (block_allocator, block_tables, block_sharing)
    for name, value in vars(module).items()
    if isinstance(value, type) and "exhibit" in vars(value)
}
#: Every requirement of allocators and tables.
REQUIREMENTS = {f"KV-BLOCK-{number:03d}" for number in (*range(1, 14), *range(20, 35))}


def own_case(exhibit: Exhibit) -> Case:
    """Return the case of an exhibit's own program: six blocks, groups and windows where they are claimed."""
    options: dict[str, Any] = {"num_blocks": 6, PROGRAM: exhibit.program}
    claims = exhibit.subject.claims
    if "groups" in claims.features:
        options["block_sizes"] = ",".join(map(str, claims.block_sizes))
    if "pruning" in claims.features:
        options["windows"] = "5"
    return Case(
        verb=exhibit.verbs[0],
        seq_lens=(),
        query_lens=(),
        block_size=claims.block_sizes[0],
        options=options,
    )


def test_every_requirement_of_blocks_has_an_exhibit() -> None:
    """A check that no fault has ever failed may be asking nothing."""
    assert {requirement for exhibit in EXHIBITS.values() for requirement in exhibit.breaks} == REQUIREMENTS


@pytest.mark.parametrize("name", EXHIBITS)
def test_program_shows_the_fault(name: str) -> None:
    """The program beside an exhibit breaches what it breaks, and nothing on the lists it was made from."""
    exhibit = EXHIBITS[name]
    case = own_case(exhibit)
    assert breaks(exhibit, case)
    lists = InProcessHost(Lists()).open(case.verb, **opening(case))
    assert not run(exhibit.program, lists, case, Lists.claims).breaches


@pytest.mark.parametrize("name", EXHIBITS)
def test_no_step_of_the_program_can_be_left_out(name: str) -> None:
    """It is the shortest known: without any one step of several the fault does not show."""
    exhibit = EXHIBITS[name]
    assert not list(breaks_without(exhibit, own_case(exhibit)))


@pytest.mark.parametrize("name", EXHIBITS)
def test_fault_is_recognised(name: str) -> None:
    """The failing program and what was given are enough to name the fault again."""
    exhibit = EXHIBITS[name]
    host, claims = InProcessHost(exhibit.subject()), exhibit.subject.claims
    planned = plan(host.hello().verbs, claims, "quick")
    for requirement in exhibit.breaks:
        ran = ((check, case) for check, case in planned if check.requirement == requirement)
        found = ((check, evaluate(check, case, host, Oracle(claims))) for check, case in ran)
        check, evidence = next(pair for pair in found if pair[1].status == "fail")
        assert name in [match.exhibit.name for match in diagnose_manager(check, evidence, claims)]


@pytest.mark.parametrize("name", EXHIBITS)
def test_search_finds_the_fault_and_makes_it_short(name: str) -> None:
    """Seeded programs show it within the limit, and the shortest left has two steps more at most."""
    exhibit = EXHIBITS[name]
    case = next(finds(exhibit, random.Random(exhibit.name)), None)
    assert case, f"not found in {OPERATIONS} operations"
    short = shrink_program(case, lambda tried: breaks(exhibit, tried))
    assert len(steps_of(short)) <= len(steps_of(own_case(exhibit))) + 2, short.option(PROGRAM)
