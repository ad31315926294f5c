"""The bound on one request, and on ragged batches over packed or paged contexts.

The rows come from `exact_rows`, a bounded number at a time; the terms of the bound are in `forward_error` and
`likely_error`.

For porters: `attention_bound` for one request first.
Source: derived in `spec/bounds.md`.
"""

from dataclasses import replace
from typing import NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, as_array, check_shape, widen
from kvref.attention.arithmetic import REFERENCE, Arithmetic, gamma, resolved
from kvref.attention.batch import Batch
from kvref.attention.bounds import forward_error
from kvref.attention.bounds.decoding import PLAIN, Decoding
from kvref.attention.bounds.exact_rows import row_pieces
from kvref.attention.bounds.forward_error import Rows
from kvref.attention.bounds.likely_error import likely_out_bound
from kvref.attention.dense import check_heads, check_query_heads
from kvref.attention.masks import Variant, VariantArgs
from kvref.attention.merge import State, empty_state
from kvref.attention.paged import TOKENS_PER_PIECE, check_block_tables, check_cache, locate
from kvref.errors import DTypeError


class Bound(NamedTuple):
    """The most an answer may differ: `out [T, H, Dv]`, and `lse [T, H]` in nats."""

    out: Array
    lse: Array


def attention_bound(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    allowed: ArrayLike,
    *,
    scale: float,
    softcap: float | None = None,
    bias: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    arithmetic: Arithmetic,
    independent: bool = False,
) -> Bound:
    """Bound the error of a kernel on one request.

    Shapes: q [num_rows, num_q_heads, head_dim], k and v [kv_len, num_kv_heads, head_dim], allowed [num_rows,
    kv_len], bias [num_q_heads, num_rows, kv_len], sinks [num_q_heads]. "input" in `arithmetic` is the dtype
    of `q`. What lies outside `allowed` has no effect, NaN included; a row that attends to a value that is not
    finite has an infinite bound there. `independent` asks for the smaller bound that holds, but for a chance
    of 1e-12 per number, if roundings are independent: for random data that the caller has drawn itself.
    Raises: ShapeError, DTypeError.
    """
    facts = resolved(arithmetic, "q", q)
    q, k, v = widen("q", q), widen("k", k), widen("v", v)
    check_heads(q, k, v)
    allowed = as_array("allowed", allowed)
    check_shape("allowed", allowed, [q.shape[0], k.shape[0]])
    if allowed.dtype != np.bool_:
        raise DTypeError(f"allowed has dtype {allowed.dtype}, expected bool (KV-ATTN-025 boolean-mask)")
    if bias is not None:
        bias = widen("bias", bias)
        check_shape("bias", bias, [q.shape[1], q.shape[0], k.shape[0]])
    lens = np.array([q.shape[0]]), np.array([k.shape[0]])
    variant = Variant(scale=scale, softcap=softcap, sinks=sinks).for_batch(q.shape[1], *lens)
    return _judge(q, k, v, allowed, variant, bias, facts, independent)[1]


def dense_bound(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    query_start_loc: ArrayLike,
    seq_lens: ArrayLike,
    arithmetic: Arithmetic,
    independent: bool = False,
    rows: ArrayLike | None = None,
    **variant: Unpack[VariantArgs],
) -> tuple[State, Bound]:
    """Return the exact answer of `dense.attention` and the bound around it.

    Shapes and errors: as `dense.attention`; "input" in `arithmetic` is the dtype of `q`;
    `independent` as `attention_bound`.
    """
    facts = resolved(arithmetic, "q", q)
    q, k, v = widen("q", q), widen("k", k), widen("v", v)
    check_heads(q, k, v)
    batch = Batch.of(q, query_start_loc, seq_lens, variant)
    check_shape("k", k, [int(batch.seq_lens.sum()), k.shape[1], k.shape[2]])
    state, bound = batch.empty(rows, q, v.shape[2]), no_bound(batch, rows, q, v.shape[2])
    for request, places, queries in batch.by_request(rows):
        context = slice(*batch.context_start_loc[request : request + 2])
        part = judge_request(batch, request, queries, q, k[context], v[context], facts, independent)
        fill_in(state, bound, places, part)
    return state, bound


