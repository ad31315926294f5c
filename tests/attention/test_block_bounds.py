"""Block bounds: never below a true score, exact where a block or a head has one of anything."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvref.attention.block_bounds import Extremes, block_extremes, score_bounds, select_blocks
from kvref.attention.sparse import is_valid_topk
from kvref.errors import ArgumentError, ShapeError

finite = st.floats(-1e9, 1e9, allow_subnormal=False)
sizes = st.tuples(st.integers(1, 11), st.sampled_from([1, 3]), st.integers(1, 9))


@given(st.data(), sizes, st.integers(1, 5))
def test_bound_is_never_below_a_score(data: st.DataObject, size: tuple, block_size: int) -> None:
    """Rounding is monotone: products and sums in the same order keep the bound on top, bit for bit."""
    kv_len, group, head_dim = size
    k = data.draw(arrays(np.float64, (kv_len, 2, head_dim), elements=finite))
    q = data.draw(arrays(np.float64, (1, 2 * group, head_dim), elements=finite))
    bounds = score_bounds(q, block_extremes(k, block_size=block_size))
    for head in range(2 * group):
        scores = (q[0, head] * np.ascontiguousarray(k[:, head // group])).sum(axis=-1)
        for block in range(bounds.shape[2]):
            in_block = scores[block * block_size : (block + 1) * block_size]
            assert (bounds[0, head, block] >= in_block).all()


@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(1, 5))
def test_bound_holds_for_any_order_of_exact_sums(seed: int, kv_len: int, block_size: int) -> None:
    """In small integers nothing rounds, so a matrix product is below the bound as well."""
    rng = np.random.default_rng(seed)
    q, k = rng.integers(-9, 10, (2, 3, 7)).astype(float), rng.integers(-9, 10, (kv_len, 1, 7)).astype(float)
    bounds = score_bounds(q, block_extremes(k, block_size=block_size))
    scores = q @ k[:, 0].T  # [T, H, N]
    assert (np.repeat(bounds, block_size, axis=2)[..., :kv_len] >= scores).all()


def test_block_of_one_token_is_bounded_by_its_score() -> None:
    """One key is its own minimum and maximum: nothing is lost."""
    rng = np.random.default_rng(2)
    q, k = rng.integers(-9, 10, (1, 2, 5)).astype(float), rng.integers(-9, 10, (6, 2, 5)).astype(float)
    assert (score_bounds(q, block_extremes(k, block_size=1)) == np.einsum("thd,nhd->thn", q, k)).all()


def test_part_filled_block_counts_its_tokens_only() -> None:
    """Extremes over zeros that are not there would lift the bound of an all-negative block to 0."""
    extremes = block_extremes(np.full((5, 1, 1), -3.0), block_size=4)
    assert extremes.low.tolist() == extremes.high.tolist() == [[[-3.0]], [[-3.0]]]
    assert score_bounds([[[2.0]]], extremes).tolist() == [[[-6.0, -6.0]]]
    assert len(block_extremes(np.zeros((0, 1, 1)), block_size=4).low) == 0


@given(st.integers(0, 2**31), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=3))
def test_selected_blocks_hold_the_best_keys_where_the_bound_is_exact(seed: int, batch: list) -> None:
    """With one channel a bound is its block's best score, so the selection is a top-k of true maxima."""
    rng = np.random.default_rng(seed)
    kv_lens, query_lens = [n for n, _ in batch], [t for _, t in batch]
    loc = np.cumsum([0, *query_lens])
    q = rng.integers(-3, 4, (loc[-1], 4, 1)).astype(float)
    k = rng.integers(-3, 4, (sum(kv_lens), 2, 1)).astype(float)
    chosen = select_blocks(q, k, block_size=4, top_blocks=2, query_start_loc=loc, seq_lens=kv_lens)
    assert chosen.shape == (loc[-1], 4, 2)
    for request, (kv_len, query_len) in enumerate(batch):
        context = k[sum(kv_lens[:request]) :][:kv_len]
        for i in range(query_len):
            seen = context[: max(kv_len - query_len + i + 1, 0)]
            for head in range(4):
                scores = q[loc[request] + i, head, 0] * seen[:, head // 2, 0]
                best = [max(scores[b : b + 4], default=-np.inf) for b in range(0, 12, 4)]
                assert is_valid_topk([best], [chosen[loc[request] + i, head]])


def test_later_key_moves_no_choice() -> None:
    """The key after the query would win its block the selection; the query does not see it."""
    k = np.array([1.0, 1, 5, 5, 0, 100]).reshape(6, 1, 1)
    chosen = select_blocks(
        np.ones((2, 1, 1)), k, block_size=2, top_blocks=1, query_start_loc=[0, 2], seq_lens=[6]
    )
    assert chosen.tolist() == [[[1]], [[2]]]


def test_arrays_that_do_not_fit_are_refused() -> None:
    """Heads, widths and block sizes are checked before any bound is taken."""
    k = np.zeros((4, 2, 3))
    with pytest.raises(ArgumentError, match="block_size = 0"):
        block_extremes(k, block_size=0)
    with pytest.raises(ShapeError, match="k has shape"):
        block_extremes(k[0], block_size=2)
    with pytest.raises(ShapeError, match="q has 3 heads and k has 2"):
        score_bounds(np.zeros((1, 3, 3)), block_extremes(k, block_size=2))
    with pytest.raises(ShapeError, match="expected"):
        score_bounds(np.zeros((1, 2, 3)), Extremes(k, k[:1]))
    with pytest.raises(ArgumentError, match="top_blocks = 0"):
        select_blocks(
            np.zeros((1, 2, 3)), k, block_size=2, top_blocks=0, query_start_loc=[0, 1], seq_lens=[4]
        )
