"""Which steps a program may have: the chapter says so, and a case file with another is refused."""

import json
import random
import sys
from dataclasses import replace
from typing import Any

import pytest

from kvref.errors import ArgumentError
from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims, full_claims
from kvref_conformance.managers import MANAGERS, offering
from kvref_conformance.museum import all_exhibits
from kvref_conformance.programs.drawn import draw_case
from kvref_conformance.requirements import read_directives, spec_dir
from kvref_conformance.runner.casefile import read_case
from kvref_conformance.runner.evaluate import plan
from kvref_conformance.runner.known_steps import MANY, check_program, steps_of_manager

sys.path.insert(0, str(spec_dir().parent / "docs" / "_ext"))
FULL = replace(full_claims(Claims()), block_sizes=(1, 3, 16))


def stated() -> dict[str, dict[str, tuple[tuple[int, int], str]]]:
    """What the chapter says: manager -> step -> how many numbers it takes, and what it calls."""
    from kvref_written import entries

    (table,) = [d for d in read_directives(spec_dir() / "conformance.md") if d.name == "steps"]
    found: dict[str, dict[str, tuple[tuple[int, int], str]]] = {}
    for head, _, calls in entries(table.body):
        manager, _, step = head.partition(": ")
        name, *numbers = step.split()
        optional = sum(number.startswith("[") for number in numbers)
        again = "…" in numbers
        most = MANY if again else len(numbers)
        found.setdefault(manager, {})[name] = ((len(numbers) - optional - again, most), calls)
    return found


@pytest.mark.parametrize("manager", MANAGERS)
def test_the_chapter_has_every_step(manager: str) -> None:
    """A reader can write every program that the suite can run, and no other."""
    due = {
        name: (least, MANY if most > least + 1 else most)
        for name, (least, most) in steps_of_manager(manager).items()
    }
    assert {name: takes for name, (takes, _) in stated()[manager].items()} == due


@pytest.mark.parametrize("manager", MANAGERS)
def test_a_step_calls_operations_of_its_manager(manager: str) -> None:
    """What stands beside a step is what a subject will see."""
    for name, (_, calls) in stated()[manager].items():
        assert set(calls.split(", ")) <= set(MANAGERS[manager].operations), name


@pytest.mark.parametrize("manager", MANAGERS)
def test_what_the_suite_asks_can_be_read_back(manager: str) -> None:
    """Every case of the lattice, every drawn one and every exhibit's is a case that a file may hold."""
    cases = [case for _, case in plan(offering(manager), FULL, "quick")]
    operations = tuple(MANAGERS[manager].operations)
    cases += [draw_case(manager, random.Random(i), FULL, operations, 40) for i in range(50)]
    for case in cases:
        assert read_case(json.loads(json.dumps(case.to_dict()))).options == case.options
    for exhibit in all_exhibits():
        if getattr(exhibit, "program", "") and exhibit.verbs[0] == manager:
            check_program(manager, exhibit.program)


def case(**options: Any) -> dict[str, Any]:
    """A case of an allocator, as a file has it."""
    given = {"num_blocks": 4, "program": "allocate 0 1", **options}
    made = Case(verb="block_allocator", seq_lens=(), query_lens=(), block_size=16, options=given)
    return made.to_dict()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"program": "hello 0"}, r"step 0 of the program is 'hello 0', expected .*: allocate, rest, free"),
        ({"program": "drain; alocate 0 1"}, "step 1 .* did you mean allocate"),
        ({"program": "allocate 0"}, "expected 2 numbers after allocate"),
        ({"program": "free 0 0 0"}, "expected 1 to 2 numbers after free"),
        ({"num_blocks": "x"}, r"case.options\['num_blocks'\] = 'x', expected an integer from 1"),
        ({"num_blocks": 0}, "num_blocks.* = 0, expected"),
        ({"num_blocks": True}, "num_blocks.* = True, expected"),
        ({"num_blocks": 1.5}, "num_blocks.* = 1.5, expected"),
        ({"sessions": 1000}, "sessions.* = 1000, expected"),
    ],
)
def test_a_case_that_asks_nothing_is_refused(options: dict[str, Any], said: str) -> None:
    """A word that no interpreter knows would pass over, and the case with it."""
    with pytest.raises(ArgumentError, match=said):
        read_case(case(**options))


def test_the_pool_and_the_block_size_are_needed() -> None:
    """A block of nothing and a pool of unknown size are bad input, not faults of a subject."""
    without = case()
    del without["options"]["num_blocks"]
    with pytest.raises(ArgumentError, match="no num_blocks"):
        read_case(without)
    with pytest.raises(ArgumentError, match="block_size = 0"):
        read_case({**case(), "block_size": 0})


@pytest.mark.parametrize("sizes", ["", "4,", "4,x", "4,0", 0, True])
def test_lists_of_numbers_are_read_as_such(sizes: Any) -> None:
    """Block sizes of groups stand as text with commas."""
    given = {"num_blocks": 4, "program": "add 0", "block_sizes": sizes}
    made = Case(verb="block_tables", seq_lens=(), query_lens=(), block_size=16, options=given)
    with pytest.raises(ArgumentError, match="block_sizes"):
        read_case(made.to_dict())