def paged_bound(
    q: ArrayLike,
    k_cache: Array,
    v_cache: Array,
    *,
    block_tables: ArrayLike,
    seq_lens: ArrayLike,
    query_start_loc: ArrayLike,
    arithmetic: Arithmetic,
    independent: bool = False,
    rows: ArrayLike | None = None,
    **variant: Unpack[VariantArgs],
) -> tuple[State, Bound]:
    """Return the exact answer of `paged.paged_attention` and the bound around it.

    Shapes and errors: as `paged.paged_attention`; "input" in `arithmetic` is the dtype of `q`. Slots outside
    the attended set are not read.
    """
    facts = resolved(arithmetic, "q", q)
    q = widen("q", q)
    check_cache(k_cache, v_cache)
    check_query_heads(q, "k_cache", *k_cache.shape[2:])
    batch = Batch.of(q, query_start_loc, seq_lens, variant)
    tables = check_block_tables(block_tables, batch.seq_lens, k_cache.shape[0], k_cache.shape[1])
    width = v_cache.shape[3]
    state, bound = batch.empty(rows, q, width), no_bound(batch, rows, q, width)
    for request, places, queries in batch.by_request(rows):
        slots = locate(tables[request], np.arange(batch.seq_lens[request]), k_cache.shape[1])
        part = judge_request(batch, request, queries, q, k_cache[slots], v_cache[slots], facts, independent)
        fill_in(state, bound, places, part)
    return state, bound


def judge_request(
    batch: Batch,
    request: int,
    queries: Array,
    q: Array,
    k: Array,
    v: Array,
    facts: Arithmetic,
    independent: bool,
    cache: Decoding | None = None,
) -> tuple[State, Bound]:
    """Answer some rows of a request exactly, and bound the error of a kernel on them.

    `k` and `v` are the request's context; `cache`, if they came from codes, how a kernel decodes them.
    """
    bias = batch.bias(request, queries, slice(0, k.shape[0]))
    allowed = batch.allowed(request, queries)
    return _judge(q[queries], k, v, allowed, batch.variant, bias, facts, independent, cache)


def no_bound(batch: Batch, rows: ArrayLike | None, q: Array, head_dim: int) -> Bound:
    """Return a bound of 0 on every wanted row, to be filled in."""
    num_rows = len(batch.wanted(rows))
    return Bound(np.zeros((num_rows, q.shape[1], head_dim)), np.zeros((num_rows, q.shape[1])))


def fill_in(state: State, bound: Bound, places: Array, part: tuple[State, Bound]) -> None:
    """Put the answer and the bound of some rows into their places."""
    state.out[places], state.lse[places] = part[0]
    bound.out[places], bound.lse[places] = part[1]


def _judge(
    q: Array,
    k: Array,
    v: Array,
    allowed: Array,
    variant: Variant,
    bias: Array | None,
    facts: Arithmetic,
    independent: bool,
    cache: Decoding | None = None,
) -> tuple[State, Bound]:
    """Answer one request exactly, and bound the error of a kernel on it."""
    state = empty_state(q.shape[0], q.shape[1], v.shape[2])
    bound = Bound(np.zeros_like(state.out), np.zeros_like(state.lse))
    for piece in row_pieces(q, k, v, allowed, variant, bias, state, cache):
        out, bound.lse[piece.at] = _bound_rows(piece.rows, facts, k.shape[0], independent)
        bound.out[piece.at] = np.where(piece.unknown, np.inf, out)
    return state, bound


def _bound_rows(rows: Rows, facts: Arithmetic, kv_len: int, independent: bool) -> tuple[Array, Array]:
    """Add the kernel's bound and the reference's, and what evaluating them in float64 can lose."""
    own = replace(REFERENCE, merges=-(-kv_len // TOKENS_PER_PIECE))
    plain = replace(rows, cache=PLAIN)  # the reference decodes exactly
    with np.errstate(all="ignore"):
        inexact = forward_error.out_bound(plain, own)
        most = likely_out_bound if independent else forward_error.out_bound
        out = most(rows, facts, inexact) + inexact
        lse = forward_error.lse_bound(rows, facts) + forward_error.lse_bound(plain, own)
        in_weights = forward_error.weight_error(plain, own, forward_error.logit_error(plain, own))
        in_sums = gamma(2 * rows.count + rows.head_dim + 64, own.roundoff)
        evaluation = np.exp(4 * in_weights.max(axis=1, keepdims=True)) * (1 + in_sums)
        out, lse = out * evaluation, lse * evaluation
    # 0 · ∞ among the terms: nothing can be said there
    return np.where(np.isnan(out), np.inf, out), np.where(np.isnan(lse), np.inf, lse)[:, 0]
