"""The bound on one request, and on ragged batches over packed or paged contexts.

Rows that share a kv head are judged together, a bounded number at a time, so that memory stays small however
long the context is. The terms themselves are in `forward_error` and `likely_error`.

For porters: `attention_bound` for one request first.
Source: derived in `spec/bounds.md`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, as_array, check_shape, widen
from kvref.attention.arithmetic import REFERENCE, Arithmetic, gamma, resolved
from kvref.attention.batch import Batch
from kvref.attention.bounds import forward_error
from kvref.attention.bounds.forward_error import Rows
from kvref.attention.bounds.likely_error import likely_out_bound
from kvref.attention.dense import attend, check_heads, check_query_heads
from kvref.attention.masks import Variant, VariantArgs
from kvref.attention.merge import State, empty_state, with_sinks
from kvref.attention.paged import TOKENS_PER_PIECE, check_block_tables, check_cache, locate
from kvref.errors import DTypeError

#: Elements of one array over rows and positions: 2 MiB of float64.
_ROWS_TIMES_POSITIONS = 2**18


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
    state, bound = batch.empty(rows, q, v.shape[2]), _no_bound(batch, rows, q, v.shape[2])
    for request, places, queries in batch.by_request(rows):
        context = slice(*batch.context_start_loc[request : request + 2])
        part = _judge_request(batch, request, queries, q, k[context], v[context], facts, independent)
        _fill(state, bound, places, part)
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
    state, bound = batch.empty(rows, q, width), _no_bound(batch, rows, q, width)
    for request, places, queries in batch.by_request(rows):
        slots = locate(tables[request], np.arange(batch.seq_lens[request]), k_cache.shape[1])
        part = _judge_request(batch, request, queries, q, k_cache[slots], v_cache[slots], facts, independent)
        _fill(state, bound, places, part)
    return state, bound


def _judge_request(
    batch: Batch,
    request: int,
    queries: Array,
    q: Array,
    k: Array,
    v: Array,
    facts: Arithmetic,
    independent: bool,
) -> tuple[State, Bound]:
    bias = batch.bias(request, queries, slice(0, k.shape[0]))
    return _judge(q[queries], k, v, batch.allowed(request, queries), batch.variant, bias, facts, independent)


def _no_bound(batch: Batch, rows: ArrayLike | None, q: Array, head_dim: int) -> Bound:
    num_rows = len(batch.wanted(rows))
    return Bound(np.zeros((num_rows, q.shape[1], head_dim)), np.zeros((num_rows, q.shape[1])))


def _fill(state: State, bound: Bound, places: Array, part: tuple[State, Bound]) -> None:
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
) -> tuple[State, Bound]:
    """Answer one request exactly, and bound the error of a kernel on it.

    `k` and `v` may be narrow: they are widened one kv head at a time, so that a long context fits.
    """
    read = allowed.any(axis=0)  # what no row attends to stays out even of the last bit
    state = empty_state(q.shape[0], q.shape[1], v.shape[2])
    bound = Bound(np.zeros_like(state.out), np.zeros_like(state.lse))
    for kv_head, group in enumerate(np.split(np.arange(q.shape[1]), k.shape[1])):
        keys, values = widen("k", k[:, kv_head]), widen("v", v[:, kv_head])
        own = attend(
            q[:, group],
            keys[read, None],
            values[read, None],
            allowed[:, read],
            scale=variant.scale,
            softcap=variant.softcap,
            bias=None if bias is None else bias[group][..., read],
        )
        if variant.sinks is not None:
            own = with_sinks(own, np.asarray(variant.sinks)[group])
        state.out[:, group], state.lse[:, group] = own
        finite = np.isfinite(values)
        tame = values if finite.all() else np.where(finite, values, 0.0)
        for queries, heads in _row_blocks(allowed, group):
            live = np.flatnonzero(allowed[queries].any(axis=0))
            rows = _rows(
                q[queries, heads],
                keys[live],
                tame[live],
                allowed[queries],
                variant,
                0.0 if bias is None else bias[heads[:, None], queries[:, None], live],
                State(state.out[queries, heads], state.lse[queries, heads][:, None]),
                heads,
            )
            out, lse = _bound_rows(rows, facts, k.shape[0], independent)
            bound.lse[queries, heads] = lse
            known = finite[live]
            bound.out[queries, heads] = out if known.all() else np.where(rows.inside @ ~known, np.inf, out)
    return state, bound


def _row_blocks(allowed: Array, heads: Array) -> Iterator[tuple[Array, Array]]:
    """Yield (queries, query heads) of rows that attend to something, a bounded number at a time."""
    step = max(1, _ROWS_TIMES_POSITIONS // max(1, allowed.shape[1]))
    queries = np.flatnonzero(allowed.any(axis=1))
    pairs = np.repeat(queries, len(heads)), np.tile(heads, len(queries))
    for start in range(0, len(pairs[0]), step):
        yield pairs[0][start : start + step], pairs[1][start : start + step]


def _rows(
    q: Array,
    k: Array,
    v: Array,
    allowed: Array,
    variant: Variant,
    bias: Array | float,
    state: State,
    heads: Array,
) -> Rows:
    """Gather the exact quantities of rows that share one kv head; `allowed` is over the whole context."""
    inside = allowed[:, allowed.any(axis=0)]
    with np.errstate(invalid="ignore", over="ignore"):
        logits = variant.scale * (q @ k.T)  # [R, N]
        if variant.softcap is not None:
            logits = variant.softcap * np.tanh(logits / variant.softcap)
        logits = logits + bias
        size = abs(variant.scale) * (np.abs(q) @ np.abs(k).T)
    none = np.full(q.shape[0], -np.inf)
    sinks = none if variant.sinks is None else np.asarray(variant.sinks, np.float64)[heads]
    first, last = np.argmax(allowed, axis=1), allowed.shape[1] - 1 - np.argmax(allowed[:, ::-1], axis=1)
    return Rows(
        logits=np.where(inside, logits, -np.inf),
        size=np.where(inside, size, 0.0),
        query_size=np.where(inside, np.abs(q).sum(axis=1, keepdims=True), 0.0),
        key_size=np.where(inside, np.abs(k).sum(axis=1), 0.0),
        bias_size=np.where(inside, np.abs(bias), 0.0),
        v=v,
        out=state.out,
        lse=state.lse,
        sink=sinks[:, None],
        count=inside.sum(axis=1, keepdims=True),
        span=(last - first + 1)[:, None],
        head_dim=q.shape[1],
        scale=variant.scale,
        capped=variant.softcap is not None,
    )


def _bound_rows(rows: Rows, facts: Arithmetic, kv_len: int, independent: bool) -> tuple[Array, Array]:
    """Add the kernel's bound and the reference's, and what evaluating them in float64 can lose."""
    own = replace(REFERENCE, merges=-(-kv_len // TOKENS_PER_PIECE))
    with np.errstate(all="ignore"):
        inexact = forward_error.out_bound(rows, own)
        judge = likely_out_bound if independent else forward_error.out_bound
        out = judge(rows, facts, inexact) + inexact
        lse = forward_error.lse_bound(rows, facts) + forward_error.lse_bound(rows, own)
        in_weights = forward_error.weight_error(rows, own, forward_error.logit_error(rows, own))
        in_sums = gamma(2 * rows.count + rows.head_dim + 64, own.roundoff)
        evaluation = np.exp(4 * in_weights.max(axis=1, keepdims=True)) * (1 + in_sums)
        out, lse = out * evaluation, lse * evaluation
    # 0 · ∞ among the terms: nothing can be said there
    return np.where(np.isnan(out), np.inf, out), np.where(np.isnan(lse), np.inf, lse)[:, 0]
