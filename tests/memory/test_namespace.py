"""Namespaces: what keeps blocks apart, and what a span adds to a block."""

from collections.abc import Callable
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.errors import ArgumentError
from kvref.memory.namespace import COMMON, Namespace, Rows, Span, rows_between, written, written_rows

TEXT = st.text(alphabet="ab\x00é", max_size=3)
NAMESPACE = st.builds(Namespace, model=TEXT, adapter=TEXT, adapter_version=TEXT, salt=TEXT)
ROWS = st.lists(
    st.builds(
        Rows,
        st.sampled_from(["media", "embeddings"]),
        TEXT,
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(1, 2),
    ),
    max_size=3,
).map(tuple)


def span(digest: str, offset: int, length: int, kind: str = "media") -> Span:
    """A span by its places."""
    return Span(kind=kind, digest=digest, offset=offset, length=length)


@given(NAMESPACE, NAMESPACE)
def test_unequal_namespaces_are_written_unequal(a: Namespace, b: Namespace) -> None:
    """Whatever moves from one field to another, or is cut in another place."""
    assert (written(a) == written(b)) == (a == b)


@given(ROWS, ROWS)
def test_unequal_rows_are_written_unequal(a: tuple[Rows, ...], b: tuple[Rows, ...]) -> None:
    """Which content, from which of its rows, where in the block, how many: each part tells."""
    assert (written_rows(a) == written_rows(b)) == (a == b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (Namespace(adapter="x"), Namespace(salt="x")),
        (Namespace(adapter="ab", salt="c"), Namespace(adapter="a", salt="bc")),
        (Namespace(adapter="a", adapter_version="b"), Namespace(adapter="ab")),
        (Namespace(model="x"), Namespace(adapter="x")),
        (Namespace(salt="é"), Namespace(salt="e\u0301")),
    ],
)
def test_value_in_another_field_is_another_namespace(a: Namespace, b: Namespace) -> None:
    """The last two are one letter to a reader and two texts to a machine."""
    assert written(a) != written(b)


def test_absent_is_empty() -> None:
    """A field that is not given is the field that is empty."""
    named = {field.name: "" for field in fields(Namespace) if field.name != "spans"}
    assert Namespace(**named, spans=()) == COMMON == Namespace()  # type: ignore[arg-type, unused-ignore]
    assert written(Namespace(**named)) == written(COMMON)  # type: ignore[arg-type, unused-ignore]


def test_spans_are_kept_in_their_order() -> None:
    """The same image at the same place is the same namespace, whichever was named first."""
    cat, dog = span("cat", 0, 2), span("dog", 2, 1)
    assert Namespace(spans=(dog, cat)) == Namespace(spans=(cat, dog))
    assert hash(Namespace(spans=(dog, cat))) == hash(Namespace(spans=(cat, dog)))
    assert Namespace(spans=[dog, cat]).spans == (cat, dog)  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.sampled_from("ab")), max_size=3),
    st.integers(0, 12),
    st.integers(1, 5),
)
def test_rows_of_a_block_are_those_at_its_positions(
    gaps: list[tuple[int, int, str]], start: int, size: int
) -> None:
    """Each position by itself: which content has which row there."""
    spans, end = [], 0
    for gap, length, digest in gaps:
        spans.append(span(digest, end + gap, length))
        end = spans[-1].stop
    at = {s.offset + row: (s.digest, row) for s in spans for row in range(s.length)}
    wanted = {p - start: at[p] for p in range(start, start + size) if p in at}
    found = rows_between(Namespace(spans=tuple(spans)), start, start + size)
    assert {r.at + i: (r.digest, r.first + i) for r in found for i in range(r.length)} == wanted


BAD: dict[str, Callable[[], object]] = {
    "adapter = 3, expected text": lambda: Namespace(adapter=3),  # type: ignore[arg-type]
    "salt = None, expected text": lambda: Namespace(salt=None),  # type: ignore[arg-type]
    r"model = '\\ud800', expected text that UTF-8 can write": lambda: Namespace(model="\ud800"),
    "spans = 'a', expected a tuple of Span": lambda: Namespace(spans="a"),  # type: ignore[arg-type]
    "spans = .*, expected a tuple of Span": lambda: Namespace(spans=(1,)),  # type: ignore[arg-type]
    "rows of 'b' at position 1, expected none before 2, the end of 'a'": lambda: Namespace(
        spans=(span("b", 1, 1), span("a", 0, 2))
    ),
    "kind = 'text', expected one of media, embeddings": lambda: span("a", 0, 1, "text"),
    "digest = '', expected what identifies the content": lambda: span("", 0, 1),
    "digest = b'a', expected text": lambda: span(b"a", 0, 1),  # type: ignore[arg-type]
    "offset = -1, expected an integer >= 0": lambda: span("a", -1, 1),
    "length = 0, expected an integer >= 1": lambda: span("a", 0, 0),
    "length = True, expected an integer >= 1": lambda: span("a", 0, True),
}


@pytest.mark.parametrize("message", BAD)
def test_impossible_namespace_is_refused(message: str) -> None:
    """The message has the field, what was found, and what was expected."""
    with pytest.raises(ArgumentError, match=message):
        BAD[message]()
