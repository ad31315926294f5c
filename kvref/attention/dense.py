"""Softmax attention over keys and values that lie in one piece.

The formula everything else is held to, in three steps per request: score every attended pair, turn scores
into weights, blend the values by their weights. Grouped heads share keys and values: query head h reads kv
head h // (num_q_heads // num_kv_heads).

Realises: KV-ATTN-001 softmax-average, KV-ATTN-002 scale-once, KV-ATTN-003 head-map, KV-ATTN-004
weights-sum-to-one, KV-ATTN-005 logit-range, KV-ATTN-007 empty-row, KV-ATTN-008 zero-vector-is-a-token,
KV-ATTN-009 value-width, KV-ATTN-012 dead-slots, KV-ATTN-027 mask-last, KV-ATTN-028 chunked-equals-whole,
KV-ATTN-030 lse-natural, KV-ATTN-034 lse-row-order, KV-ATTN-040 softcap-formula.
For porters: build `attend` for one request first; the ragged batch is a loop over it.
Source: Vaswani et al. 2017, section 3.2; Ainslie et al. 2023 (grouped heads); Gemma 2 (softcap).
"""

from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, check_shape, widen
from kvref.attention.batch import Batch
from kvref.attention.masks import VariantArgs
from kvref.attention.merge import State
from kvref.errors import ShapeError


def score(q: Array, k: Array, scale: float) -> Array:
    """Return the logits scale · q·k as `[num_q_heads, num_rows, kv_len]`.

    Shapes: q [num_rows, num_q_heads, head_dim], k [kv_len, num_kv_heads, head_dim].
    """
    num_rows, num_q_heads, head_dim = q.shape
    kv_len, num_kv_heads, _ = k.shape
    group = num_q_heads // num_kv_heads
    grouped = q.transpose(1, 0, 2).reshape(num_kv_heads, group * num_rows, head_dim)
    logits: Array = grouped @ k.transpose(1, 2, 0)  # [KVH, G·Q, D] @ [KVH, D, N] -> [KVH, G·Q, N]
    logits *= scale
    return logits.reshape(num_q_heads, num_rows, kv_len)


def softmax(logits: Array) -> tuple[Array, Array]:
    """Turn logits into weights that sum to one, and the log of what they summed to.

    A logit of −inf has weight exactly 0; where every logit is −inf, every weight is 0 and the lse is −inf.
    Returns weights like `logits` and lse `[...]` without the last axis.
    """
    if logits.shape[-1] == 0:
        return logits, np.full(logits.shape[:-1], -np.inf, logits.dtype)
    peak = logits.max(axis=-1, keepdims=True)
    peak = np.where(np.isneginf(peak), 0.0, peak).astype(logits.dtype)
    weights = np.exp(logits - peak)
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = (peak + np.log(total))[..., 0]
        weights = np.where(total == 0, 0.0, weights / total).astype(logits.dtype)
    return weights, lse


