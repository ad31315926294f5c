"""Tests of programs for allocators: what makes sense, what must be refused, what a breach says."""

from typing import Any

import pytest

from kvref_conformance.cases import Case, opening
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.programs.running import Run, run
from kvref_conformance.subjects.lists import Lists
from kvref_conformance.subjects.lists.allocator import ListAllocator

#: Everything an allocator can be asked.
LONG = (
    "allocate 0 2; touch 0 1; free 0; allocate 1 9; free_twice 0 1; rest 2; begin 0; free 2; allocate 3 1; "
    "end 0; allocate 4 2; pin 4 0; free 4; unpin 4 0; free_again 4 0; allocate 0 3; free_outside 0 -1; "
    "allocate 5 1; touch_outside 5 3; allocate_negative 2; drain"
)


def performed(program: str, allocator: Any = ListAllocator, num_blocks: int = 6, **claims: Any) -> Run:
    """Run a program on an allocator."""
    subject = type("Subject", (), {"block_allocator": allocator})
    case = Case(
        verb="block_allocator",
        seq_lens=(),
        query_lens=(),
        options={"num_blocks": num_blocks, "program": program},
    )
    session = InProcessHost(subject()).open("block_allocator", **opening(case))
    return run(program, session, case, Claims(**{"choices": {"free-order": "fifo"}, **claims}))


def messages(ran: Run) -> dict[str, str]:
    """Return what is said about each requirement."""
    return {breach.requirement: breach.message for breach in ran.breaches}


def test_honest_lists_breach_nothing() -> None:
    """Every step is performed, and what must be refused is."""
    ran = performed(LONG)
    assert ran.breaches == ()
    assert ran.performed == LONG.count(";") + 1


@pytest.mark.parametrize("drop", range(LONG.count(";") + 1))
def test_any_part_of_a_program_is_a_program(drop: int) -> None:
    """Steps that make no sense without the one that was dropped are passed over."""
    steps = LONG.split("; ")
    assert performed("; ".join(steps[:drop] + steps[drop + 1 :])).breaches == ()
    assert performed("; ".join(steps[drop:])).breaches == ()


@pytest.mark.parametrize(
    "step", ["free 0", "touch 3 1", "end 2", "unpin 0", "free_again 0 0", "free_null 0", "dance 1", "free"]
)
def test_step_without_sense_is_passed_over(step: str) -> None:
    """What was never allocated cannot be freed, and nobody has to know every word."""
    assert performed(f"allocate 1 1; {step}").performed == 1


def test_message_says_whose_block_is_lost() -> None:
    """The blocks that were given, the one that was held, and whose writes are gone."""

    class Sharing(ListAllocator):
        def take(self, count: int) -> list[int]:
            self.free_blocks = self.free_blocks[count:]
            return [5, 0][:count]

    assert messages(performed("allocate 0 1; allocate 1 2", Sharing)) == {
        "KV-BLOCK-001": "allocate(2) = [5, 0] holds block 5, which has a holder: allocation 1 writes over "
        "what allocation 0 wrote"
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [([1], "2 different"), ([1, 1], "2 different"), ([1, 6], "does not have"), ([-1, 1], "does not have")],
)
def test_wrong_lists_of_blocks_are_seen(given: list[int], said: str) -> None:
    """Too few, twice the same, beyond the pool and before it."""

    class Wrong(ListAllocator):
        def take(self, count: int) -> list[int]:
            return given

    assert said in messages(performed("allocate 0 2", Wrong))["KV-BLOCK-001"]


def test_refusal_that_changed_a_holder_is_seen_at_once() -> None:
    """A call with one good id and one bad one has touched the good one: it cannot be freed as before."""

    class HalfTouched(ListAllocator):
        def touch(self, blocks: list[int]) -> None:
            for block in blocks:
                self.check_in_pool([block])
                self.hold(block)

    assert (
        "num_free() = 5, expected 6"
        in messages(performed("allocate 0 1; touch_outside 0 0", HalfTouched))["KV-BLOCK-007"]
    )


