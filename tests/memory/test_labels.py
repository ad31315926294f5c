"""Labels: equal exactly where namespace and tokens are, by the formula and by runs alike."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.errors import ArgumentError
from kvref.memory.labels import (
    ROWS,
    A,
    B,
    Labels,
    P,
    Q,
    extended,
    labels_after,
    row_symbol,
    seed,
    without_namespace,
)
from kvref.memory.namespace import COMMON, Namespace, Span

TOKENS = st.lists(st.integers(0, ROWS - 1), max_size=120)


def by_formula(namespace: Namespace, tokens: list[int]) -> list[int]:
    """Every label of a request, one token after another."""
    labels, label = [], seed(namespace)
    for token in tokens:
        label = extended(label, token)
        labels.append(label)
    return labels


def test_two_primes_and_bases_that_reach_every_residue() -> None:
    """A base of small order would give one label to prompts that repeat themselves."""
    factors = {P: (2, 3, 7, 11, 31, 151, 331), Q: (2, 3, 59652323)}
    for base, prime in ((A, P), (B, Q)):
        assert pow(base, prime - 1, prime) == 1
        assert all(pow(base, (prime - 1) // factor, prime) != 1 for factor in factors[prime])


@given(st.integers(0, (1 << 31) * P - 1), st.lists(st.integers(0, 2**32 - 2), max_size=40))
def test_a_run_equals_the_formula(label: int, symbols: list[int]) -> None:
    """The vectorised sum has no term too many and does not wrap."""
    start = (label >> 31) % P << 31 | (label & (1 << 31) - 1) % Q
    expected, at = [], start
    for symbol in symbols:
        at = extended(at, symbol)
        expected.append(at)
    assert labels_after(start, array("I", symbols)).tolist() == expected


def test_a_long_run_equals_the_formula() -> None:
    """Across the pieces in which a run is computed, with the largest symbols there are."""
    symbols = array("I", [2**32 - 1] * 5000 + list(range(5000)))
    label, expected = seed(COMMON), []
    for symbol in symbols:
        label = extended(label, symbol)
        expected.append(label)
    assert labels_after(seed(COMMON), symbols).tolist() == expected


@given(TOKENS, st.integers(1, 20), st.data())
def test_labels_by_any_stride_and_in_any_order(tokens: list[int], stride: int, data: st.DataObject) -> None:
    """What was computed before does not decide what is found."""
    labels = Labels(COMMON, tokens, stride=stride)
    expected = by_formula(COMMON, tokens)
    for position in data.draw(st.permutations(range(len(tokens)))):
        assert labels.label(position) == expected[position]
    assert labels.label(-1) == seed(COMMON)
    assert labels.label(len(tokens)) == -1


@given(TOKENS, TOKENS, st.data())
def test_a_cut_request_goes_on_as_if_it_had_begun_so(
    first: list[int], second: list[int], data: st.DataObject
) -> None:
    """Rejected tokens leave nothing behind, and a copy is not cut with its original."""
    labels = Labels(COMMON, first, stride=4)
    labels.label(len(first) - 1)
    copy, keep = labels.copy(), data.draw(st.integers(0, len(first)))
    labels.cut(keep)
    labels.extend(second)
    assert [labels.label(i) for i in range(len(labels))] == by_formula(COMMON, first[:keep] + second)
    assert [copy.label(i) for i in range(len(copy))] == by_formula(COMMON, first)


@given(TOKENS, st.integers(1, 20), st.data())
def test_a_piece_has_the_labels_of_its_request(tokens: list[int], stride: int, data: st.DataObject) -> None:
    """A block that outlives its request can still be compared, from its first slot to its last."""
    labels = Labels(Namespace(salt="s"), tokens, stride=stride)
    start = data.draw(st.integers(0, len(tokens)))
    stop = data.draw(st.integers(start, len(tokens) + 3))
    piece = labels.piece(start, stop)
    inside = range(start, min(stop, len(tokens)))
    assert [piece.label(i) for i in inside] == [labels.label(i) for i in inside]
    assert piece.label(stop + 3) == piece.label(start - 1 if start else -5) == -1
    if len(inside) > 2:
        part = piece.piece(inside[1], inside[-1])
        assert [part.label(i) for i in inside[1:-1]] == [labels.label(i) for i in inside[1:-1]]


@given(TOKENS, TOKENS)
def test_labels_are_equal_where_the_prefixes_are(one: list[int], other: list[int]) -> None:
    """Position by position, up to the first token that differs and never again after it."""
    a, b = Labels(COMMON, one), Labels(COMMON, other)
    for i in range(min(len(one), len(other))):
        assert (a.label(i) == b.label(i)) == (one[: i + 1] == other[: i + 1])


@pytest.mark.parametrize("field", ["model", "adapter", "adapter_version", "salt"])
def test_namespaces_have_labels_of_their_own(field: str) -> None:
    """The same tokens under another namespace are other contents, and can be told to be the same tokens."""
    tokens, other = list(range(40)), Namespace(**{field: "x"})
    a, b = Labels(COMMON, tokens), Labels(other, tokens)
    for i in (-1, 0, 15, 39):
        assert a.label(i) != b.label(i)
        assert without_namespace(b.label(i), i, other) == a.label(i)
    different = Labels(other, [*tokens[:-1], 7])
    assert without_namespace(different.label(39), 39, other) != a.label(39)


def test_rows_of_a_span_stand_in_place_of_tokens() -> None:
    """The placeholder does not matter; content, row and position do, and so does where they change hands."""
    image = Span(kind="media", digest="cat", offset=2, length=3)
    labels = Labels(Namespace(spans=(image,)), [1, 2, 9, 9, 9, 3])
    assert labels.symbols.tolist() == [1, 2, *(row_symbol("media", "cat", row) for row in range(3)), 3]
    assert Labels(Namespace(spans=(image,)), [1, 2, 8, 8, 8, 3]).label(5) == labels.label(5)
    later = Span(kind="media", digest="cat", offset=3, length=3)
    for other in (later, Span(kind="media", digest="dog", offset=2, length=3)):
        assert Labels(Namespace(spans=(other,)), [1, 2, 9, 9, 9, 3]).label(4) != labels.label(4)
    assert Labels(COMMON, [1, 2]).label(1) == labels.label(1)
    symbols = {
        row_symbol(*of, row)
        for of in (("media", "a"), ("media", "b"), ("embeddings", "a"))
        for row in range(99)
    }
    assert len(symbols) == 297
    assert min(symbols) >= ROWS


def test_rows_of_a_span_that_tokens_reach_later() -> None:
    """A prompt may be given in parts."""
    image = Namespace(spans=(Span(kind="media", digest="cat", offset=2, length=3),))
    parts = Labels(image, [1, 2, 9])
    parts.extend([9, 9, 3])
    assert parts.symbols == Labels(image, [1, 2, 9, 9, 9, 3]).symbols


@pytest.mark.parametrize("token", [-1, 2**31, 2**40, 1.0, "1", None])
def test_what_is_no_token_is_refused(token: object) -> None:
    """Nothing is appended."""
    labels = Labels(COMMON, [1, 2])
    with pytest.raises(ArgumentError, match="expected integers from 0 to 2147483647"):
        labels.extend([3, token])  # type: ignore[list-item]
    assert len(labels) == 2


def test_labels_are_the_same_in_every_process() -> None:
    """A number that was written down is read by another process, on another machine."""
    assert Labels(Namespace(adapter="a", salt="s"), range(3)).label(2) == int(
        labels_after(seed(Namespace(adapter="a", salt="s")), array("I", range(3)))[-1]
    )
    assert seed(COMMON) == 1659096517154515980
    assert labels_after(0, array("I")).tolist() == []
