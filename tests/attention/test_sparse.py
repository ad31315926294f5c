"""Sparse attention: selections as sets, against torch.topk and jax.lax.top_k; PyTorch under a mask."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.attention.mla import as_one_kv_head
from kvref.attention.paged import paged_attention
from kvref.attention.sparse import (
    indexer_scores,
    is_valid_topk,
    select_topk,
    slots_of_positions,
    sparse_attention,
    top_positions,
    valid_topk_rows,
)
from kvref.errors import (
    ArgumentError,
    BlockTableError,
    DTypeError,
    KVError,
    LengthError,
    ShapeError,
    SlotMappingError,
)

#: Twice the unit roundoff of float64: the factor 2 pays for the rounding of the bounds themselves.
U = 2.0**-52

lengths = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=3)
seeds = st.integers(0, 2**31)


@pytest.fixture(scope="module")
def torch() -> Any:
    """Return PyTorch, imported outside the time of any one example."""
    return pytest.importorskip("torch", reason="torch is not installed")


def indexer_case(seed: int, batch: list[tuple[int, int]]) -> tuple[list[np.ndarray], dict]:
    """Return q, k, weights of small integers (every sum is exact, ties are many) and the lengths."""
    rng = np.random.default_rng(seed)
    kv_lens, query_lens = [n for n, _ in batch], [t for _, t in batch]
    tokens = sum(query_lens)
    shapes = [(tokens, 3, 4), (sum(kv_lens), 4), (tokens, 3)]
    drawn = [rng.integers(-2, 3, shape).astype(float) for shape in shapes]
    return drawn, {"seq_lens": kv_lens, "query_start_loc": np.cumsum([0, *query_lens])}


@given(seeds, lengths)
def test_indexer_scores_are_weighted_relu_products(torch: Any, seed: int, batch: list) -> None:
    """PyTorch's relu and einsum give the same integers, request by request, under its own causal mask."""
    (q, k, weights), lens = indexer_case(seed, batch)
    scores = indexer_scores(q, k, weights, **lens)
    token = start = 0
    for kv_len, query_len in batch:
        own = slice(token, token + query_len)
        products = torch.einsum("thd,nd->thn", torch.tensor(q[own]), torch.tensor(k[start : start + kv_len]))
        expected = torch.einsum("thn,th->tn", torch.relu(products), torch.tensor(weights[own])).numpy()
        later = np.triu(np.ones((query_len, kv_len), bool), k=kv_len - query_len + 1)
        assert (scores[own, :kv_len] == np.where(later, -np.inf, expected)).all()
        assert np.isneginf(scores[own, kv_len:]).all()
        token, start = token + query_len, start + kv_len


def test_negative_product_counts_as_zero() -> None:
    """Without the ReLU the first key would score −6 and lose to nothing: with it, both tie at 0."""
    scores = indexer_scores(
        [[[1.0], [2.0]]], [[-2.0], [0.0]], [[1.0, 2.0]], query_start_loc=[0, 1], seq_lens=[2]
    )
    assert scores.tolist() == [[0.0, 0.0]]


@given(seeds, lengths, st.integers(1, 12))
def test_selection_is_that_of_torch(torch: Any, seed: int, batch: list, top_k: int) -> None:
    """The selected scores are torch.topk's values; each one's choice among ties is valid to the other."""
    (q, k, weights), lens = indexer_case(seed, batch)
    scores = indexer_scores(q, k, weights, **lens)
    chosen = select_topk(q, k, weights, top_k=top_k, **lens)
    assert chosen.shape == (len(q), top_k)
    assert chosen.dtype == np.int32
    assert is_valid_topk(scores, chosen)
    width = min(top_k, scores.shape[1])
    best = torch.topk(torch.tensor(scores), width)
    theirs = np.where(np.isneginf(best.values.numpy()), -1, best.indices.numpy())
    assert is_valid_topk(scores, np.pad(theirs, ((0, 0), (0, top_k - width)), constant_values=-1))
    picked = np.take_along_axis(scores, np.maximum(chosen[:, :width], 0), axis=1) if width else scores
    assert (np.where(chosen[:, :width] == -1, -np.inf, picked) == best.values.numpy()).all()


