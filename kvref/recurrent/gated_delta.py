"""Gated DeltaNet: the delta rule with one decay for each head and token.

The rule is in `kvref.recurrent.delta`. A decay that is one number leaves the sum over channels, so over a
chunk the products of keys are an ordinary matrix product, times the decays between the tokens.

Realises: KV-RNN-005 zero-start, KV-RNN-010 decay-before-read, KV-RNN-011 delta-replaces, KV-RNN-013
key-head-groups, KV-RNN-026 strong-decay-finite, KV-RNN-027 zero-log-decay-keeps, KV-RNN-029 qk-l2norm.
For porters: with g = 0 and beta = 1 this is the plain delta rule, with beta · k = k and no correction a
linear attention; test those first.
Source: Yang et al. 2024 (Gated Delta Networks); Qwen3-Next.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array
from kvref.recurrent.chunks import segment_sums
from kvref.recurrent.delta import scan_tokens, tokens_of
from kvref.recurrent.scan import Scan


def gated_delta_rule(
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
    """Scan a ragged batch with the gated delta rule.

    Shapes: q, k [num_tokens, num_k_heads, head_k_dim]; v [num_tokens, num_v_heads, head_v_dim]; g, the log
    decay ≤ 0, and beta, the write strength in 0 … 1, [num_tokens, num_v_heads]; initial_state [num_requests,
    num_v_heads, head_k_dim, head_v_dim], zeros where not given; query_start_loc [num_requests + 1]. `scale`
    is head_k_dim^−½ if None. `qk_l2norm` divides queries and keys by their length first.
    `negative_eigenvalues` admits beta up to 2, for models trained so. `chunk_size` None takes token after
    token, which is the definition; a number takes so many at once.
    Returns out like v, and the state after each request's last token.
    Raises: ShapeError, DTypeError, LengthError, StateError, ArgumentError.

    >>> one = np.ones((2, 1, 1))
    >>> scan = gated_delta_rule(
    ...     one, one, [[[5.0]], [[7.0]]], np.zeros((2, 1)), np.ones((2, 1)), query_start_loc=[0, 2]
    ... )
    >>> scan.out.ravel().tolist(), scan.state.ravel().tolist()
    ([5.0, 7.0], [7.0])
    """
    tokens = tokens_of(
        q, k, v, g, beta,
        channel_decay=False,
        scale=scale,
        qk_l2norm=qk_l2norm,
        negative_eigenvalues=negative_eigenvalues,
        dtype=dtype,
    )  # fmt: skip
    return scan_tokens(tokens, query_start_loc, initial_state, chunk_size, decayed_products)


def decayed_products(x: Array, k: Array, g: Array) -> Array:
    """Return (x_i · k_j) · exp(g_{j+1} + … + g_i) for j ≤ i, and 0 above.

    Shapes: x [n, H, c, K], k [H, c, K], g [H, c, 1] -> [n, H, c, c].
    """
    result: Array = (x @ k.transpose(0, 2, 1)) * np.exp(segment_sums(g))[..., 0]
    return result
