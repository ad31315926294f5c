"""The attended set, held to a second statement of its rules, position by position."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.attention.masks import Variant, attended
from kvref.errors import ArgumentError, DTypeError, ShapeError


def by_hand(
    t: int, j: int, causal: bool, window: int | None, chunk: int | None, spans: list[int] | None
) -> bool:
    """Say whether a query at position t may attend to position j, one rule at a time."""
    plain = not (causal and j > t)
    if window is not None and t - j >= window:
        plain = False
    if chunk is not None and t // chunk != j // chunk:
        plain = False
    same_span = spans is not None and t >= 0 and spans[t] >= 0 and spans[t] == spans[j]
    return plain or same_span


@given(
    st.integers(0, 12),
    st.integers(0, 14),
    st.booleans(),
    st.none() | st.integers(1, 9),
    st.none() | st.integers(1, 9),
    st.data(),
)
def test_attended_set_follows_its_rules(n, n_q, causal, window, chunk, data) -> None:
    """Every pair (t, j), with more queries than context among them."""
    spans = data.draw(st.none() | st.lists(st.integers(-1, 2), min_size=n, max_size=n))
    variant = Variant(scale=1.0, causal=causal, window=window, chunk_size=chunk)
    positions = np.arange(n - n_q, n)
    found = attended(variant, positions, n, None if spans is None else np.array(spans, int))
    expected = [[by_hand(t, j, causal, window, chunk, spans) for j in range(n)] for t in positions]
    np.testing.assert_array_equal(found, np.array(expected, bool).reshape(n_q, n))


def test_widest_window_admits_everything() -> None:
    """The largest int64, as a way to say none, must not wrap at a negative position."""
    variant = Variant(scale=1.0, causal=False, window=2**63 - 1)
    assert attended(variant, np.array([-2, -1, 0]), 1).all()


@pytest.mark.parametrize("window", [1, 2, 5, 16])
def test_window_holds_its_own_token_and_no_more(window: int) -> None:
    """W tokens, the query's own among them: what Mistral, vLLM and onnxruntime mean by a window of W."""
    row = attended(Variant(scale=1.0, window=window), np.array([40]), 41)[0]
    assert np.flatnonzero(row).tolist() == list(range(41 - window, 41))


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("scale", float("nan"), "scale = nan, expected a finite number"),
        ("scale", "0.5x", "scale = '0.5x', expected a finite number"),
        ("scale", "0.5", "scale = '0.5', expected a finite number"),
        ("causal", "no", "causal = 'no', expected True or False"),
        ("causal", 1, "causal = 1, expected True or False"),
        ("window", 2**63, "window = 9223372036854775808, expected an integer below"),
        ("window", 0, "window = 0, expected an integer >= 1"),
        ("window", 2.0, "window = 2.0, expected an integer >= 1"),
        ("chunk_size", -3, "chunk_size = -3, expected an integer >= 1"),
        ("softcap", 0.0, "softcap = 0.0, expected a finite positive number"),
        ("softcap", float("inf"), "softcap = inf, expected a finite positive number"),
    ],
)
def test_impossible_scalar_is_refused(argument: str, value: object, message: str) -> None:
    """The message names the argument, what was found and what was expected."""
    with pytest.raises(ArgumentError, match=message.replace("(", r"\(")):
        Variant(**{"scale": 1.0, argument: value})


def test_missing_scale_and_unknown_names_are_refused() -> None:
    """There is no default scale: it is a property of the model, not of head_dim."""
    with pytest.raises(ArgumentError, match="scale is missing"):
        Variant.of({"causal": True})
    with pytest.raises(ArgumentError, match="unknown argument 'sm_scale', expected one of scale"):
        Variant.of({"scale": 1.0, "sm_scale": 1.0})  # type: ignore[typeddict-unknown-key]


def test_array_parts_are_checked_against_the_batch() -> None:
    """Sinks, slopes, spans and mask each have one shape and one kind."""
    lens = np.array([3]), np.array([5])
    with pytest.raises(ShapeError, match=r"sinks has shape \[3\], expected \[4\]"):
        Variant(scale=1.0, sinks=np.zeros(3)).for_batch(4, *lens)
    with pytest.raises(ArgumentError, match="alibi_slopes holds nan"):
        Variant(scale=1.0, alibi_slopes=np.full(4, np.nan)).for_batch(4, *lens)
    with pytest.raises(DTypeError, match="span_ids has dtype float64, expected integers"):
        Variant(scale=1.0, span_ids=np.zeros(5)).for_batch(4, *lens)
    with pytest.raises(DTypeError, match="mask has dtype int64, expected bool"):
        Variant(scale=1.0, mask=np.zeros(15, int)).for_batch(4, *lens)
    with pytest.raises(ShapeError, match=r"mask has shape \[5\], expected \[15\]"):
        Variant(scale=1.0, mask=np.zeros(5, bool)).for_batch(4, *lens)
