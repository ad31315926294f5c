"""Tests of programs: their text, the shadow of a memory, what is written down while they run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.errors import ArgumentError
from kvref_conformance.programs.asking import sized
from kvref_conformance.programs.block_memory import BlockMemory
from kvref_conformance.programs.breach import Log, Names
from kvref_conformance.programs.shadow import label, labels, root
from kvref_conformance.programs.step import MAX_STEPS, Step, parse, written

STEPS = st.builds(
    Step,
    st.from_regex(r"\A[a-z]{1,8}(_[a-z]{1,8})?\Z"),
    st.lists(st.integers(-(10**9) + 1, 10**9 - 1), max_size=4).map(tuple),
)


@given(st.lists(STEPS, min_size=1, max_size=12))
def test_what_is_written_is_read(steps: list[Step]) -> None:
    """A program travels as text through case files and the command line."""
    assert parse(written(steps)) == steps


def test_text_without_steps_is_the_empty_program() -> None:
    """Shrinking may leave nothing."""
    assert parse("") == parse("  ") == []
    assert written([]) == ""


@pytest.mark.parametrize(
    "text", ["append 0 x", "append 1.5", ";", "add 0;", "Add 0", "add 0, 1", "add 12345678901"]
)
def test_text_that_is_no_program_is_refused(text: str) -> None:
    """The message shows the step that is none."""
    with pytest.raises(ArgumentError, match="expected a word and integers"):
        parse(text)


def test_endless_program_is_refused() -> None:
    """A case file comes from anybody."""
    with pytest.raises(ArgumentError, match="at most"):
        parse("; ".join(["drain"] * (MAX_STEPS + 1)))


@pytest.mark.parametrize(
    ("text", "block_size", "expected"),
    [
        ("append 0 b", 4, "append 0 4"),
        ("append 0 2b-1; fork 0 1", 4, "append 0 7; fork 0 1"),
        ("append 0 b+h; append 1 h", 4, "append 0 6; append 1 2"),
        ("append 0 b+h; append 1 b-1", 1, "append 0 2; append 1 0"),
        ("append 0 99b; append_unknown 0", 3, "append 0 297; append_unknown 0"),
    ],
)
def test_program_fits_any_block_size(text: str, block_size: int, expected: str) -> None:
    """`b` is the block size and `h` half of it; words that hold these letters stay as they are."""
    assert sized(text, block_size) == expected


def test_labels_follow_from_the_prefix() -> None:
    """Equal prefixes have equal labels at every position; one other token changes all behind it."""
    ours, theirs = labels(root(), [5, 6, 7, 8]), labels(root(), [5, 6, 9, 8])
    assert ours == [
        label(before, token) for before, token in zip([root(), *ours], [5, 6, 7, 8], strict=False)
    ]
    assert ours[:2] == theirs[:2]
    assert not set(ours[2:]) & set(theirs[2:])


def test_namespaces_have_roots_of_their_own() -> None:
    """Where one text ends and the next begins counts."""
    assert root("ab", "c") != root("a", "bc")
    assert root("a", "") != root("", "a") != root()


def test_slot_holds_what_was_written_last() -> None:
    """A copy moves what a slot holds, and that it holds nothing."""
    memory = BlockMemory([2])
    first, second = memory.make(0, 0, 2, 0), memory.make(1, 0, 2, 1)
    memory.write(0, [0, 1], first)
    memory.copy(0, 0, 3, 1)
    memory.write(0, [0, 1], second)
    assert memory.differs(0, 0, list(second)) is None
    assert memory.differs(0, 3, list(first)) == 1
    memory.copy(0, 5, 3, 2)
    assert memory.differs(0, 3, [first[0]]) == 0


def test_block_is_of_the_group_that_wrote_it_last() -> None:
    """What another group had in it is lost, whatever the sizes of the two."""
    memory = BlockMemory([4, 2])
    ours, theirs = memory.make(0, 0, 4, 0), memory.make(1, 0, 1, 1)
    memory.write(0, [4, 5, 6, 7], ours)
    memory.write(1, [3], theirs)
    assert memory.told(0, 1, 0) == "what nobody has written"
    assert memory.told(1, 1, 1) == "what request 1 wrote at position 0, in step 1"


def test_shadow_says_whose_data_a_slot_holds() -> None:
    """That is what a message is about."""
    memory = BlockMemory([4])
    memory.make(7, 0, 5, 2)
    memory.write(0, [0, 1], memory.make(2, 5, 2, 3))
    assert memory.told(0, 0, 1) == "what request 2 wrote at position 6, in step 3"
    assert memory.told(0, 0, 2) == memory.told(0, 9, 0) == "what nobody has written"


def test_first_breach_of_a_requirement_counts() -> None:
    """What follows a breach is often the same one again."""
    log = Log()
    log.breach("first", "KV-BLOCK-001", "KV-BLOCK-004")
    log.step = 3
    log.breach("second", "KV-BLOCK-001", "KV-BLOCK-002")
    assert [(b.requirement, b.step, b.message) for b in log.breaches] == [
        ("KV-BLOCK-001", 0, "first"),
        ("KV-BLOCK-004", 0, "first"),
        ("KV-BLOCK-002", 3, "second"),
    ]


def test_names_are_given_in_order_of_appearance() -> None:
    """An id that was forgotten is something else when it comes back."""
    names = Names()
    assert names.names([9, 4, 9]) == "0,1,0"
    names.keep([4])
    assert names.names([9, 4]) == "2,1"
    names.forget([4])
    assert names.names([4]) == "3"