def test_selection_is_valid_where_jax_breaks_ties() -> None:
    """A plateau of zeros wider than top_k: jax takes its own members, and they are as right as ours."""
    jax = pytest.importorskip("jax", reason="jax is not installed")
    scores = np.zeros((1, 3000), np.float32)
    scores[0, [7, 2999]] = 5, 3
    _, theirs = jax.lax.top_k(scores, 2048)
    ours = top_positions(scores, top_k=2048)
    assert is_valid_topk(scores, np.asarray(theirs))
    assert is_valid_topk(scores, ours)
    from_the_end = np.concatenate([[7, 2999], np.arange(2998, 952, -1)])[None]
    assert is_valid_topk(scores, from_the_end)
    assert not is_valid_topk(scores, np.where(from_the_end == 2999, 8, from_the_end))


rows = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)


@given(rows, st.integers(1, 12), st.randoms(use_true_random=False))
def test_every_order_and_every_tie_is_accepted(row: list[float], top_k: int, random: Any) -> None:
    """Sorting by score after any shuffle reaches every choice among ties; any order may be returned."""
    order = random.sample(range(len(row)), len(row))
    chosen = sorted(order, key=lambda j: -row[j])[:top_k]
    random.shuffle(chosen)
    given_row = chosen + [-1] * (top_k - len(chosen))
    random.shuffle(given_row)
    assert is_valid_topk([row], [given_row])
    assert is_valid_topk(np.array([row], np.float32), np.array([given_row], np.int32))


@given(rows, st.integers(1, 11), st.randoms(use_true_random=False))
def test_lower_score_in_place_of_a_higher_one_is_rejected(row: list[float], top_k: int, random: Any) -> None:
    """One member exchanged for a strictly lower score is found, whatever the order."""
    chosen = sorted(range(len(row)), key=lambda j: -row[j])[:top_k]
    worse = [j for j in range(len(row)) if j not in chosen and row[j] < row[chosen[0]]]
    if worse:
        chosen[0] = random.choice(worse)
        random.shuffle(chosen)
        assert not is_valid_topk([row], [chosen])


@pytest.mark.parametrize(
    ("positions", "why"),
    [
        ([0, -1], "one is missing"),
        ([0, 0], "one is named twice"),
        ([0, 3], "position 3 is no candidate"),
        ([0, 4], "position 4 does not exist"),
        ([0, -2], "−2 is not −1"),
    ],
)
def test_set_that_is_no_selection_is_rejected(positions: list[int], why: str) -> None:
    """A valid set has min(top_k, candidates) distinct candidates; with ties only these faults remain."""
    scores = [[1.0, 1.0, 1.0, -np.inf]]
    assert is_valid_topk(scores, [[0, 2]])
    assert not is_valid_topk(scores, [positions]), why


def test_short_context_is_taken_whole() -> None:
    """With fewer candidates than top_k all of them are due, and the rest is −1."""
    scores = [[0.5, 2.0, -np.inf, -np.inf], [-np.inf] * 4]
    assert top_positions(scores, top_k=3).tolist() == [[1, 0, -1], [-1, -1, -1]]
    assert valid_topk_rows(scores, [[-1, 0, 1], [-1, -1, -1]]).tolist() == [True, True]
    assert valid_topk_rows(scores, [[1, -1, -1], [0, -1, -1]]).tolist() == [False, False]


