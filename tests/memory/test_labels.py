"""Labels: equal exactly where namespace and tokens are, by the formula and by runs alike."""

from typing import Any

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
    factors = {P: (2, 7, 2341, 16381), Q: (2, 6269, 85639)}
    assert max(P, Q) < 2**30
    for base, prime in ((A, P), (B, Q)):
        assert pow(base, prime - 1, prime) == 1
        assert all(pow(base, (prime - 1) // factor, prime) != 1 for factor in factors[prime])


@pytest.mark.parametrize("stride", [1, 2, 7, 16, 100, 128])
@pytest.mark.parametrize("symbol", [0, 1, 2**16, 2**31 - 1, 2**32 - 1])
def test_a_long_run_equals_the_formula(stride: int, symbol: int) -> None:
    """The product of matrices is exact up to the largest symbols and the longest stride."""
    labels = Labels(COMMON, stride=stride)
    labels.symbols.extend([symbol] * 900 + list(range(900)))
    expected, label = [], seed(COMMON)
    for x in labels.symbols:
        label = extended(label, x)
        expected.append(label)
    assert labels.label(1799) == expected[-1]
    assert [labels.label(i) for i in range(1800)] == expected


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
    start = data.draw(st.integers(0, len(tokens) + 30))
    stop = data.draw(st.integers(start, len(tokens) + 40))
    piece = labels.piece(start, stop)
    inside = range(start, min(stop, len(tokens)))
    assert piece.start <= start
    if inside:
        assert start < piece.start + stride
        assert len(piece) == min(stop, len(tokens))
    assert [piece.label(i) for i in inside] == [labels.label(i) for i in inside]
    assert [piece.symbol(i) for i in inside] == tokens[start:stop]
    assert piece.label(stop) == piece.symbol(stop) == piece.symbol(-1) == -1
    if piece.start:
        assert piece.label(piece.start - 2) == -1
    if inside:
        first = data.draw(st.sampled_from(inside))
        part = piece.piece(first, stop)
        assert [part.label(i) for i in range(first, inside.stop)] == [
            labels.label(i) for i in range(first, inside.stop)
        ]


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
    assert seed(COMMON) == 15103610228020584
    assert Labels(Namespace(adapter="a", salt="s"), range(100)).label(99) == 942579814259184477


@pytest.mark.parametrize("stride", [0, 129, 1.0, None])
def test_a_stride_past_what_is_exact_is_refused(stride: Any) -> None:
    """From 129 on a sum would not fit the 53 bits of a float64."""
    with pytest.raises(ArgumentError, match="stride = "):
        Labels(COMMON, stride=stride)
