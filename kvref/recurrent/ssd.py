"""The scan of Mamba-2 (SSD): a matrix for each head, decayed by one number and fed by an outer product.

    S_t = exp(dt_t · A) · S_{t−1} + dt_t · x_t B_tᵀ          y_t = S_t C_t + D · x_t,  times silu(z_t)

Over a chunk that starts from S, with d_ij the decay from token j to token i of the chunk:

    y_i = Σ_{j≤i} (C_i · B_j) d_ij dt_j x_j  +  d_i0 · S C_i          S' = d_c0 · S + Σ_j d_cj dt_j x_j B_jᵀ

Realises: KV-RNN-005 zero-start, KV-RNN-007 scan-resumes, KV-RNN-008 chunk-grid-own, KV-RNN-012
output-after-write, KV-RNN-017 mamba-recurrence, KV-RNN-018 mamba-skip-and-gate, KV-RNN-019 ssd-groups,
KV-RNN-020 dt-transform, KV-RNN-022 scan-within-bound.
For porters: the loop of `_by_token` is the definition; `_chunk` is the same sums as matrix products.
Source: Mamba-2 (Dao and Gu 2024), sections 5 and 6.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, check_count, check_flag
from kvref.errors import ShapeError
from kvref.recurrent.chunks import segment_sums, sums_from_start
from kvref.recurrent.gates import step_sizes
from kvref.recurrent.mamba import RULE, skip_and_gate
from kvref.recurrent.scan import Requests, Scan, check_range, take, take_optional


def ssd_scan(
    x: ArrayLike,
    dt: ArrayLike,
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    *,
    query_start_loc: ArrayLike,
    initial_state: ArrayLike | None = None,
    D: ArrayLike | None = None,
    z: ArrayLike | None = None,
    dt_bias: ArrayLike | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, np.inf),
    chunk_size: int | None = None,
    dtype: Any = np.float64,
) -> Scan:
    """Scan a ragged batch with the recurrence of Mamba-2.

    Shapes: x, z [num_tokens, num_heads, head_dim]; dt [num_tokens, num_heads]; A, D, dt_bias [num_heads], A
    ≤ 0; B, C [num_tokens, num_groups, state_dim], and head h reads group h // (num_heads // num_groups);
    initial_state [num_requests, num_heads, head_dim, state_dim], zeros where not given; query_start_loc
    [num_requests + 1]. dt is transformed by `dt_bias`, `dt_softplus` and `dt_limit` (`gates.step_sizes`).
    `chunk_size` None takes token after token, which is the definition; a number takes so many at once.
    Returns out like x, and the state after each request's last token.
    Raises: ShapeError, DTypeError, LengthError, StateError, ArgumentError.
    """
    x = take("x", x, ["num_tokens", "num_heads", "head_dim"], dtype)
    num_tokens, num_heads, head_dim = x.shape
    dt, A = take("dt", dt, [num_tokens, num_heads], dtype), take("A", A, [num_heads], dtype)
    B = take("B", B, [num_tokens, "num_groups", "state_dim"], dtype)
    C = take("C", C, B.shape, dtype)
    D, z = take_optional("D", D, [num_heads], dtype), take_optional("z", z, x.shape, dtype)
    dt_bias = take_optional("dt_bias", dt_bias, [num_heads], dtype)
    check_range("A", A, -np.inf, 0, RULE)
    group = _heads_per_group(num_heads, B.shape[1])
    requests = Requests.of(query_start_loc, num_tokens)
    axes = "num_heads, head_dim, state_dim"
    state = requests.state(initial_state, (num_heads, head_dim, B.shape[2]), axes, x.dtype)
    dt = step_sizes(dt, dt_bias, check_flag("dt_softplus", dt_softplus), dt_limit)
    tokens = _Tokens(dt[..., None] * x, dt * A, B, C, group)
    with np.errstate(over="ignore", invalid="ignore"):
        if chunk_size is None:
            scan = _by_token(tokens, requests, state)
        else:
            scan = _by_chunk(tokens, requests, state, check_count("chunk_size", chunk_size))
        return Scan(skip_and_gate(scan.out, x, None if D is None else D[:, None], z), scan.state)


@dataclass(frozen=True)
class _Tokens:
    """What a token brings: dt · x [T, H, P], the log decay dt · A [T, H], B and C [T, G, N]."""

    dt_x: Array
    g: Array
    B: Array
    C: Array
    group: int
    """Heads that read one group."""


def _by_token(tokens: _Tokens, requests: Requests, state: Array) -> Scan:
    """Run the definition: each token of all requests, one after another."""
    out = np.zeros_like(tokens.dt_x)
    order = requests.longest_first()
    state = state[order]
    for live, at in requests.by_token():
        B, C = (np.repeat(part[at], tokens.group, axis=1) for part in (tokens.B, tokens.C))  # [R, H, N]
        S = state[live]  # a view, [R, H, P, N]
        S *= np.exp(tokens.g[at])[..., None, None]
        S += tokens.dt_x[at][..., :, None] * B[..., None, :]
        out[at] = (S @ C[..., None])[..., 0]
    final = np.empty_like(state)
    final[order] = state
    return Scan(out, final)


def _by_chunk(tokens: _Tokens, requests: Requests, state: Array, chunk_size: int) -> Scan:
    """Run chunk after chunk, all heads of a chunk at once."""
    out = np.zeros_like(tokens.dt_x)
    for request, at in requests.chunks(chunk_size):
        dt_x, g = tokens.dt_x[at].transpose(1, 0, 2), tokens.g[at].T  # [H, c, P], [H, c]
        B, C = tokens.B[at].transpose(1, 0, 2), tokens.C[at].transpose(1, 0, 2)  # [G, c, N]
        y, state[request] = _chunk(dt_x, g, B, C, tokens.group, state[request])
        out[at] = y.transpose(1, 0, 2)
    return Scan(out, state)


def _chunk(dt_x: Array, g: Array, B: Array, C: Array, group: int, S: Array) -> tuple[Array, Array]:
    """Return the outputs of one chunk and the state after it.

    Shapes: dt_x [H, c, P], g [H, c], B and C [G, c, N], S [H, P, N].
    """
    decay = np.exp(segment_sums(g[..., None]))[..., 0]  # [H, c, c], zero above the diagonal
    from_start, to_end = np.exp(sums_from_start(g[..., None])), decay[:, -1, :, None]  # [H, c, 1]
    scores = np.repeat(C @ B.transpose(0, 2, 1), group, axis=0)  # [H, c, c]
    B, C = np.repeat(B, group, axis=0), np.repeat(C, group, axis=0)  # [H, c, N]
    y = (scores * decay) @ dt_x + (C * from_start) @ S.transpose(0, 2, 1)
    return y, S * from_start[:, -1:] + (dt_x * to_end).transpose(0, 2, 1) @ B


def _heads_per_group(num_heads: int, num_groups: int) -> int:
    if num_groups == 0 or num_heads == 0 or num_heads % num_groups:
        raise ShapeError(
            f"x has {num_heads} heads and B has {num_groups} groups, expected a multiple "
            "(KV-RNN-019 ssd-groups)"
        )
    return num_heads // num_groups