@given(
    st.lists(st.tuples(st.integers(-40, 40), st.integers(-3, 3)), min_size=1, max_size=10), st.integers(1, 10)
)
def test_selection_by_scores_within_the_declared_error_is_accepted(noisy: list, top_k: int) -> None:
    """Eighths moved by up to 3/8 and ranked exactly: valid for the true scores at score_error 3/8."""
    true = np.array([[score / 8 for score, _ in noisy]])
    moved = true + np.array([[step / 8 for _, step in noisy]])
    chosen = top_positions(moved, top_k=top_k)
    assert is_valid_topk(true, chosen, score_error=3 / 8)
    assert is_valid_topk(true, chosen, score_error=np.abs(moved - true))


def test_score_error_reaches_exactly_twice_its_size() -> None:
    """Scores 3 and 1 may change places when each can be off by 1, and by no less."""
    assert is_valid_topk([[3.0, 1.0]], [[1]], score_error=1.0)
    assert not is_valid_topk([[3.0, 1.0]], [[1]], score_error=0.875)
    assert is_valid_topk([[3.0, 1.0]], [[1]], score_error=[[2.0, 0.0]])
    assert not is_valid_topk([[3.0, 1.0, 9.0]], [[1, 2]], score_error=[[0.0, 1.0, 5.0]])


def cache_case(seed: int = 1, heads: tuple[int, int] = (6, 2), block_size: int = 4) -> dict[str, Any]:
    """Return queries, caches and scrambled rows of distinct slots, some −1, at every place in the row."""
    rng = np.random.default_rng(seed)
    slots = np.stack([rng.permutation(28)[:7] for _ in range(4)])
    slots[rng.random(slots.shape) < 0.3] = -1
    return {
        "q": rng.standard_normal((4, heads[0], 5)),
        "k_cache": rng.standard_normal((7, block_size, heads[1], 5)),
        "v_cache": rng.standard_normal((7, block_size, heads[1], 3)),
        "slots": slots,
        "scale": 0.6,
    }


def output_bound(case: dict[str, Any]) -> float:
    """Bound the error of one float64 softmax over at most 28 slots.

    A logit (|logit| <= a) takes head_dim + 5 roundings, √scale on both sides included; with the subtraction
    of the peak (2u·a) and exp (4u) a weight is off by e^±t, a share by e^±2t and n + 2 roundings, and the
    blend adds n more to values of at most max|v|.
    """
    a = case["scale"] * np.abs(case["q"]).sum(axis=-1).max() * np.abs(case["k_cache"]).max()
    t = U * ((case["q"].shape[2] + 5 + 2) * a + 4)
    return float(np.abs(case["v_cache"]).max() * (np.exp(2 * t) * (1 + U * (2 * 28 + 4)) - 1))


def test_selection_is_a_mask_over_all_slots(torch: Any) -> None:
    """PyTorch's attention over every slot, masked to each row's selection, gives the same."""
    case = cache_case()
    k, v = (torch.tensor(case[name]).flatten(0, 1).transpose(0, 1) for name in ("k_cache", "v_cache"))
    mask = np.zeros((4, 28), bool)
    for token, row in enumerate(case["slots"]):
        mask[token, row[row >= 0]] = True
    expected = torch.nn.functional.scaled_dot_product_attention(
        torch.tensor(case["q"]).transpose(0, 1),
        k,
        v,
        attn_mask=torch.tensor(mask),
        scale=case["scale"],
        enable_gqa=True,
    )
    error = np.abs(sparse_attention(**case).out - expected.transpose(0, 1).numpy())
    assert (error <= 2 * output_bound(case)).all()


def test_selecting_everything_is_paged_attention() -> None:
    """top_k at least the context: the indexer keeps every position, and the sparse path is the dense one."""
    case = cache_case(2)
    batch = {"block_tables": [[5, 2, 6], [0, 3, -1]], "seq_lens": [10, 7], "query_start_loc": [0, 3, 4]}
    rng = np.random.default_rng(3)
    chosen = select_topk(
        rng.standard_normal((4, 2, 3)),
        rng.standard_normal((17, 3)),
        np.ones((4, 2)),
        top_k=12,
        query_start_loc=[0, 3, 4],
        seq_lens=[10, 7],
    )
    slots = slots_of_positions(
        chosen, block_tables=batch["block_tables"], query_start_loc=[0, 3, 4], block_size=4
    )
    case["slots"] = slots
    expected = paged_attention(case["q"], case["k_cache"], case["v_cache"], scale=case["scale"], **batch)
    assert (np.abs(sparse_attention(**case).out - expected.out) <= 2 * output_bound(case)).all()


