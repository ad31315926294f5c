"""Tests of programs for block tables: what makes sense, what is read, what a breach says."""

from typing import Any

import pytest

from kvref_conformance.cases import Case, opening
from kvref_conformance.claims import Claims
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.programs.running import Run, run
from kvref_conformance.subjects.lists.tables import Appended, ListTables

LONG = (
    "add 0; append 0 6; fork 0 1; append 1 1; append 0 3; truncate 1 2; fork 1 2; append 2 1; "
    "append_unknown 7; add_again 0; fork_onto 0 1; free_unknown 9; fork_unknown 4 5; truncate_unknown 4; "
    "append 0 99; fill 0; append 0 1; free 1; drain"
)
SLIDING = (
    "add 0; append 0 9; prune 0; fork 0 1; append 1 3; prune 1; truncate 0 8; prune_unknown 5; "
    "fill 0; free 1; drain"
)


def performed(program: str, tables: Any = ListTables, claims: Claims | None = None, **options: Any) -> Run:
    """Run a program on block tables, in blocks of four if nothing else is said."""
    subject = type("Subject", (), {"block_tables": tables})
    case = Case(
        verb="block_tables",
        seq_lens=(),
        query_lens=(),
        block_size=4,
        options={"num_blocks": 6, "program": program, **options},
    )
    session = InProcessHost(subject()).open("block_tables", **opening(case))
    return run(program, session, case, claims or Claims())


def messages(ran: Run) -> dict[str, str]:
    """Return what is said about each requirement."""
    return {breach.requirement: breach.message for breach in ran.breaches}


@pytest.mark.parametrize(
    ("program", "options"),
    [
        (LONG, {}),
        (LONG, {"block_sizes": "4,2", "num_blocks": 20}),
        (LONG, {"block_sizes": "3,4,1", "num_blocks": 40}),
        (SLIDING, {"windows": "5"}),
        (SLIDING, {"windows": "0,3", "block_sizes": "4,2", "num_blocks": 16}),
    ],
)
def test_honest_lists_breach_nothing(program: str, options: dict[str, Any]) -> None:
    """Every step is performed, in one group and in several, with windows and without."""
    ran = performed(program, **options)
    assert ran.breaches == ()
    assert ran.performed == program.count(";") + 1


@pytest.mark.parametrize("drop", range(LONG.count(";") + 1))
def test_any_part_of_a_program_is_a_program(drop: int) -> None:
    """Steps that make no sense without the one that was dropped are passed over."""
    steps = LONG.split("; ")
    assert performed("; ".join(steps[:drop] + steps[drop + 1 :])).breaches == ()
    assert performed("; ".join(steps[drop:])).breaches == ()


@pytest.mark.parametrize(
    "step",
    [
        "append 3 1",
        "free 3",
        "add 0",
        "fork 3 4",
        "truncate 0 7",
        "truncate 0 -1",
        "append 0 0",
        "prune 0",
        "dance 0",
        "append 0",
    ],
)
def test_step_without_sense_is_passed_over(step: str) -> None:
    """Requests that are not there do nothing, and nobody is cut back to more than it has."""
    assert performed(f"add 0; append 0 6; {step}").performed == 2


def test_cut_below_a_pruned_window_makes_no_sense() -> None:
    """The next token would attend to what is gone; whoever refuses it and whoever does not are both right."""
    assert performed("add 0; append 0 9; prune 0; truncate 0 8; truncate 0 7", windows="5").performed == 4


def test_message_says_whose_data_is_read() -> None:
    """Reader, position, writer, its position, the step, the block: enough to begin."""

    class InPlace(ListTables):
        def needs_copy(self, request: int, group: int) -> bool:
            return False

    said = messages(performed("add 0; append 0 5; fork 0 1; append 0 1; append 1 1", InPlace))
    assert said["KV-BLOCK-022"] == (
        "append(0, 1) writes slot 5 (block 1, slot 1), which request 1 has in its table"
    )

    class HiddenFromOthers(InPlace):
        """The child's own table names another block, so nobody else seems to have the slot."""

        def block_table(self, request: int, group: int) -> list[int]:
            blocks = super().block_table(request, group)
            return [blocks[0], 5] if request == 1 and self.lengths[1] < 6 else blocks

        def fork(self, parent: int, child: int) -> None:
            super().fork(parent, child)

    said = messages(performed("add 0; append 0 5; fork 0 1", HiddenFromOthers))
    assert said["KV-BLOCK-021"] == "request 1 reads at position 4 what nobody has written (block 5, slot 0)"

    class Mixed(ListTables):
        def block_table(self, request: int, group: int) -> list[int]:
            return super().block_table(0 if self.lengths[request] == 4 else request, group)

    said = messages(performed("add 0; append 0 3; add 1; append 1 2; append 1 2", Mixed))
    assert said["KV-BLOCK-021"] == (
        "request 1 reads at position 0 what request 0 wrote at position 0, in step 1 (block 0, slot 0)"
    )