def test_blocks_in_flight_may_be_counted_or_not() -> None:
    """They have no holder, and cannot be had: both counts are exact in their way."""

    class CountsThem(ListAllocator):
        def num_free(self) -> int:
            return len(self.free_blocks) + len(self.waiting)

    program = "allocate 0 2; begin 0; free 0; rest 1; allocate 2 1; end 0; rest 2"
    assert performed(program, CountsThem).breaches == ()
    assert performed(program).breaches == ()


def test_allocator_that_does_not_count_is_judged_by_what_it_gives() -> None:
    """`num_free` may be missing: then a lost block is one that cannot be had."""

    class Silent(ListAllocator):
        num_free = None  # type: ignore[assignment]

        def let_go(self, block: int) -> None:
            self.holders[block] -= 1

    assert set(messages(performed("allocate 0 2; free 0; drain", Silent))) == {"KV-BLOCK-009"}


def test_any_error_is_a_refusal_where_one_is_due() -> None:
    """Not every language has our errors; a plain IndexError refuses as well."""

    class Bare(ListAllocator):
        def check_room(self, num_blocks: int) -> None:
            if num_blocks > len(self.free_blocks):
                raise IndexError("pop from an empty list")

    assert performed("allocate 0 9; rest 1; allocate 2 1", Bare).breaches == ()


def test_error_is_a_breach_where_none_is_due() -> None:
    """The message has what the subject said."""

    class Clumsy(ListAllocator):
        def take(self, count: int) -> list[int]:
            raise ZeroDivisionError("in the free list")

    said = messages(performed("allocate 0 1", Clumsy))
    assert set(said) == {"KV-BLOCK-003"}
    assert "ZeroDivisionError: in the free list" in said["KV-BLOCK-003"]


@pytest.mark.parametrize(("order", "breached"), [("fifo", True), ("lifo", False), ("unspecified", False)])
def test_order_is_held_to_what_is_declared(order: str, breached: bool) -> None:
    """A stack of free blocks is right if it is declared, or nothing is."""

    class Stack(ListAllocator):
        def put_back(self, block: int) -> None:
            self.free_blocks.insert(0, block)

    program = "allocate 0 1; allocate 1 1; free 0; free 1; allocate 2 1; allocate 3 1; rest 4; free 4; rest 5"
    assert bool(performed(program, Stack, choices={"free-order": order}).breaches) is breached


def test_null_block_that_is_declared_is_not_asked_for() -> None:
    """A pool of six then has five blocks to give, and freeing the null block must be refused."""

    class FromOne(ListAllocator):
        first = 1

    reserved = {"null-block": "reserved"}
    ran = performed("rest 0; allocate 1 1; free_null 0; touch_null 1; drain", FromOne, choices=reserved)
    assert ran.breaches == ()
    assert ran.performed == 5
    assert set(messages(performed("rest 0", choices=reserved))) == {"KV-BLOCK-008"}


def test_count_that_is_wrong_once_is_told_once() -> None:
    """The number stays off by one, and every other requirement can still be judged."""

    class OffByOne(ListAllocator):
        def num_free(self) -> int:
            return super().num_free() - bool(self.steps_begun)

    ran = performed("begin 0; end 0; allocate 0 9; allocate 1 2; free 1; free_twice 1 0; drain", OffByOne)
    assert [(breach.requirement, breach.step) for breach in ran.breaches] == [("KV-BLOCK-004", 0)]


def test_lists_claim_what_they_do() -> None:
    """The honest subject is held to a declared order."""
    assert Lists.claims.choice("free-order") == "fifo"


def test_answer_of_another_form_is_no_refusal() -> None:
    """Whoever gives None in place of raising has not refused, and no caller would notice."""

    class Mute(ListAllocator):
        def allocate(self, num_blocks: int) -> list[int]:
            return super().allocate(num_blocks) if num_blocks <= len(self.free_blocks) else None  # type: ignore[return-value]

    with pytest.raises(Failed, match="expected a list"):
        performed("allocate 0 9", Mute)