def test_nothing_outside_the_selection_is_read() -> None:
    """NaN in every slot that no row names changes no bit; a row is the same without its negative entries."""
    case = cache_case(4)
    case["slots"][case["slots"] < 0] = [-1, -28, *[-1] * (np.sum(case["slots"] < 0) - 2)]
    clean = sparse_attention(**case)
    unnamed = np.setdiff1d(np.arange(28), case["slots"])
    assert len(unnamed)
    for name in ("k_cache", "v_cache"):
        case[name][np.divmod(unnamed, 4)] = np.nan
    for found, expected in zip(sparse_attention(**case), clean, strict=True):
        assert found.tobytes() == expected.tobytes()
    for token, row in enumerate(case["slots"]):
        packed = {**case, "q": case["q"][token : token + 1], "slots": row[row >= 0][None]}
        assert sparse_attention(**packed).out.tobytes() == clean.out[token].tobytes()


def test_row_without_a_slot_is_empty() -> None:
    """All −1, or no column at all: out 0, lse −inf."""
    case = cache_case(5)
    for slots in (np.full((4, 7), -1), np.zeros((4, 0), np.int32)):
        out, lse = sparse_attention(**{**case, "slots": slots})
        assert (out == 0).all()
        assert np.isneginf(lse).all()


def test_zero_query_averages_its_own_selection() -> None:
    """Four of 28 integers, averaged exactly, for each query head from its kv head and in any order."""
    case = cache_case(6)
    case["v_cache"] = np.arange(7 * 4 * 2 * 3, dtype=float).reshape(7, 4, 2, 3)
    case |= {"q": np.zeros((1, 6, 5)), "slots": [[27, -1, 3, 12, 0]]}
    mean = case["v_cache"].reshape(28, 2, 3)[[27, 3, 12, 0]].sum(axis=0) / 4
    assert (sparse_attention(**case).out[0] == np.repeat(mean, 3, axis=0)).all()


def test_slots_beyond_int32_and_records_are_addressed() -> None:
    """Slot 2^41 + 1 of a cache that repeats one block, read as records whose values are their latent part."""
    kv_cache = np.broadcast_to(np.arange(8.0).reshape(1, 2, 4), (2**41, 2, 4))
    keys, values = as_one_kv_head(kv_cache, 3)
    out = sparse_attention(np.zeros((1, 2, 4)), keys, values, slots=[[2**41 + 1]], scale=1.0).out
    assert out.tolist() == [[[4.0, 5.0, 6.0], [4.0, 5.0, 6.0]]]


