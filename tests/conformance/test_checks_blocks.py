"""Tests of the checks of allocators and tables: honest subjects pass, whatever they offer and declare."""

from typing import Any

import pytest
from blocks_judged import failed, judged, levels_ask, with_managers

from kvref.errors import OutOfBlocksError
from kvref_conformance.checks import all_checks
from kvref_conformance.claims import Claims
from kvref_conformance.subjects.lists import Lists
from kvref_conformance.subjects.lists.allocator import ListAllocator
from kvref_conformance.subjects.lists.tables import ListTables
from kvref_conformance.subjects.reference_memory import ReferenceMemory

REQUIREMENTS = {f"KV-BLOCK-{number:03d}" for number in (*range(1, 14), *range(20, 35))}


@pytest.mark.parametrize("subject", [Lists, ReferenceMemory])
def test_honest_managers_pass_every_check(subject: Any) -> None:
    """Both were written without a look at the other."""
    assert levels_ask(subject()) == 3 * [REQUIREMENTS]
    found = judged(subject(), "exhaustive")
    assert [evidence for evidence in found if evidence.status == "fail"] == []


def test_check_needs_only_the_operations_it_asks_for() -> None:
    """Whoever can allocate and free, and nothing else, is judged by what that shows."""

    class Smallest:
        def __init__(self, num_blocks: int) -> None:
            self._pool = ListAllocator(num_blocks)

        def allocate(self, num_blocks: int) -> list[int]:
            return self._pool.allocate(num_blocks)

        def free(self, blocks: list[int]) -> None:
            self._pool.free(blocks)

    found = judged(with_managers(Smallest))
    assert all(evidence.status == "pass" for evidence in found)
    assert {int(evidence.requirement[-3:]) for evidence in found} == {1, 2, 3, 6, 7, 8, 9, 13}


def test_features_that_are_not_claimed_are_not_asked() -> None:
    """No window, one group, no steps in flight, no pins."""
    found = judged(with_managers(ListAllocator, ListTables))
    assert all(evidence.status == "pass" for evidence in found)
    assert not {"windows", "block_sizes"} & {name for evidence in found for name in evidence.case.options}
    asked = {int(evidence.requirement[-3:]) for evidence in found}
    assert not asked & {10, 11, 12, 30, 31}


@pytest.mark.parametrize(("order", "at"), [("fifo", None), ("lifo", 0)])
def test_either_order_may_be_declared(order: str, at: int | None) -> None:
    """A queue and a stack are both right, each under its name; the other name is wrong."""

    class Ordered(ListAllocator):
        def put_back(self, block: int) -> None:
            self.free_blocks.insert(len(self.free_blocks) if at is None else at, block)

    other = {"fifo": "lifo", "lifo": "fifo"}[order]
    assert failed(with_managers(Ordered, choices={"free-order": order})) == []
    assert {id for id, _ in failed(with_managers(Ordered, choices={"free-order": other}))} == {"KV-BLOCK-010"}


def test_null_block_may_be_declared() -> None:
    """Allocator and tables then have one block less, and freeing it is refused."""

    class FromOne(ListAllocator):
        first = 1

    class Tables(ListTables):
        pool_class = FromOne

    assert failed(with_managers(FromOne, Tables, choices={"null-block": "reserved"})) == []
    assert {id for id, _ in failed(with_managers(FromOne, Tables))} == {"KV-BLOCK-008"}


def test_message_has_the_step_and_what_it_showed() -> None:
    """A reader looks for the step first."""

    class Forgetful(ListTables):
        def num_kept(self, num_tokens: int, block_size: int) -> int:
            return num_tokens // block_size

    said = dict(reversed(failed(with_managers(tables=Forgetful, block_sizes=(4,)))))["KV-BLOCK-026"]
    assert (
        said == "step 2, `truncate 0 6`: request 0 reads at position 4 nothing: its table has no block there"
    )


def test_pairs_of_groups_are_unequal_where_they_can_be() -> None:
    """Equal block sizes hide which group's was used."""
    claims = Claims(block_sizes=(16, 4), features=("groups",))
    checks = [check for check in all_checks() if check.requirement == "KV-BLOCK-031"]
    sizes = {
        case.option("block_sizes")
        for check in checks
        for case in check.cases(claims, "block_tables", "quick")
    }
    assert sizes >= {"16,4", "4,16", "16,4,16"}


class Refuses(ListAllocator):
    """Serves nobody, and so harms nobody."""

    def check_room(self, num_blocks: int) -> None:
        """Refuse everything."""
        raise OutOfBlocksError("not today")


class Forgives(ListAllocator):
    """Accepts whatever it is told."""

    def free(self, blocks: list[int]) -> None:
        """Free what can be freed, and say nothing of the rest."""
        for block in blocks:
            if 0 <= block < self.num_blocks and self.holders[block]:
                self.let_go(block)


class Counts(ListAllocator):
    """Hands out new ids for ever."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.holders = [0] * 1000
        self.handed_out = 0

    def take(self, count: int) -> list[int]:
        """Count on."""
        taken = list(range(self.handed_out, self.handed_out + count))
        self.handed_out += count
        del self.free_blocks[:count]
        for block in taken:
            self.holders[block] = 1
        return taken


class TablesThatRefuse(ListTables):
    """Let requests begin and end, and give them nothing."""

    pool_class = Refuses


class TablesOfZero(ListTables):
    """Say that every token lies in slot 0."""

    def slot(self, request: int, group: int, position: int) -> int:
        """Answer without looking."""
        return 0


@pytest.mark.parametrize(
    ("cheat", "caught"),
    [
        (with_managers(Refuses), {3, 8, 9}),
        (with_managers(Forgives), {6, 7}),
        (with_managers(Counts), {1}),
        (with_managers(tables=TablesThatRefuse), {3}),
        (with_managers(tables=TablesOfZero), {20, 21}),
    ],
    ids=["refuses", "forgives", "counts", "tables that refuse", "tables of zero"],
)
def test_cheats_are_caught(cheat: Any, caught: set[int]) -> None:
    """Neither who does nothing nor who agrees to everything is conformant."""
    assert {int(id[-3:]) for id, _ in failed(cheat)} & caught