def blend(weights: Array, v: Array) -> Array:
    """Return the weighted mean of the values as `[num_rows, num_q_heads, head_dim]`.

    Shapes: weights [num_q_heads, num_rows, kv_len], v [kv_len, num_kv_heads, head_dim].
    A value whose weight is 0 contributes nothing, NaN and infinity included (KV-ATTN-012 dead-slots).
    """
    num_q_heads, num_rows, kv_len = weights.shape
    _, num_kv_heads, head_dim = v.shape
    grouped = weights.reshape(num_kv_heads, num_q_heads // num_kv_heads * num_rows, kv_len)
    with np.errstate(invalid="ignore"):
        out = grouped @ v.transpose(1, 0, 2)  # [KVH, G·Q, N] @ [KVH, N, D] -> [KVH, G·Q, D]
    if not np.isfinite(out).all():
        out = _blend_around_dead_slots(grouped, v.transpose(1, 0, 2))
    return out.reshape(num_q_heads, num_rows, head_dim).transpose(1, 0, 2)


def attend(
    q: Array,
    k: Array,
    v: Array,
    allowed: Array,
    *,
    scale: float,
    softcap: float | None = None,
    bias: Array | None = None,
) -> State:
    """Attend over one piece of one request's context: score, shape, mask, softmax, blend.

    Shapes: q [num_rows, num_q_heads, head_dim], k and v [kv_len, num_kv_heads, head_dim],
    allowed [num_rows, kv_len], bias [num_q_heads, num_rows, kv_len].
    """
    with np.errstate(invalid="ignore", over="ignore"):
        logits = score(q, k, scale)  # [H, Q, N]
        if softcap is not None:
            logits = softcap * np.tanh(logits / softcap)
        if bias is not None:
            logits = logits + bias.astype(q.dtype, copy=False)
        logits = np.where(allowed, logits, -np.inf).astype(q.dtype, copy=False)
        weights, lse = softmax(logits)
    return State(blend(weights, v), lse.T)


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    query_start_loc: ArrayLike,
    seq_lens: ArrayLike,
    rows: ArrayLike | None = None,
    dtype: Any = np.float64,
    **variant: Unpack[VariantArgs],
) -> State:
    """Attend for a ragged batch whose keys and values are packed request after request.

    Shapes: q [num_tokens, num_q_heads, head_dim]; k, v [sum(seq_lens), num_kv_heads, head_dim], where v may
    have its own head_dim; query_start_loc [num_requests + 1]; seq_lens [num_requests], each including this
    step's tokens. `rows` picks query tokens and returns only those. `variant`: see `Variant`.
    Returns out [num_tokens, num_q_heads, head_dim] and lse [num_tokens, num_q_heads] in nats, in `dtype`.
    Raises: ShapeError, DTypeError, LengthError, ArgumentError.

    >>> one = np.ones((1, 1, 4))
    >>> attention(one, one, 7 * one, query_start_loc=[0, 1], seq_lens=[1], scale=0.5).out
    array([[[7., 7., 7., 7.]]])
    """
    q, k, v = widen("q", q, dtype), widen("k", k, dtype), widen("v", v, dtype)
    check_heads(q, k, v)
    batch = Batch.of(q, query_start_loc, seq_lens, variant)
    check_shape("k", k, [int(batch.seq_lens.sum()), k.shape[1], k.shape[2]])
    result = batch.empty(rows, q, v.shape[2])
    for request, places, queries in batch.by_request(rows):
        context = slice(*batch.context_start_loc[request : request + 2])
        state = attend(
            q[queries],
            k[context],
            v[context],
            batch.allowed(request, queries),
            scale=batch.variant.scale,
            softcap=batch.variant.softcap,
            bias=batch.bias(request, queries, slice(0, int(batch.seq_lens[request]))),
        )
        result.out[places], result.lse[places] = batch.finish(state)
    return result


def no_cache_tokens_computed(num_tokens: int) -> int:
    """Count the tokens a decoder computes to emit `num_tokens` when it keeps no cache: 1 + 2 + … + n.

    With a cache each token is computed once, so the ratio is (n + 1) / 2.
    """
    return num_tokens * (num_tokens + 1) // 2


def check_heads(q: Array, k: Array, v: Array) -> None:
    """Check that q, k and v agree on heads and width; k and v are `[num_slots, num_kv_heads, head_dim]`.

    Raises: ShapeError (KV-ATTN-003 head-map).
    """
    check_shape("q", q, ["num_tokens", "num_q_heads", "head_dim"])
    check_shape("k", k, ["num_slots", "num_kv_heads", q.shape[2]])
    check_shape("v", v, [k.shape[0], k.shape[1], "head_dim"])
    check_query_heads(q, "k", k.shape[1], k.shape[2])


def check_query_heads(q: Array, name: str, num_kv_heads: int, head_dim: int) -> None:
    """Check q against the heads and the width of the keys, an argument called `name`.

    Raises: ShapeError (KV-ATTN-003 head-map).
    """
    check_shape("q", q, ["num_tokens", "num_q_heads", head_dim])
    if num_kv_heads == 0 or q.shape[1] == 0 or q.shape[1] % num_kv_heads:
        raise ShapeError(
            f"q has {q.shape[1]} heads and {name} has {num_kv_heads}, expected a multiple "
            "(KV-ATTN-003 head-map)"
        )


def _blend_around_dead_slots(weights: Array, v: Array) -> Array:
    """Blend `[KVH, R, N] @ [KVH, N, D]` where values that are not finite count only if they have weight.

    A dead value stands in the sum as 0, which is what a weight of 0 makes of any number, so rows that do not
    read it keep their bits.
    """
    live = (weights != 0).astype(weights.dtype)
    nan, up, down = (
        live @ kind.astype(weights.dtype) > 0 for kind in (np.isnan(v), v == np.inf, v == -np.inf)
    )
    out: Array = weights @ np.where(np.isfinite(v), v, 0)  # [KVH, R, D]
    nan |= (up & down) | np.isnan(out)  # a weight that is NaN is NaN already
    out[up], out[down] = np.inf, -np.inf
    out[nan] = np.nan
    return out
