"""The format's own term: how far attention may move when keys and values are not the ones that were written.

Of a lossy cache no more is known than how far each number may be off: |k'_jc − k_jc| <= dk_jc and
|v'_jd − v_jd| <= dv_jd. A logit then moves by at most δ_j = |scale| Σ_c |q_c| dk_jc, which a softcap never
stretches, and a weight, before it is divided by the sum of weights, lies between p_j e^(−δ_j) and
p_j e^(δ_j). So the largest that channel d of the answer can be is the largest of

    Σ_j w_j (v_jd + dv_jd) / (Σ_j w_j + p_sink)        with p_j e^(−δ_j) <= w_j <= p_j e^(δ_j)

It has every w_j at one of its ends: the upper where v_jd + dv_jd lies above the result, the lower elsewhere.
That leaves one unknown, the result itself, and it is the root of a function that only falls. Nothing is
estimated on the way, so some keys and values within dk and dv reach the bound, and no errors are too large
for it: the answer stays among the values.

For porters: needed to judge a format, not a kernel; a kernel is judged on the values it was given.
Source: derived in `spec/bounds.md`, on what a format adds; Dinkelbach 1967 (ratios of linear functions).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, check_shape, widen
from kvref.attention.arithmetic import REFERENCE, gamma
from kvref.attention.batch import Batch
from kvref.attention.bounds.attention import Bound, no_bound
from kvref.attention.bounds.exact_rows import RowPiece, row_pieces
from kvref.attention.bounds.forward_error import (
    CHUNK,
    Rows,
    logit_error,
    lse_bound,
    out_bound,
    weight_error,
)
from kvref.attention.dense import check_heads
from kvref.attention.masks import Variant, VariantArgs
from kvref.attention.merge import empty_state
from kvref.attention.paged import TOKENS_PER_PIECE
from kvref.errors import ArgumentError

#: Past e^300 in either direction a weight counts as free, and the answer as anywhere among the values.
_FREE = 300.0
#: Roundings in a weight: its exponent is at most a few thousand where it counts, and is off by as many u.
_IN_WEIGHT = 4000


def format_bound(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    dk: ArrayLike,
    dv: ArrayLike,
    *,
    query_start_loc: ArrayLike,
    seq_lens: ArrayLike,
    rows: ArrayLike | None = None,
    **variant: Unpack[VariantArgs],
) -> Bound:
    """Bound |attention(q, k', v') − attention(q, k, v)| over all k' within dk of k and v' within dv of v.

    Shapes and errors: as `dense.attention`; dk and dv have the shapes of k and v. Infinity in them, or NaN,
    says that nothing is known of a number; a channel that q does not look at may have it for free. The first
    answer is exact, the second is the reference's: its own error is in the bound.
    Raises: ShapeError, DTypeError, LengthError, ArgumentError (an error below 0).
    """
    q, k, v = widen("q", q), widen("k", k), widen("v", v)
    check_heads(q, k, v)
    dk, dv = _errors("dk", dk, k), _errors("dv", dv, v)
    batch = Batch.of(q, query_start_loc, seq_lens, variant)
    check_shape("k", k, [int(batch.seq_lens.sum()), k.shape[1], k.shape[2]])
    bound = no_bound(batch, rows, q, v.shape[2])
    for request, places, queries in batch.by_request(rows):
        context = slice(*batch.context_start_loc[request : request + 2])
        kv_len = int(batch.seq_lens[request])
        bias = batch.bias(request, queries, slice(0, kv_len))
        own, keys, values = q[queries], k[context], v[context]
        state = empty_state(len(queries), q.shape[1], v.shape[2])
        allowed = batch.allowed(request, queries)
        for piece in row_pieces(own, keys, values, allowed, batch.variant, bias, state):
            here = piece.live, piece.kv_head
            out, lse = _bound_piece(
                piece, own[piece.at], keys[here], dk[context][here], dv[context][here], batch.variant, kv_len
            )
            at = places[piece.at[0]], piece.at[1]
            bound.out[at], bound.lse[at] = out, lse
    return bound


def _errors(name: str, errors: ArrayLike, of: Array) -> Array:
    found = widen(name, errors)
    check_shape(name, found, of.shape)
    if (found < 0).any():
        at = np.argwhere(found < 0)[0].tolist()
        raise ArgumentError(f"{name}{at} = {found[tuple(at)]}, expected an error >= 0")
    return np.where(np.isnan(found), np.inf, found)


def _logit_changes(rows: Rows, q: Array, k: Array, dk: Array, variant: Variant) -> tuple[Array, Array]:
    """Return the most each logit moves down and up, both `[R, N]`: δ_j, and no more after a softcap."""
    known, size = np.isfinite(dk), np.abs(q)
    delta = abs(variant.scale) * (size @ np.where(known, dk, 0.0).T)
    delta = delta * (1 + gamma(rows.head_dim + 4, REFERENCE.roundoff))
    delta = np.where((size > 0).astype(np.float64) @ ~known.T > 0, np.inf, delta)
    cap = variant.softcap
    if cap is None:
        return delta, delta
    logits = variant.scale * (q @ k.T)
    low, middle, high = (cap * np.tanh(x / cap) for x in (logits - delta, logits, logits + delta))
    return np.minimum(middle - low, delta), np.minimum(high - middle, delta)


def _bound_piece(
    piece: RowPiece, q: Array, k: Array, dk: Array, dv: Array, variant: Variant, kv_len: int
) -> tuple[Array, Array]:
    """Bound the rows of a piece, and add what the reference's two roundings cost."""
    rows, own = piece.rows, replace(REFERENCE, merges=-(-kv_len // TOKENS_PER_PIECE))
    with np.errstate(all="ignore"):
        down, up = _logit_changes(rows, q, k, dk, variant)
        slack = 2 * weight_error(rows, own, logit_error(rows, own))
        down, up = np.where(rows.inside, down + slack, 0.0), np.where(rows.inside, up + slack, 0.0)
        highest = _highest(rows, down, up, rows.v + dv, rows.out) - rows.out
        lowest = _highest(rows, down, up, dv - rows.v, -rows.out) + rows.out
        out = np.maximum(highest, lowest) + 2 * out_bound(rows, own)
        lse = _lse_change(rows, down, up) + 2 * lse_bound(rows, own)
    out = np.where(piece.unknown | np.isnan(out), np.inf, out)
    return out, np.where(np.isnan(lse), np.inf, lse)[:, 0]


def _lse_change(rows: Rows, down: Array, up: Array) -> Array:
    """Return the most the lse moves, `[R, 1]`: every logit goes the same way."""
    log_p = rows.logits - rows.lse
    higher = np.logaddexp.reduce(log_p + up, axis=1, keepdims=True)
    lower = -np.logaddexp.reduce(log_p - down, axis=1, keepdims=True)
    most: Array = np.maximum(higher, lower)
    return most


def _highest(rows: Rows, down: Array, up: Array, x: Array, start: Array) -> Array:
    """Return the largest weighted mean of x `[N, D]` when log-weights may move by −down … +up, `[R, D]`.

    `start [R, D]` is one that they do have. What summing in float64 may lose is added.
    """
    free = (np.maximum(down, up).max(axis=1, keepdims=True) > _FREE)[:, 0]
    log_p, log_sink = rows.logits - rows.lse_all, rows.sink - rows.lse_all
    top = np.maximum((log_p + up).max(axis=1, keepdims=True), log_sink)
    lower, upper, sink = np.exp(log_p - down - top), np.exp(log_p + up - top), np.exp(log_sink - top)
    result = np.empty(start.shape)
    for some, channels in _chunks(start.shape[0], start.shape[1], len(x)):
        values, begin = x[:, channels], start[some, channels]
        mean = _largest_mean(lower[some], upper[some], sink[some], values, begin)
        inside = rows.inside[some, :, None]
        most = np.where(inside, values, -np.inf).max(axis=1)  # no mean lies above the values
        most = np.where(np.isneginf(rows.sink[some]), most, np.maximum(most, 0.0))
        unknown = (inside & (values == np.inf)).any(axis=1)
        result[some, channels] = np.where(unknown, np.inf, np.where(free[some, None], most, mean))
    return result


def _largest_mean(lower: Array, upper: Array, sink: Array, x: Array, start: Array) -> Array:
    """Return the largest Σ w_j x_j / (Σ w_j + sink) with lower <= w <= upper, `[R, D]`, by Newton's steps.

    Each step puts every weight at the end that the last result asks for, and so gives a mean that can be had:
    the results rise until no weight changes its end. The last one is enlarged by its own rounding error.
    """
    mean, spare = start, (upper - lower)[:, None, :]  # [R, 1, N]
    x = np.where(np.isfinite(x), x, 0.0)
    sums, totals = lower @ x, lower.sum(axis=1, keepdims=True) + sink
    sizes = lower @ np.abs(x)
    for _ in range(len(x) + 1):
        high = (x > mean[:, None, :]).astype(np.float64)  # [R, N, D]
        total = totals + (spare @ high)[:, 0]
        better = (sums + (spare @ (high * x))[:, 0]) / total
        if not (better > mean).any():
            break
        mean = np.fmax(mean, better)
    size = (sizes + (spare @ (high * np.abs(x)))[:, 0]) / total
    enlarged: Array = mean + gamma(2 * len(x) + _IN_WEIGHT, REFERENCE.roundoff) * size
    return enlarged


def _chunks(num_rows: int, head_dim: int, n: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of rows and of channels whose product with n positions is bounded."""
    channels = max(1, min(head_dim, CHUNK // max(1, n)))
    some = max(1, CHUNK // max(1, n * channels))
    for row in range(0, num_rows, some):
        for channel in range(0, head_dim, channels):
            yield slice(row, row + some), slice(channel, channel + channels)
