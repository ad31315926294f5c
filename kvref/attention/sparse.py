"""Attention over a chosen few tokens, and the ways to choose them.

An indexer scores every position a query may attend to with small queries and keys of its own, the best
`top_k` are kept, and attention runs over those alone:

    score(t, j) = Σ_h w[t, h] · max(0, q[t, h] · k[j]),   j <= t

ReLU makes exact ties at zero common, and rounding moves scores, so many selections are right: a selection is
judged by `is_valid_topk`, never against a list of indices.

Realises: KV-ATTN-070 topk-valid-set, KV-ATTN-071 indexer-relu, KV-ATTN-072 sparse-attends-selection,
KV-ATTN-073 sparse-causal, KV-ATTN-074 sparse-invalid-index.
For porters: `sparse_attention` needs no causal mask, for the indexer never offers a later position.
Source: DeepSeek-V3.2 (2025), the lightning indexer; FlashMLA's sparse mode (physical slots, −1 for none).
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, as_indices, check_count, check_scalar, check_shape, widen
from kvref.attention.batch import Batch
from kvref.attention.dense import attend, check_query_heads
from kvref.attention.merge import State, empty_state
from kvref.attention.paged import check_cache, locate
from kvref.errors import ArgumentError, BlockTableError, LengthError, ShapeError, SlotMappingError

#: Stands where a selection has fewer than `top_k` members.
NONE = -1


def indexer_scores(
    q: ArrayLike,
    k: ArrayLike,
    weights: ArrayLike,
    *,
    query_start_loc: ArrayLike,
    seq_lens: ArrayLike,
    dtype: Any = np.float64,
) -> Array:
    """Return the indexer's score of every position, −inf where the query may not attend.

    Shapes: q [num_tokens, num_index_heads, index_dim]; k [sum(seq_lens), index_dim] packed request after
    request, one key per token for all heads; weights [num_tokens, num_index_heads], any positive scale of q·k
    multiplied in. Returns [num_tokens, max(seq_lens)]; positions count from the start of each request.
    Raises: ShapeError, DTypeError, LengthError.

    Realises: KV-ATTN-071 indexer-relu, KV-ATTN-073 sparse-causal.
    """
    q, k, weights = widen("q", q, dtype), widen("k", k, dtype), widen("weights", weights, dtype)
    check_shape("q", q, ["num_tokens", "num_index_heads", "index_dim"])
    check_shape("weights", weights, q.shape[:2])
    batch = Batch.of(q, query_start_loc, seq_lens, {"scale": 1.0})
    check_shape("k", k, [int(batch.seq_lens.sum()), q.shape[2]])
    scores = np.full((q.shape[0], int(batch.seq_lens.max(initial=0))), -np.inf, q.dtype)
    for request, _, queries in batch.by_request(None):
        context = slice(*batch.context_start_loc[request : request + 2])
        with np.errstate(invalid="ignore", over="ignore"):  # keys no query attends to may hold anything
            per_head = np.maximum(q[queries] @ k[context].T, 0)  # [Q, H, D] @ [D, N] -> [Q, H, N]
            summed = (weights[queries, None, :] @ per_head)[:, 0]  # [Q, 1, H] @ [Q, H, N] -> [Q, N]
        scores[queries, : summed.shape[1]] = np.where(batch.allowed(request, queries), summed, -np.inf)
    return scores


def select_topk(
    q: ArrayLike,
    k: ArrayLike,
    weights: ArrayLike,
    *,
    top_k: int,
    query_start_loc: ArrayLike,
    seq_lens: ArrayLike,
    dtype: Any = np.float64,
) -> Array:
    """Return the `top_k` positions of the highest indexer scores of every query.

    Shapes and errors: as `indexer_scores`. Returns int32 [num_tokens, top_k], best first; a query with fewer
    positions than `top_k` gets all of them, then −1. Among equal scores the earlier position comes first, but
    any valid set is right: see `is_valid_topk`.

    Realises: KV-ATTN-070 topk-valid-set.
    """
    scores = indexer_scores(q, k, weights, query_start_loc=query_start_loc, seq_lens=seq_lens, dtype=dtype)
    return top_positions(scores, top_k=top_k)


def top_positions(scores: ArrayLike, *, top_k: int) -> Array:
    """Return where the `top_k` highest scores stand along the last axis, −1 where there are fewer.

    Shapes: scores [..., num_candidates], −inf for what is no candidate; returns int32 [..., top_k].
    Raises: ShapeError, DTypeError, ArgumentError (a score that is NaN has no rank).
    """
    ranked = _without_nan(widen("scores", scores))
    if ranked.ndim == 0:
        raise ShapeError("scores has shape [], expected [..., num_candidates]")
    top_k = check_count("top_k", top_k)
    best = np.argsort(-ranked, axis=-1, kind="stable")[..., :top_k]
    chosen = np.where(np.isneginf(np.take_along_axis(ranked, best, axis=-1)), NONE, best)
    missing = top_k - chosen.shape[-1]
    filler = np.full((*chosen.shape[:-1], missing), NONE)
    return np.concatenate([chosen, filler], axis=-1).astype(np.int32)


def is_valid_topk(scores: ArrayLike, positions: ArrayLike, *, score_error: ArrayLike = 0.0) -> bool:
    """Say whether every row of `positions` is a right selection of the highest scores.

    Shapes and errors: as `valid_topk_rows`. Realises: KV-ATTN-070 topk-valid-set.

    >>> is_valid_topk([[0.0, 3.0, 0.0]], [[1, 2]]), is_valid_topk([[0.0, 3.0, 1.0]], [[1, 0]])
    (True, False)
    """
    return bool(valid_topk_rows(scores, positions, score_error=score_error).all())


def valid_topk_rows(scores: ArrayLike, positions: ArrayLike, *, score_error: ArrayLike = 0.0) -> Array:
    """Say which rows of `positions` are right selections of the highest scores.

    A row is right if it names min(top_k, candidates) distinct candidates, in any order and −1 elsewhere, and
    some scores within `score_error` of the true ones would have chosen them: no score left out exceeds a
    chosen one by more than both their errors.

    Shapes: scores [num_tokens, num_candidates], −inf for what is no candidate; positions [num_tokens, top_k];
    score_error >= 0, a scalar or one per score. Returns booleans [num_tokens].
    Raises: ShapeError, DTypeError, ArgumentError.
    """
    true = _without_nan(widen("scores", scores))
    check_shape("scores", true, ["num_tokens", "num_candidates"])
    given = as_indices("positions", positions, [true.shape[0], "top_k"])
    error = widen("score_error", score_error)
    if error.ndim:
        check_shape("score_error", error, true.shape)
    if not ((error >= 0) & np.isfinite(error)).all():
        raise ArgumentError(
            f"score_error = {error.tolist()}, expected finite numbers >= 0 (KV-ATTN-070 topk-valid-set)"
        )
    with np.errstate(over="ignore"):
        low, high = true - error, true + error
    return np.array(
        [_is_right(*row) for row in zip(true, low, high, given, strict=True)], dtype=np.bool_
    ).reshape(len(true))


def _is_right(true: Array, low: Array, high: Array, given: Array) -> bool:
    candidate = ~np.isneginf(true)
    named = given[given != NONE]
    if ((named < 0) | (named >= len(true))).any() or not candidate[named].all():
        return False
    if len(np.unique(named)) != len(named) or len(named) != min(len(given), candidate.sum()):
        return False
    left_out = candidate.copy()
    left_out[named] = False
    return bool(low[left_out].max(initial=-np.inf) <= high[named].min(initial=np.inf))


def slots_of_positions(
    positions: ArrayLike, *, block_tables: ArrayLike, query_start_loc: ArrayLike, block_size: int
) -> Array:
    """Return the physical slots of selected positions, −1 where there is none.

    Shapes: positions [num_tokens, top_k]; block_tables [num_requests, max_blocks]; query_start_loc
    [num_requests + 1]. Returns int64 [num_tokens, top_k].
    Raises: ShapeError, DTypeError, LengthError, BlockTableError (a position past a request's table, or in
    an entry that names no block).
    """
    chosen = as_indices("positions", positions, ["num_tokens", "top_k"])
    tables = as_indices("block_tables", block_tables, ["num_requests", "max_blocks"])
    loc = as_indices("query_start_loc", query_start_loc, [len(tables) + 1])
    size = check_count("block_size", block_size)
    if loc[0] != 0 or (np.diff(loc) < 0).any() or loc[-1] != len(chosen):
        raise LengthError(f"query_start_loc = {loc.tolist()}, expected to rise from 0 to {len(chosen)}")
    wrong = (chosen < NONE) | (chosen >= tables.shape[1] * size)
    if wrong.any():
        token, entry = np.argwhere(wrong)[0]
        raise BlockTableError(
            f"positions[{token}, {entry}] = {chosen[token, entry]}, but block_tables hold "
            f"{tables.shape[1] * size} positions a request (KV-ATTN-014 table-in-range)"
        )
    slots = np.full_like(chosen, NONE)
    for request, table in enumerate(tables):
        token, entry = np.nonzero(chosen[loc[request] : loc[request + 1]] != NONE)
        token += loc[request]
        block, offset = locate(table, chosen[token, entry], size)
        if (block < 0).any():
            where = int(np.argmax(block < 0))
            raise BlockTableError(
                f"positions[{token[where]}, {entry[where]}] lies in block {block[where]}, expected >= 0 "
                "(KV-ATTN-014 table-in-range)"
            )
        slots[token, entry] = block * size + offset
    return slots


def sparse_attention(
    q: ArrayLike, k_cache: Array, v_cache: Array, *, slots: ArrayLike, scale: float, dtype: Any = np.float64
) -> State:
    """Attend from every query to its own selection of slots, and to nothing else.

    Shapes: q [num_tokens, num_q_heads, head_dim]; k_cache, v_cache [num_blocks, block_size, num_kv_heads,
    head_dim], any strides (records: `mla.as_one_kv_head`); slots [num_tokens, top_k], block · block_size +
    offset, for all heads alike; a negative entry is none, wherever it stands. A query with no slot is an
    empty row (0, −inf).
    Returns out [num_tokens, num_q_heads, head_dim] and lse [num_tokens, num_q_heads] in nats, in `dtype`.
    Raises: ShapeError, DTypeError, ArgumentError, SlotMappingError (a slot the cache does not have, or one
    twice in a row).

    Realises: KV-ATTN-072 sparse-attends-selection, KV-ATTN-074 sparse-invalid-index.
    """
    q, scale = widen("q", q, dtype), check_scalar("scale", scale)
    check_cache(k_cache, v_cache)
    check_query_heads(q, "k_cache", *k_cache.shape[2:])
    widen("k_cache", k_cache[:0], dtype), widen("v_cache", v_cache[:0], dtype)  # refuse before reading
    chosen = _check_selection(slots, q.shape[0], k_cache.shape[0] * k_cache.shape[1])
    result = empty_state(q.shape[0], q.shape[1], v_cache.shape[3], dtype)
    for token, row in enumerate(chosen):
        at = np.divmod(row[row >= 0], k_cache.shape[1])
        if len(at[0]):
            keys, values = widen("k_cache", k_cache[at], dtype), widen("v_cache", v_cache[at], dtype)
            everything = np.ones((1, len(keys)), np.bool_)
            state = attend(q[token : token + 1], keys, values, everything, scale=scale)
            result.out[token], result.lse[token] = state.out[0], state.lse[0]
    return result


def _check_selection(slots: ArrayLike, num_tokens: int, num_slots: int) -> Array:
    chosen = as_indices("slots", slots, [num_tokens, "top_k"])
    wrong = chosen >= num_slots
    if wrong.any():
        token, entry = np.argwhere(wrong)[0]
        raise SlotMappingError(
            f"slots[{token}, {entry}] = {chosen[token, entry]}, but the cache has {num_slots} slots "
            "(KV-ATTN-072 sparse-attends-selection)"
        )
    in_order = np.sort(chosen, axis=1)
    twice = (in_order[:, 1:] == in_order[:, :-1]) & (in_order[:, 1:] >= 0)
    if twice.any():
        token, entry = np.argwhere(twice)[0]
        raise SlotMappingError(
            f"slots[{token}] names slot {in_order[token, entry]} twice, expected each slot once "
            "(KV-ATTN-072 sparse-attends-selection)"
        )
    return chosen


def _without_nan(scores: Array) -> Array:
    if np.isnan(scores).any():
        where = np.argwhere(np.isnan(scores))[0].tolist()
        raise ArgumentError(f"scores{where} is NaN, expected a number or −inf (KV-ATTN-070 topk-valid-set)")
    return scores
