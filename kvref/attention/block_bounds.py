"""Upper bounds on the scores of whole blocks, from the smallest and largest key per channel.

A query's product with any key of a block is at most the sum, over channels, of the larger of its products
with the block's extremes. Blocks are ranked by that bound without reading their keys, and only the best are
attended to.

Realises: KV-ATTN-075 block-bound.
For porters: an extreme counts live tokens only; a dead slot in a part-filled block would loosen the bound, or
turn it into NaN.
Source: Tang et al. 2024 (Quest), section 3.2.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, check_count, check_shape, widen
from kvref.attention.batch import Batch
from kvref.attention.dense import check_heads
from kvref.attention.sparse import top_positions


class Extremes(NamedTuple):
    """The smallest and the largest key of every block, per channel.

    `low, high [num_blocks, num_kv_heads, head_dim]`.
    """

    low: Array
    high: Array


def block_extremes(k: ArrayLike, *, block_size: int, dtype: Any = np.float64) -> Extremes:
    """Return the extremes of one context's blocks; the last block may be part-filled.

    Shapes: k [kv_len, num_kv_heads, head_dim], keys in order of position.
    Raises: ShapeError, DTypeError, ArgumentError.
    """
    k = widen("k", k, dtype)
    check_shape("k", k, ["kv_len", "num_kv_heads", "head_dim"])
    starts = np.arange(0, len(k), check_count("block_size", block_size))
    if len(starts) == 0:
        return Extremes(k[:0], k[:0])
    return Extremes(np.minimum.reduceat(k, starts, axis=0), np.maximum.reduceat(k, starts, axis=0))


def score_bounds(q: ArrayLike, extremes: Extremes, *, dtype: Any = np.float64) -> Array:
    """Return, for every query and block, a bound that q·k exceeds for no key of the block.

    Shapes: q [num_rows, num_q_heads, head_dim]; extremes of num_blocks blocks. Returns
    [num_rows, num_q_heads, num_blocks], not scaled; a positive scale keeps the order.
    The bound holds in real arithmetic and, rounding being monotone, against a q·k that adds its products in
    the same order; one that adds them in another order may exceed it by the rounding of the two sums.
    Raises: ShapeError, DTypeError.

    Realises: KV-ATTN-075 block-bound.
    """
    q = widen("q", q, dtype)
    low, high = widen("low", extremes.low, dtype), widen("high", extremes.high, dtype)
    check_heads(q, low, high)
    check_shape("high", high, low.shape)
    group = q.shape[1] // low.shape[1]
    low, high = (np.repeat(x, group, axis=1).transpose(1, 0, 2) for x in (low, high))  # [H, M, D]
    each = q[:, :, None, :]  # [T, H, 1, D]
    with np.errstate(over="ignore", invalid="ignore"):
        bound: Array = np.maximum(each * low, each * high).sum(axis=-1)  # [T, H, M]
    return bound


def select_blocks(
    q: ArrayLike,
    k: ArrayLike,
    *,
    block_size: int,
    top_blocks: int,
    query_start_loc: ArrayLike,
    seq_lens: ArrayLike,
    dtype: Any = np.float64,
) -> Array:
    """Return the blocks with the highest bounds that every query head may attend to, best first.

    Shapes: q [num_tokens, num_q_heads, head_dim]; k [sum(seq_lens), num_kv_heads, head_dim] packed request
    after request. Returns int32 [num_tokens, num_q_heads, top_blocks], indices into the request's block
    table, −1 where there are fewer. The extremes are those of the positions up to the query's own, so that no
    later key moves a choice.
    Raises: ShapeError, DTypeError, LengthError, ArgumentError.
    """
    q, k = widen("q", q, dtype), widen("k", k, dtype)
    check_heads(q, k, k)
    batch = Batch.of(q, query_start_loc, seq_lens, {"scale": 1.0})
    check_shape("k", k, [int(batch.seq_lens.sum()), *k.shape[1:]])
    max_blocks = -(-int(batch.seq_lens.max(initial=0)) // check_count("block_size", block_size))
    bounds = np.full((*q.shape[:2], max_blocks), -np.inf, q.dtype)
    for request, _, queries in batch.by_request(None):
        context = k[slice(*batch.context_start_loc[request : request + 2])]
        for query, position in zip(queries, batch.positions(request, queries), strict=True):
            seen = block_extremes(context[: max(position + 1, 0)], block_size=block_size, dtype=dtype)
            bounds[query, :, : len(seen.low)] = score_bounds(q[query : query + 1], seen, dtype=dtype)[0]
    return top_positions(bounds, top_k=check_count("top_blocks", top_blocks))
