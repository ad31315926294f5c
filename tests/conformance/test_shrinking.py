"""Long programs that fail become short ones that fail, by whatever rule they fail."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref_conformance.cases import Case
from kvref_conformance.programs.shrinking import shrink_program, steps_of


def case_of(program: str, num_blocks: int = 12) -> Case:
    """A case with a program."""
    options = {"num_blocks": num_blocks, "program": program}
    return Case(verb="block_allocator", seq_lens=(), query_lens=(), options=options)


def shrunk(program: str, fails: Callable[[list[str]], bool], **rest: int) -> list[str]:
    """The steps left of a program that fails by a rule on its steps."""
    return steps_of(shrink_program(case_of(program), lambda case: fails(steps_of(case)), **rest))


LONG = "; ".join(f"allocate {i} {i + 1}; free {i}" for i in range(30))


def test_one_step_is_left_where_one_is_to_blame() -> None:
    """With no number that it does not need, and the others as small as the fault allows."""
    assert shrunk(LONG, lambda steps: any(s.startswith("free") for s in steps)) == ["free"]
    assert shrunk(
        LONG, lambda steps: any(s.startswith("allocate") and len(s.split()) > 2 for s in steps)
    ) == ["allocate 0 0"]


def test_two_steps_far_apart_are_found() -> None:
    """Neither of them fails alone."""

    def fails(steps: list[str]) -> bool:
        return "free 3" in steps and "free 27" in steps and steps.index("free 3") < steps.index("free 27")

    assert shrunk(LONG, fails) == ["free 3", "free 27"]


def test_what_begins_and_what_ends_go_together() -> None:
    """Left out alone, either would hide the fault; left out together they do not."""

    def fails(steps: list[str]) -> bool:
        begun = sum(s.startswith("begin") for s in steps)
        return "drain" in steps and begun == sum(s.startswith("end") for s in steps)

    assert shrunk("begin 0; begin 1; end 0; drain; end 1", fails) == ["drain"]


def test_a_name_stays_one_thing() -> None:
    """Renamed in one step alone it would be another allocation."""

    def fails(steps: list[str]) -> bool:
        names = [s.removeprefix("touch ") for s in steps if s.startswith("touch ")]
        return any(f"allocate {name} 1" in steps for name in names)

    assert shrunk("allocate 4 1; allocate 7 1; touch 7", fails) == ["allocate 0 1", "touch 0"]


def test_the_pool_gets_smaller_too() -> None:
    """A reader has fewer blocks to keep in mind."""
    small = shrink_program(case_of(LONG, 64), lambda case: case.option("num_blocks") >= 3)
    assert small.options == {"num_blocks": 3, "program": ""}


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_no_more_is_tried_than_allowed(budget: int) -> None:
    """Where a failure is a crash, each try is a start of the subject."""
    tried: list[Case] = []

    def fails(case: Case) -> bool:
        tried.append(case)
        return "free 29" in steps_of(case)

    small = shrink_program(case_of(LONG), fails, budget)
    assert len(tried) == budget
    assert "free 29" in steps_of(small)


def test_nothing_is_tried_twice() -> None:
    """A try may take long."""
    tried: list[str] = []

    def fails(case: Case) -> bool:
        tried.append(repr(case))
        return len(steps_of(case)) >= 4

    shrink_program(case_of(LONG), fails)
    assert len(tried) == len(set(tried))


@given(
    st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=24),
    st.sets(st.sampled_from("abcdefgh"), min_size=1),
)
def test_the_result_fails_and_no_step_of_it_is_idle(steps: list[str], needed: set[str]) -> None:
    """Whatever is needed, it stays, once each; whatever is not goes."""
    program = "; ".join([*steps, *sorted(needed)])

    def fails(left: list[str]) -> bool:
        return needed <= set(left)

    left = shrunk(program, fails)
    assert fails(left)
    assert sorted(left) == sorted(needed)
