"""Latent attention (MLA): one compressed record per token, shared by every query head.

The cache keeps, per token, a latent c and one rotated key part r, side by side: record = c | r. The naive
form expands them into keys and values per head,

    k_h = W_UK,h c | r        v_h = W_UV,h c

and attends as usual. Because q·(W c) = (Wᵀ q)·c and Σ p (W c) = W Σ p c, the same result comes from moving
both matrices to the query side: queries are absorbed once, attention runs over the records themselves as
one kv head whose values are their latent part, and the outputs are expanded once.

Realises: KV-ATTN-060 mla-absorbed-equals-naive, KV-ATTN-061 mla-record, KV-ATTN-062 mla-scale-given.
For porters: `mla_attention` is `paged_attention` over two views of one array; nothing else is new.
Source: DeepSeek-V2 (2024), section 2.1; FlashMLA names the record's two parts.
"""

from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, check_count, check_shape, widen
from kvref.attention.batch import Batch
from kvref.attention.dense import attention
from kvref.attention.masks import VariantArgs
from kvref.attention.merge import State
from kvref.attention.paged import check_block_size, check_block_tables, locate, paged_attention
from kvref.errors import ArgumentError, ShapeError


def mla_attention(
    q: ArrayLike,
    kv_cache: Array,
    *,
    latent_dim: int,
    block_tables: ArrayLike,
    seq_lens: ArrayLike,
    query_start_loc: ArrayLike,
    rows: ArrayLike | None = None,
    dtype: Any = np.float64,
    **variant: Unpack[VariantArgs],
) -> State:
    """Attend with absorbed queries over a cache of records.

    Shapes: q [num_tokens, num_q_heads, latent_dim + rope_dim] from `absorb_queries`; kv_cache [num_blocks,
    block_size, latent_dim + rope_dim], any strides; the rest as `paged_attention`. `scale` belongs to the
    model's own head_dim (nope + rope), which the width of a record does not tell: it must be given.
    Returns out [num_tokens, num_q_heads, latent_dim], for `expand_outputs`, and lse [num_tokens, num_q_heads]
    in nats, in `dtype`.
    Raises: ShapeError, DTypeError, LengthError, BlockTableError, ArgumentError.
    """
    keys, values = as_one_kv_head(kv_cache, latent_dim)
    _check_scale(variant)
    return paged_attention(
        q,
        keys,
        values,
        block_tables=block_tables,
        seq_lens=seq_lens,
        query_start_loc=query_start_loc,
        rows=rows,
        dtype=dtype,
        **variant,
    )


def mla_attention_naive(
    q_nope: ArrayLike,
    q_rope: ArrayLike,
    kv_cache: Array,
    w_uk: ArrayLike,
    w_uv: ArrayLike,
    *,
    block_tables: ArrayLike,
    seq_lens: ArrayLike,
    query_start_loc: ArrayLike,
    rows: ArrayLike | None = None,
    dtype: Any = np.float64,
    **variant: Unpack[VariantArgs],
) -> State:
    """Attend by expanding every record of every context into keys and values per head.

    Shapes: q_nope [num_tokens, num_q_heads, nope_dim]; q_rope [num_tokens, num_q_heads, rope_dim]; w_uk
    [num_q_heads, nope_dim, latent_dim]; w_uv [num_q_heads, v_head_dim, latent_dim]; the rest as
    `mla_attention`. Returns out [num_tokens, num_q_heads, v_head_dim] and lse.
    Raises: as `mla_attention`.
    """
    q_nope, q_rope = _check_query_parts(q_nope, q_rope, dtype)
    _check_scale(variant)
    check_shape("kv_cache", kv_cache, ["num_blocks", "block_size", "latent_dim + rope_dim"])
    check_block_size("kv_cache", kv_cache)
    q = np.concatenate([q_nope, q_rope], axis=-1)
    num_blocks, block_size, _ = kv_cache.shape
    lens = Batch.of(q, query_start_loc, seq_lens, variant).seq_lens
    tables = check_block_tables(block_tables, lens, num_blocks, block_size)
    contexts = [
        kv_cache[locate(table, np.arange(n), block_size)] for table, n in zip(tables, lens, strict=True)
    ]
    packed = np.concatenate([kv_cache[:0, 0], *contexts])  # [sum(seq_lens), latent + rope]
    k, v = expand_records(packed, w_uk, w_uv, dtype=dtype)
    return attention(
        q,
        k,
        v,
        query_start_loc=query_start_loc,
        seq_lens=lens,
        rows=rows,
        dtype=dtype,
        **variant,
    )


def as_one_kv_head(kv_cache: Array, latent_dim: int) -> tuple[Array, Array]:
    """Return records as the key and the value cache of one kv head: two views, no copy (KV-ATTN-061).

    Shapes: kv_cache [num_blocks, block_size, latent_dim + rope_dim] -> [num_blocks, block_size, 1, ·].
    Raises: ShapeError, ArgumentError.
    """
    check_shape("kv_cache", kv_cache, ["num_blocks", "block_size", "latent_dim + rope_dim"])
    if check_count("latent_dim", latent_dim) > kv_cache.shape[2]:
        raise ArgumentError(
            f"latent_dim = {latent_dim}, expected at most {kv_cache.shape[2]}, the width of a record "
            "(KV-ATTN-061 mla-record)"
        )
    keys = kv_cache[:, :, None, :]
    return keys, keys[..., :latent_dim]


