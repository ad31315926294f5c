"""The gated delta rule: a matrix that maps keys to values, decayed, corrected, and read.

    S = exp(g_t) ∘ S                      decay, first
    u = beta_t · (v_t − Sᵀ k_t)           what the decayed state lacks of the value at this key
    S = S + k_t uᵀ                        write it
    o_t = scale · Sᵀ q_t                  read, after the write

With g one number for each head this is Gated DeltaNet, with one for each key channel it is KDA. Over a chunk
the corrections u depend on each other only through keys, so they are the solution of one triangular system:

    (I + A) u = beta · (v − (k ∘ d_i0) S)          A_ij = beta_i Σ_d k_id k_jd d_ij,d     for j < i

Realises: KV-RNN-007 scan-resumes, KV-RNN-008 chunk-grid-own, KV-RNN-010 decay-before-read, KV-RNN-011
delta-replaces, KV-RNN-012 output-after-write, KV-RNN-013 key-head-groups, KV-RNN-022 scan-within-bound,
KV-RNN-029 qk-l2norm.
For porters: build `by_token` first; it is the definition, and the only form in which a split changes no bit.
Source: Yang et al. 2024 (Gated Delta Networks), equation 10 and section 3.3; Kimi Linear 2025, section 3.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, check_count, check_flag, check_scalar
from kvref.errors import ShapeError
from kvref.recurrent.chunks import solve_unit_lower, sums_from_start, sums_to_end
from kvref.recurrent.gates import l2norm
from kvref.recurrent.scan import Requests, Scan, check_range, take

#: Largest write strength: up to 1 the state moves towards the value, up to 2 it may overshoot.
STRENGTHS = {False: 1.0, True: 2.0}

#: The axes of one request's state, for messages.
STATE_AXES = "num_v_heads, head_k_dim, head_v_dim"

#: x [n, H, c, K], k [H, c, K], g [H, c, 1 or K] -> Σ_d x_id k_jd d_ij,d for j ≤ i, and 0 above, [n, H, c, c].
Products = Callable[[Array, Array, Array], Array]


@dataclass(frozen=True)
class Tokens:
    """What a token brings, each for every value head: q (scaled), k [T, H, K], v [T, H, V], beta [T, H].

    g is [T, H, 1] or [T, H, K].
    """

    q: Array
    k: Array
    v: Array
    g: Array
    beta: Array

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """Return the shape of one request's state."""
        return self.v.shape[1], self.k.shape[2], self.v.shape[2]


def tokens_of(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    g: ArrayLike,
    beta: ArrayLike,
    *,
    channel_decay: bool,
    scale: float | None,
    qk_l2norm: bool,
    negative_eigenvalues: bool,
    dtype: Any,
) -> Tokens:
    """Check the arguments of a delta rule against each other and bring every head's together.

    Raises: ShapeError, DTypeError, ArgumentError.
    """
    q = take("q", q, ["num_tokens", "num_k_heads", "head_k_dim"], dtype)
    k = take("k", k, q.shape, dtype)
    v = take("v", v, [q.shape[0], "num_v_heads", "head_v_dim"], dtype)
    group = _value_heads_per_key_head(v.shape[1], k.shape[1])
    beta = take("beta", beta, v.shape[:2], dtype)
    g = take("g", g, [*v.shape[:2], k.shape[2]] if channel_decay else v.shape[:2], dtype)
    check_range("g", g, -np.inf, 0, "KV-RNN-010 decay-before-read")
    most = STRENGTHS[check_flag("negative_eigenvalues", negative_eigenvalues)]
    check_range("beta", beta, 0, most, "KV-RNN-011 delta-replaces")
    if check_flag("qk_l2norm", qk_l2norm):
        q, k = l2norm(q), l2norm(k)
    factor = k.shape[2] ** -0.5 if scale is None else check_scalar("scale", scale)
    q = q * q.dtype.type(factor)
    q, k = np.repeat(q, group, axis=1), np.repeat(k, group, axis=1)  # value head h reads key head h // group
    return Tokens(q, k, v, g if channel_decay else g[..., None], beta)


def scan_tokens(
    tokens: Tokens,
    query_start_loc: ArrayLike,
    initial_state: ArrayLike | None,
    chunk_size: int | None,
    products: Products,
) -> Scan:
    """Scan a ragged batch token by token, or in chunks whose products of keys a rule says.

    Raises: ShapeError, DTypeError, LengthError, StateError, ArgumentError.
    """
    requests = Requests.of(query_start_loc, tokens.v.shape[0])
    state = requests.state(initial_state, tokens.state_shape, STATE_AXES, tokens.v.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        if chunk_size is None:
            return by_token(tokens, requests, state)
        return by_chunk(tokens, requests, state, check_count("chunk_size", chunk_size), products)


def by_token(tokens: Tokens, requests: Requests, state: Array) -> Scan:
    """Run the definition: each token of all requests, one after another."""
    out = np.zeros_like(tokens.v)
    order = requests.longest_first()
    state = state[order]
    for live, at in requests.by_token():
        S = state[live]  # a view, [R, H, K, V]
        S *= np.exp(tokens.g[at])[..., None]
        u = tokens.beta[at][..., None] * (tokens.v[at] - _read(S, tokens.k[at]))
        S += tokens.k[at][..., :, None] * u[..., None, :]
        out[at] = _read(S, tokens.q[at])
    final = np.empty_like(state)
    final[order] = state
    return Scan(out, final)


def by_chunk(tokens: Tokens, requests: Requests, state: Array, chunk_size: int, products: Products) -> Scan:
    """Run chunk after chunk, all heads of a chunk at once.

    How many tokens follow in a chunk may change the last bits of a token's output: matrix products of other
    shapes add in another order.
    """
    out = np.zeros_like(tokens.v)
    for request, at in requests.chunks(chunk_size):
        q, k, v, g = (x[at].transpose(1, 0, 2) for x in (tokens.q, tokens.k, tokens.v, tokens.g))
        o, state[request] = _chunk(q, k, v, g, tokens.beta[at].T[..., None], state[request], products)
        out[at] = o.transpose(1, 0, 2)
    return Scan(out, state)


def _chunk(
    q: Array, k: Array, v: Array, g: Array, beta: Array, S: Array, products: Products
) -> tuple[Array, Array]:
    """Return the outputs of one chunk and the state after it.

    Shapes: q, k [H, c, K], v [H, c, V], g [H, c, 1 or K], beta [H, c, 1], S [H, K, V].
    """
    from_start, to_end = np.exp(sums_from_start(g)), np.exp(sums_to_end(g))
    A, scores = products(np.stack([beta * k, q]), k, g)
    u = solve_unit_lower(np.tril(A, -1), beta * (v - (k * from_start) @ S))
    o = (q * from_start) @ S + scores @ u
    return o, S * from_start[:, -1, :, None] + (k * to_end).transpose(0, 2, 1) @ u


def _read(S: Array, key: Array) -> Array:
    """Return Sᵀ key for every head. Shapes: S [..., K, V], key [..., K] -> [..., V]."""
    result: Array = (key[..., None, :] @ S)[..., 0, :]
    return result


def _value_heads_per_key_head(num_v_heads: int, num_k_heads: int) -> int:
    if num_k_heads == 0 or num_v_heads == 0 or num_v_heads % num_k_heads:
        raise ShapeError(
            f"v has {num_v_heads} heads and k has {num_k_heads}, expected a multiple "
            "(KV-RNN-013 key-head-groups)"
        )
    return num_v_heads // num_k_heads
