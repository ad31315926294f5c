"""Kimi Delta Attention: the delta rule with a decay for each channel of the key.

The rule is in `kvref.recurrent.delta`. The decay now differs from channel to channel, so over a chunk it
stands inside the sum over channels, between the key that is read and the key that was written. It splits
there only at a token between the two: what decays up to that token goes to the later factor, the rest to the
earlier one.

Realises: KV-RNN-005 zero-start, KV-RNN-010 decay-before-read, KV-RNN-011 delta-replaces, KV-RNN-015
channel-decay, KV-RNN-026 strong-decay-finite, KV-RNN-027 zero-log-decay-keeps.
For porters: splitting the decay at the start of the chunk makes one factor exp of a positive number; halve
the chunk instead, and split at its middle.
Source: Kimi Linear 2025, section 3; Yang et al. 2023 (gated linear attention), section 4.3, for the two
levels.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array
from kvref.recurrent.chunks import FEW, segment_sums, sums_from_start, sums_to_end
from kvref.recurrent.delta import scan_tokens, tokens_of
from kvref.recurrent.scan import Scan


def kimi_delta_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    g: ArrayLike,
    beta: ArrayLike,
    *,
    query_start_loc: ArrayLike,
    initial_state: ArrayLike | None = None,
    scale: float | None = None,
    qk_l2norm: bool = False,
    negative_eigenvalues: bool = False,
    chunk_size: int | None = None,
    dtype: Any = np.float64,
) -> Scan:
    """Scan a ragged batch with the delta rule that decays each key channel by itself.

    Shapes: g [num_tokens, num_v_heads, head_k_dim]; everything else, what is returned and what is raised, as
    `gated_delta_rule`. Where the channels of g are equal, the answer is that of `gated_delta_rule`.
    """
    tokens = tokens_of(
        q, k, v, g, beta,
        channel_decay=True,
        scale=scale,
        qk_l2norm=qk_l2norm,
        negative_eigenvalues=negative_eigenvalues,
        dtype=dtype,
    )  # fmt: skip
    return scan_tokens(tokens, query_start_loc, initial_state, chunk_size, channel_products)


def channel_products(x: Array, k: Array, g: Array) -> Array:
    """Return Σ_d x_id k_jd exp(g_{j+1,d} + … + g_id) for j ≤ i, and 0 above (KV-RNN-015 channel-decay).

    Shapes: x [n, H, c, K], k and g [H, c, K] -> [n, H, c, c].
    """
    c = x.shape[-2]
    if c <= FEW:
        decayed = k[:, None] * np.exp(segment_sums(g))  # the keys, as they stand at every token: [H, c, c, K]
        direct: Array = (decayed @ x[..., None])[..., 0]
        return direct
    half = c // 2
    early, late = (..., slice(None, half), slice(None)), (..., slice(half, None), slice(None))
    products = np.zeros((*x.shape[:-2], c, c), x.dtype)
    products[..., :half, :half] = channel_products(x[early], k[early], g[early])
    products[..., half:, half:] = channel_products(x[late], k[late], g[late])
    to_middle, from_middle = np.exp(sums_to_end(g[early])), np.exp(sums_from_start(g[late]))
    products[..., half:, :half] = (x[late] * from_middle) @ (k[early] * to_middle).transpose(0, 2, 1)
    return products
