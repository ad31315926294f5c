"""A failing program is shown step by step, with the operations that each step called."""

import random
from dataclasses import replace
from typing import Any

import pytest

from kvref_conformance.cases import PROGRAM, Case, opening
from kvref_conformance.checks import all_checks
from kvref_conformance.claims import Claims, full_claims
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.journal import Entry, Journaled
from kvref_conformance.managers import MANAGERS
from kvref_conformance.oracle import Oracle
from kvref_conformance.programs.drawn import draw_case
from kvref_conformance.programs.running import run
from kvref_conformance.runner.evaluate import evaluate
from kvref_conformance.runner.failures import program_lines
from kvref_conformance.runner.stepwise import MAX_CALLS, by_step, calls_of, lines_of_step
from kvref_conformance.subjects.lists import Lists

FULL = replace(full_claims(Lists.claims), block_sizes=(4,))


def journal_of(case: Case, claims: Claims) -> tuple[Entry, ...]:
    """What the built-in managers are asked in a case, by any check that runs programs of its manager."""
    check = next(c for c in all_checks() if case.verb in c.verbs and c.applies(case.verb, claims))
    return evaluate(check, case, InProcessHost(Lists), Oracle(claims)).journal


@pytest.mark.parametrize("manager", MANAGERS)
def test_every_entry_belongs_to_one_step(manager: str) -> None:
    """Nothing is lost and nothing twice, in programs that nobody wrote."""
    taken_apart = 0
    for number in range(12):
        operations = tuple(MANAGERS[manager].operations)
        case = draw_case(manager, random.Random(number), FULL, operations, 10)
        journal = journal_of(case, FULL)
        steps = by_step(case, journal, FULL)
        if steps is not None:
            taken_apart += 1
            assert [entry for step in steps for entry in step] == list(journal)
            assert len(steps) == 1 + len(str(case.options["program"]).split(";"))
    assert taken_apart > 6


CASE = Case(
    verb="block_allocator",
    seq_lens=(),
    query_lens=(),
    block_size=16,
    options={"num_blocks": 2, "program": "allocate 0 1; touch 0; free 0"},
)


def test_calls_stand_beside_their_steps() -> None:
    """And what was asked only to look does not."""
    check = next(c for c in all_checks() if c.requirement == "KV-BLOCK-005")
    found = evaluate(check, CASE, InProcessHost(Lists), Oracle(FULL))
    lines = program_lines(found, FULL)
    assert lines[1:] == (
        "    0  allocate 0 1   allocate(num_blocks=1)",
        "    1  touch 0        touch(blocks=[0])",
        "    2  free 0         free(blocks=[0])",
    )
    full = program_lines(found, FULL, full=True)
    assert sum("looked: num_free()" in line for line in full) >= 3
    assert full.index("    1  touch 0") < full.index("          touch(blocks=[0]) -> done")


def test_a_cache_that_tells_of_itself_is_taken_apart_as_well() -> None:
    """Tokens that are added later were not in the call, and what a program asks at its end is of no step."""
    claims = Claims(block_sizes=(1,), features=("events",))
    options: dict[str, Any] = {"num_blocks": 4, PROGRAM: "admit 0 1 1; commit 0; decode 0 2 1 0 1; commit 0"}
    case = Case(verb="prefix_cache", seq_lens=(), query_lens=(), block_size=1, options=options)
    journal: list[Entry] = []
    session = Journaled(InProcessHost(Lists()).open("prefix_cache", **opening(case)), journal)
    run(str(case.option(PROGRAM)), session, case, claims)
    steps = by_step(case, journal, claims)
    assert steps is not None
    assert [own[0].operation for own in steps[1:]] == ["admit", "commit", "extend", "commit"]
    assert len(steps[1][0].arguments["tokens"]) == 1


def test_looks_are_folded_and_long_steps_cut() -> None:
    """Equal answers are told once, a refusal never folded."""
    look = Entry("num_free", {}, {"num_free_blocks": 3})
    free = Entry("free", {"blocks": [1]})
    refused = Entry("num_free", {}, {}, "refused")
    assert lines_of_step([look, look, free, refused]) == [
        "looked: num_free() -> num_free_blocks = 3",
        "free(blocks=[1]) -> done",
        "num_free() -> refused",
    ]
    assert calls_of([look, free]) == "free(blocks=[1])"
    assert calls_of([replace(free, failure="refused")]) == "free(blocks=[1]) -> refused"
    assert calls_of([free] * (MAX_CALLS + 3)).endswith("; … 5 calls")


def test_a_journal_of_something_else_is_left_whole() -> None:
    """What the program did not ask is shown as it was, after the steps."""
    strange = (Entry("free", {"blocks": [9]}),)
    assert by_step(CASE, strange, FULL) is None
    assert by_step(CASE, (), FULL) is None
