"""Partial states: the algebra that lets a context be read in pieces."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import batches, dyadic, ragged

from kvref.arrays import DTYPES
from kvref.attention.bounds import REFERENCE, dense_bound, exceeds
from kvref.attention.dense import attend, attention
from kvref.attention.merge import State, empty_state, merge, merge_all, with_sinks
from kvref.errors import ArgumentError, DTypeError, ShapeError


def states(seed: int, count: int) -> list[State]:
    """Return attention of the same queries over `count` disjoint pieces."""
    rng = np.random.default_rng(seed)
    q = dyadic(rng, 3, 4, 8)
    lens = rng.integers(0, 5, count)
    return [
        attend(q, dyadic(rng, n, 2, 8), dyadic(rng, n, 2, 8), np.ones((3, n), bool), scale=0.5) for n in lens
    ]


@given(st.integers(0, 2**32))
def test_empty_state_is_the_identity(seed: int) -> None:
    """Merging with attention over nothing changes no bit, on either side."""
    (a,) = states(seed, 1)
    none = empty_state(3, 4, 8)
    for merged in (merge(a, none), merge(none, a)):
        np.testing.assert_array_equal(merged.out, a.out)
        np.testing.assert_array_equal(merged.lse, a.lse)


@pytest.mark.parametrize("unread", [np.nan, np.inf])
def test_output_of_an_empty_state_is_not_read(unread: float) -> None:
    """Where the lse is −inf, a kernel may have left anything in `out`."""
    (a,) = states(0, 1)
    garbage = State(np.full_like(a.out, unread), np.full_like(a.lse, -np.inf))
    for merged in (merge(a, garbage), merge(garbage, a)):
        np.testing.assert_array_equal(merged.out, a.out)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_states_are_merged_in_float64(dtype: str) -> None:
    """The inputs are widened exactly; nothing is computed in their own format."""
    a, b = (State(*(x.astype(DTYPES[dtype]) for x in state)) for state in states(1, 2))
    wide = merge(*(State(*(x.astype(np.float64) for x in state)) for state in (a, b)))
    merged = merge(a, b)
    assert merged.out.dtype == merged.lse.dtype == np.float64
    np.testing.assert_array_equal(merged.out, wide.out)


def test_two_empty_states_stay_empty() -> None:
    """No slot on either side: out 0 and lse −inf, no NaN."""
    both = merge(empty_state(2, 3, 4), empty_state(2, 3, 4))
    assert (both.out == 0).all()
    assert np.isneginf(both.lse).all()


@given(st.integers(0, 2**32))
def test_merge_commutes_bit_for_bit(seed: int) -> None:
    """Which part comes first does not matter: addition and logaddexp commute exactly."""
    a, b = states(seed, 2)
    np.testing.assert_array_equal(merge(a, b).out, merge(b, a).out)
    np.testing.assert_array_equal(merge(a, b).lse, merge(b, a).lse)


@given(batches(more_queries=False), st.data())
def test_any_partition_gives_the_whole(batch, data) -> None:
    """Attention over pieces, in any cut and any order, merges to attention over the whole context."""
    request = data.draw(st.integers(0, len(batch.seq_lens) - 1))
    n = batch.seq_lens[request]
    context = slice(*batch.context_start_loc[request : request + 2])
    rows = slice(*batch.query_start_loc[request : request + 2])
    q, k, v = batch.q[rows], batch.k[context], batch.v[context]
    every = np.ones((len(q), n), bool)
    owner = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), dtype=int)
    order = data.draw(st.permutations(range(4)))
    parts = [attend(q, k[owner == i], v[owner == i], every[:, owner == i], scale=batch.scale) for i in order]
    lengths = {"query_start_loc": [0, len(q)], "seq_lens": [n]}
    whole, bound = dense_bound(q, k, v, **lengths, scale=batch.scale, causal=False, arithmetic=REFERENCE)
    merged = merge_all(parts)
    assert not exceeds(merged.out, whole.out, bound.out).any()
    assert not exceeds(merged.lse, whole.lse, bound.lse).any()


def test_sink_equals_an_extra_column_that_is_dropped() -> None:
    """The oracle of the papers: append the sink's logit, softmax, drop its column, then blend."""
    batch = ragged(3, (5,), (1,), num_kv_heads=1, group=4)
    sinks = np.array([-1.0, 0.0, 2.5, 40.0])
    out = attention(batch.q, batch.k, batch.v, **batch.lengths, scale=1.0, sinks=sinks).out
    for head in range(4):
        logits = np.append(batch.k[:, 0] @ batch.q[0, head], sinks[head])
        weights = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        # Each weight is off by a few roundings of float64, relative; eight cover exp, sum and division.
        slack = 8 * 2.0**-52 * (weights[:-1] @ np.abs(batch.v[:, 0])) * (1 + np.abs(logits).max())
        assert (np.abs(out[0, head] - weights[:-1] @ batch.v[:, 0]) <= slack).all()


def test_sink_leaves_an_empty_row_empty() -> None:
    """A sink has no value: with nothing else to attend to, the answer is 0 and the lse −inf."""
    state = with_sinks(empty_state(2, 3, 4), np.array([0.0, 5.0, -5.0]))
    assert (state.out == 0).all()
    assert np.isneginf(state.lse).all()


@pytest.mark.parametrize(
    ("part", "error", "message"),
    [
        (State(np.zeros((2, 3, 5)), np.zeros((2, 3))), ShapeError, "b.out has shape [2, 3, 5]"),
        (State(np.zeros((2, 3, 4)), np.zeros((3, 2))), ShapeError, "b.lse has shape [3, 2]"),
    ],
)
def test_states_of_different_shape_are_refused(part: State, error: type[Exception], message: str) -> None:
    """The message names the part, its shape and the expected one."""
    with pytest.raises(error, match=message.replace("[", r"\[")):
        merge(empty_state(2, 3, 4), part)


def test_nothing_to_merge_is_refused() -> None:
    """An empty list has no shape to answer with."""
    with pytest.raises(ArgumentError, match="at least one"):
        merge_all([])


def test_sinks_of_the_wrong_kind_are_refused() -> None:
    """One real logit a query head, nothing else."""
    with pytest.raises(ShapeError, match="sinks has shape"):
        with_sinks(empty_state(2, 3, 4), np.zeros(2))
    with pytest.raises(DTypeError, match="sinks has dtype int64"):
        with_sinks(empty_state(2, 3, 4), np.zeros(3, int))