def test_positions_become_slots_through_the_table_of_their_request() -> None:
    """Position p lies in block_tables[request, p // 4] * 4 + p % 4; −1 stays −1."""
    slots = slots_of_positions(
        [[0, 5, -1], [4, -1, 7]], block_tables=[[3, 9], [1, 0]], query_start_loc=[0, 1, 2], block_size=4
    )
    assert slots.tolist() == [[12, 37, -1], [0, -1, 3]]
    assert slots_of_positions(
        [[-1]], block_tables=np.zeros((1, 0), int), query_start_loc=[0, 1], block_size=4
    ).tolist() == [[-1]]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"slots": [[0, 28]] * 4}, SlotMappingError, r"slots\[0, 1\] = 28, but the cache has 28 slots"),
        ({"slots": [[5, -1, 5]] * 4}, SlotMappingError, r"slots\[0\] names slot 5 twice.* \(KV-ATTN-072"),
        ({"slots": [[0]]}, ShapeError, r"slots has shape \[1, 1\]"),
        ({"slots": [[0.0]] * 4}, DTypeError, "slots has dtype float64"),
        ({"scale": float("inf")}, ArgumentError, "scale = inf"),
        ({"q": np.zeros((4, 5, 5))}, ShapeError, "q has 5 heads and k_cache has 2"),
        ({"v_cache": np.zeros((7, 2, 2, 3))}, ShapeError, "v_cache has shape"),
        (
            {"q": np.zeros((4, 6, 5), np.float16), "dtype": np.float32},
            DTypeError,
            "k_cache has dtype float64, which float32 cannot hold exactly",
        ),
    ],
)
def test_impossible_selection_is_refused(change: dict, error: type[KVError], says: str) -> None:
    """The error names the row and the entry; queries and caches keep their bits."""
    case = cache_case()
    before = {name: case[name].tobytes() for name in ("q", "k_cache", "v_cache", "slots")}
    with pytest.raises(error, match=says):
        sparse_attention(**{**case, **change})
    assert before == {name: case[name].tobytes() for name in before}


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"top_k": 0}, ArgumentError, "top_k = 0"),
        ({"k": np.zeros((4, 4))}, ShapeError, r"k has shape \[4, 4\], expected \[5, 4\]"),
        ({"weights": np.zeros((2, 2))}, ShapeError, "weights has shape"),
        ({"seq_lens": [-5]}, LengthError, r"seq_lens\[0\] = -5"),
        ({"k": np.full((5, 4), np.nan)}, ArgumentError, r"scores\[0, 0\] is NaN"),
    ],
)
def test_impossible_indexer_input_is_refused(change: dict, error: type[KVError], says: str) -> None:
    """A score without a rank, or arrays that do not fit, are named before anything is selected."""
    (q, k, weights), lens = indexer_case(1, [(5, 2)])
    with pytest.raises(error, match=says):
        select_topk(**{"q": q, "k": k, "weights": weights, "top_k": 2, **lens, **change})


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"scores": [[np.nan, 1.0]]}, ArgumentError, r"scores\[0, 0\] is NaN"),
        ({"score_error": -1.0}, ArgumentError, "score_error = -1.0, expected finite numbers >= 0"),
        ({"score_error": np.inf}, ArgumentError, "score_error = inf"),
        ({"score_error": [1.0]}, ShapeError, "score_error has shape"),
        ({"positions": [[0], [1]]}, ShapeError, "positions has shape"),
        ({"positions": [[0.0]]}, DTypeError, "positions has dtype"),
    ],
)
def test_question_that_has_no_answer_is_refused(change: dict, error: type[KVError], says: str) -> None:
    """The predicate answers about selections; a malformed question is an error, not a False."""
    with pytest.raises(error, match=says):
        is_valid_topk(**{"scores": [[0.0, 1.0]], "positions": [[1]], **change})


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"positions": [[8]]}, BlockTableError, r"positions\[0, 0\] = 8, but block_tables hold 8 positions"),
        ({"positions": [[-3]]}, BlockTableError, r"positions\[0, 0\] = -3"),
        ({"block_tables": [[-1, 2]]}, BlockTableError, r"positions\[0, 0\] lies in block -1"),
        ({"query_start_loc": [0, 2]}, LengthError, r"query_start_loc = \[0, 2\]"),
        ({"block_size": 0}, ArgumentError, "block_size = 0"),
    ],
)
def test_position_without_a_slot_is_refused(change: dict, error: type[KVError], says: str) -> None:
    """A position past the table, or in a padding entry, has no slot to be."""
    good = {"positions": [[0]], "block_tables": [[1, 2]], "query_start_loc": [0, 1], "block_size": 4}
    with pytest.raises(error, match=says):
        slots_of_positions(**{**good, **change})