def absorb_queries(
    q_nope: ArrayLike, q_rope: ArrayLike, w_uk: ArrayLike, *, dtype: Any = np.float64
) -> Array:
    """Return queries that score records directly: W_UKᵀ q_nope | q_rope.

    Shapes: q_nope [num_tokens, num_q_heads, nope_dim]; q_rope [num_tokens, num_q_heads, rope_dim]; w_uk
    [num_q_heads, nope_dim, latent_dim]. Returns [num_tokens, num_q_heads, latent_dim + rope_dim].
    Raises: ShapeError, DTypeError.
    """
    q_nope, q_rope = _check_query_parts(q_nope, q_rope, dtype)
    w_uk = widen("w_uk", w_uk, dtype)
    check_shape("w_uk", w_uk, [q_nope.shape[1], q_nope.shape[2], "latent_dim"])
    latent = (q_nope.transpose(1, 0, 2) @ w_uk).transpose(1, 0, 2)  # [H, T, P] @ [H, P, L] -> [T, H, L]
    return np.concatenate([latent, q_rope], axis=-1)


def expand_outputs(out_latent: ArrayLike, w_uv: ArrayLike, *, dtype: Any = np.float64) -> Array:
    """Return the outputs per head from outputs in the latent: W_UV out.

    Shapes: out_latent [num_tokens, num_q_heads, latent_dim]; w_uv [num_q_heads, v_head_dim, latent_dim].
    Returns [num_tokens, num_q_heads, v_head_dim].
    Raises: ShapeError, DTypeError.
    """
    out_latent, w_uv = widen("out_latent", out_latent, dtype), widen("w_uv", w_uv, dtype)
    check_shape("out_latent", out_latent, ["num_tokens", "num_q_heads", "latent_dim"])
    check_shape("w_uv", w_uv, [out_latent.shape[1], "v_head_dim", out_latent.shape[2]])
    out: Array = (out_latent.transpose(1, 0, 2) @ w_uv.transpose(0, 2, 1)).transpose(1, 0, 2)
    return out  # [H, T, L] @ [H, L, V] -> [T, H, V]


def expand_records(
    records: ArrayLike, w_uk: ArrayLike, w_uv: ArrayLike, *, dtype: Any = np.float64
) -> tuple[Array, Array]:
    """Return keys W_UK c | r and values W_UV c per head from records c | r.

    Shapes: records [num_slots, latent_dim + rope_dim]; w_uk [num_q_heads, nope_dim, latent_dim]; w_uv
    [num_q_heads, v_head_dim, latent_dim]. Returns k [num_slots, num_q_heads, nope_dim + rope_dim] and
    v [num_slots, num_q_heads, v_head_dim].
    Raises: ShapeError, DTypeError.
    """
    records = widen("records", records, dtype)
    w_uk, w_uv = widen("w_uk", w_uk, dtype), widen("w_uv", w_uv, dtype)
    check_shape("records", records, ["num_slots", "latent_dim + rope_dim"])
    check_shape("w_uk", w_uk, ["num_q_heads", "nope_dim", "latent_dim"])
    heads, _, latent_dim = w_uk.shape
    check_shape("w_uv", w_uv, [heads, "v_head_dim", latent_dim])
    if latent_dim > records.shape[1]:
        raise ShapeError(
            f"w_uk has latent_dim {latent_dim}, expected at most {records.shape[1]}, a record's width"
        )
    latent, rope = records[:, :latent_dim], records[:, latent_dim:]
    with np.errstate(invalid="ignore"):  # a dead slot may hold NaN; it stays in its own row
        k_nope = (latent @ w_uk.transpose(0, 2, 1)).transpose(1, 0, 2)  # [N, L] @ [H, L, P] -> [N, H, P]
        v = (latent @ w_uv.transpose(0, 2, 1)).transpose(1, 0, 2)
    shared = np.broadcast_to(rope[:, None, :], (len(records), heads, rope.shape[1]))
    return np.concatenate([k_nope, shared], axis=-1), v


def _check_query_parts(q_nope: ArrayLike, q_rope: ArrayLike, dtype: Any) -> tuple[Array, Array]:
    nope, rope = widen("q_nope", q_nope, dtype), widen("q_rope", q_rope, dtype)
    check_shape("q_nope", nope, ["num_tokens", "num_q_heads", "nope_dim"])
    check_shape("q_rope", rope, [*nope.shape[:2], "rope_dim"])
    return nope, rope


def _check_scale(variant: VariantArgs) -> None:
    if "scale" not in variant:
        raise ArgumentError(
            "scale is missing, expected the model's own: a record's width does not tell its head_dim "
            "(KV-ATTN-062 mla-scale-given)"
        )
