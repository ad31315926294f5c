"""The museum of managers: a fault is named in the report on it, and a search finds it in a short program."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from exhibits import TOLD_BY_A_REPORT

from kvref.errors import OutOfBlocksError
from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.journal import Entry, Recorded, lines_of, logical, outline
from kvref_conformance.managers import MANAGERS
from kvref_conformance.museum import all_exhibits
from kvref_conformance.museum.exhibit import Exhibit, exhibit
from kvref_conformance.programs.shrinking import steps_of
from kvref_conformance.runner.casefile import load_case
from kvref_conformance.runner.finds import Finds
from kvref_conformance.runner.fuzz_programs import ProgramSearch
from kvref_conformance.runner.suite import Settings, run_suite
from kvref_conformance.subjects.lists.allocator import ListAllocator

EXHIBITS = [e for e in all_exhibits() if set(e.verbs) & set(MANAGERS)]
#: Those of which a report is made: some, for `test_museum` diagnoses the others as well.
REPORTED = [e for i, e in enumerate(EXHIBITS) if i % 10 == 0 or e.name in TOLD_BY_A_REPORT]
#: Some of those that a program shows; that each of them is found, the tests beside the museum see to.
SHOWN = [e for e in EXHIBITS if e.program][::16]
#: Operations in which a search has to find a fault, and by how many steps a find may be longer than known.
WITHIN, LONGER = 200_000, 2


@pytest.mark.parametrize("fault", REPORTED, ids=lambda e: str(e.name))
def test_a_report_on_an_exhibit_names_it(fault: Exhibit) -> None:
    """Of the failures at least one says the fault in its own words."""
    made = run_suite(InProcessHost(fault.subject), settings=Settings(areas=fault.verbs))
    said = [sentence for r in made.failures if r.failure for sentence in r.failure.as_if]
    assert any(sentence.startswith(fault.as_if) for sentence in said)


@pytest.mark.parametrize("fault", SHOWN, ids=lambda e: str(e.name))
def test_a_search_finds_an_exhibit_and_makes_it_short(fault: Exhibit, tmp_path: Path) -> None:
    """What it breaks is found and saved, in a program hardly longer than the shortest known one."""
    host = InProcessHost(fault.subject)
    hello, finds = host.hello(), Finds(0)
    search = ProgramSearch(host, Claims.from_dict(hello.claims), hello.verbs, finds, tmp_path)
    known = len([step for step in fault.program.split(";") if step.strip()])
    lengths: list[int] = []
    for index in itertools.count():
        search.try_one(search.draw(0, index))
        files = [tmp_path / name for name in finds.saved if name.rpartition("-")[0] in fault.breaks]
        lengths = [len(steps_of(load_case(path).case)) for path in files]
        if min(lengths, default=known + LONGER + 1) <= known + LONGER or finds.operations > WITHIN:
            break
    assert lengths, f"not found in {finds.operations} operations"
    assert min(lengths) <= known + LONGER


def test_a_long_text_is_shown_in_part_and_in_a_journal_as_a_whole() -> None:
    """Of a config the lines of a report have both ends, and a replay has all of it."""
    entry = Entry("size", {"config": "{" + 100 * "x" + "}", "num_tokens": 1}, {"bytes_per_token": 2})
    assert len(str(entry)) < 120
    assert str(entry).startswith("size(config='{xxx")
    assert "… xxx" in str(entry)
    assert str(entry).endswith("x}', num_tokens=1)")
    assert lines_of([entry]) == ["size(config='{" + 100 * "x" + "}', num_tokens=1) -> bytes_per_token = 2"]


class Newest:
    """Another allocator with a fault of the museum: the last freed is the first handed out again."""

    def __init__(self, num_blocks: int) -> None:
        self.free_blocks = list(range(num_blocks))
        self.holders = [0] * num_blocks

    def allocate(self, count: int) -> list[int]:
        """Hand out from the end."""
        if not 0 <= count <= len(self.free_blocks):
            raise OutOfBlocksError("none left")
        found = [self.free_blocks.pop() for _ in range(count)]
        for block in found:
            self.holders[block] = 1
        return found

    def free(self, blocks: list[int]) -> None:
        """Look at each block alone."""
        for block in blocks:
            if not 0 <= block < len(self.holders) or not self.holders[block]:
                raise OutOfBlocksError("not held")
        for block in blocks:
            self.holders[block] = 0  # and so a second holder is forgotten
            self.free_blocks.append(block)

    def num_free(self) -> int:
        """Count."""
        return len(self.free_blocks)


def test_a_fault_is_named_in_an_implementation_of_another_order() -> None:
    """It hands out other blocks in other words; what it does wrong is the same."""
    made = run_suite(InProcessHost(type("S", (), {"block_allocator": Newest})), settings=Settings())
    said = {s.partition(" (")[0] for r in made.failures if r.failure for s in r.failure.as_if}
    assert said & {e.as_if for e in EXHIBITS if "KV-BLOCK-006" in e.breaks}


def test_a_decorated_manager_becomes_a_subject_that_offers_it_alone() -> None:
    """What it breaks is said where the fault is, and nothing else has to be written."""

    @exhibit(
        as_if="a test said so",
        fault="F00 nothing",
        breaks=("KV-BLOCK-001",),
        verbs=("block_allocator",),
        program="allocate 0 1",
        block_sizes=(4,),
    )
    class Decorated(ListAllocator):
        """Does nothing wrong.

        Really.
        """

    made: Any = Decorated
    host = InProcessHost(made)
    assert [name for name in host.hello().verbs if "." not in name] == ["block_allocator"]
    assert made.claims.block_sizes == (4,)
    assert (made.exhibit.program, made.exhibit.summary) == ("allocate 0 1", "Does nothing wrong.")
    assert (made.exhibit.name, made.exhibit.subject) == ("Decorated", made)
    assert host.open("block_allocator", num_blocks=2).do("num_free") == {"num_free_blocks": 2}


def entry(operation: str, given: dict[str, Any], **arguments: Any) -> Entry:
    """One entry of a journal."""
    return Entry(operation, arguments, given)


WHERE = Case(verb="block_tables", seq_lens=(), query_lens=(), options={"num_blocks": 9, "block_sizes": "4,2"})
SLOTS = [36, 37, 10, 11]


def test_journals_are_alike_up_to_the_names_of_blocks() -> None:
    """Blocks are counted as they appear, and a slot is a place in one, by the block size of its group."""
    one = [entry("append", {"slots": SLOTS}), entry("block_table", {"blocks": [9, -1]}, group=0)]
    other = [entry("append", {"slots": [0, 1, 4, 5]}), entry("block_table", {"blocks": [0, -1]}, group=0)]
    assert logical(one, WHERE) == logical(other, WHERE)
    assert outline(one) == outline(other)
    apart = [one[0], entry("block_table", {"blocks": [5, -1]}, group=0)]
    assert logical(one, WHERE) != logical(apart, WHERE)
    assert outline(one) == outline(apart)
    assert outline(one) != outline([one[0], entry("block_table", {"blocks": [9]}, group=0)])


def test_a_journal_answers_as_the_manager_did() -> None:
    """As long as the same is asked; then it fails, so that nothing is made up."""
    journal = [entry("num_free", {"num_free_blocks": 3}), Entry("allocate", {"num_blocks": 4}, {}, "refused")]
    session = Recorded("block_allocator", journal)
    assert session.do("num_free") == {"num_free_blocks": 3}
    with pytest.raises(Failed, match="refused"):
        session.do("allocate", num_blocks=4)
    with pytest.raises(Failed, match="this was not asked"):
        session.do("num_free")
    assert lines_of(journal) == ["num_free() -> num_free_blocks = 3", "allocate(num_blocks=4) -> refused"]
    long = entry("free", {}, blocks=list(range(100)))
    assert str(long) == "free(blocks=[0, 1, 2, 3, 4, 5, 6, 7, … 100 in all])"