def test_longer_copies_are_right() -> None:
    """A copy of the whole block covers its tokens as well."""

    class WholeBlocks(ListTables):
        def num_copied(self, num_tokens: int, group: int) -> int:
            return self.block_sizes[group]

    assert performed(LONG, WholeBlocks).breaches == ()


def test_copy_of_a_private_block_is_wasteful_and_right() -> None:
    """Whoever copies where nobody shares breaches nothing, as long as there is room."""

    class Copies(ListTables):
        def needs_copy(self, request: int, group: int) -> bool:
            return self.lengths[request] % self.block_sizes[group] > 0

    assert performed("add 0; append 0 5; append 0 1; fork 0 1; append 1 1; append 0 1", Copies).breaches == ()


@pytest.mark.parametrize(
    ("change", "breached"),
    [
        (lambda a: (a[0][:-1], *a[1:]), "KV-BLOCK-020"),
        (lambda a: ([slot + 400 for slot in a[0]], *a[1:]), "KV-BLOCK-020"),
        (lambda a: (a[0][::-1], *a[1:]), "KV-BLOCK-020"),
        (lambda a: (a[0], [7], [8], [1], [0]), "KV-BLOCK-024"),
        (lambda a: (a[0], [0], [1], [1], [3]), "KV-BLOCK-024"),
        (lambda a: (a[0], [0, 1], [1], [1], [0]), "KV-BLOCK-024"),
    ],
)
def test_answers_out_of_form_are_seen(change: Any, breached: str) -> None:
    """Too few slots, slots of no block, slots in the wrong order, copies that cannot be made."""

    class Wrong(ListTables):
        def append(self, request: int, num_tokens: int) -> Appended:
            changed: Appended = change(super().append(request, num_tokens))
            return changed

    assert breached in messages(performed("add 0; append 0 5", Wrong))


def test_append_that_should_not_fit_is_not_believed() -> None:
    """A pool that hands out more blocks than it has says so by which."""

    class Generous(ListTables):
        def __init__(self, num_blocks: int, block_sizes: list[int]) -> None:
            super().__init__(num_blocks + 1, block_sizes)

        def num_free(self) -> int:
            return super().num_free() - 1

    said = messages(performed("add 0; append 0 25", Generous))
    assert said["KV-BLOCK-020"] == "append(0, 25) writes into block 6, which the pool does not have"


def test_null_entries_are_those_that_are_declared() -> None:
    """Where block 0 is null, 0 in a table stands for no block; elsewhere it is a block."""

    class ZeroIsNull(ListTables):
        def block_table(self, request: int, group: int) -> list[int]:
            return [0 if block < 0 else block for block in super().block_table(request, group)]

    program = "add 0; append 0 9; prune 0; append 0 1"
    assert set(messages(performed(program, ZeroIsNull, windows="5"))) >= {"KV-BLOCK-030"}

    class FromOne(ZeroIsNull):
        class pool_class(ListTables.pool_class):
            first = 1

    reserved = Claims(choices={"null-block": "reserved"})
    assert performed(program, FromOne, reserved, windows="5").breaches == ()


def test_traces_do_not_depend_on_the_order_of_free_blocks() -> None:
    """A stack and a queue hand out other blocks, and leave the same trace."""

    class OverAStack(ListTables):
        class pool_class(ListTables.pool_class):
            def put_back(self, block: int) -> None:
                self.free_blocks.insert(0, block)

    assert performed(LONG, OverAStack).trace == performed(LONG).trace


def test_write_that_needs_a_copy_and_has_no_room_is_told_as_such() -> None:
    """With no block free, whoever writes in place is said to write in place, and to count nothing wrong."""

    class InPlace(ListTables):
        def needs_copy(self, request: int, group: int) -> bool:
            return False

    said = messages(performed("add 0; append 0 1; fork 0 1; append 0 1", InPlace, num_blocks=1))
    assert set(said) == {"KV-BLOCK-022", "KV-BLOCK-024"}
