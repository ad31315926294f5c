"""Gates: how much of a state stays, how much of a token is written, how much of an output leaves.

A decay is kept as its logarithm, g ≤ 0, and only ever enters as exp(g). That is what keeps a product of
thousands of decays finite: it is a sum of logarithms, exponentiated once.

Realises: KV-RNN-014 decay-gate, KV-RNN-016 bounded-gate, KV-RNN-018 mamba-skip-and-gate, KV-RNN-020
dt-transform, KV-RNN-029 qk-l2norm.
For porters: softplus as log(1 + exp(x)) overflows at 89 in float32; the form here does not.
Source: Mamba (Gu and Dao 2023, section 3.5) for dt; Gated DeltaNet (Yang et al. 2024) and Kimi Linear 2025
for g.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, check_scalar, widen
from kvref.errors import ArgumentError, ShapeError, shown
from kvref.recurrent.scan import check_range, take

#: What stands beside the sum of squares under the root in `l2norm`.
L2NORM_EPS = 1e-6


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(−x)), for any x."""
    small = np.exp(-np.abs(x))  # never exp of a positive number
    result: Array = np.where(x >= 0, 1, small) / (1 + small)
    return result


def silu(x: Array) -> Array:
    """Return x · sigmoid(x)."""
    result: Array = x * sigmoid(x)
    return result


def softplus(x: Array) -> Array:
    """Return log(1 + exp(x)), for any x."""
    result: Array = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    return result


def l2norm(x: Array, eps: float = L2NORM_EPS) -> Array:
    """Divide each vector (the last axis) by √(Σ x² + eps) (KV-RNN-029 qk-l2norm).

    A vector of zeros stays zero; one much shorter than √eps stays short.
    """
    result: Array = x / np.sqrt(np.square(x).sum(axis=-1, keepdims=True) + x.dtype.type(eps))
    return result


def decay_gate(
    a: ArrayLike,
    A_log: ArrayLike,
    dt_bias: ArrayLike,
    *,
    lower_bound: float | None = None,
    dtype: Any = np.float64,
) -> Array:
    """Return the log decay g ≤ 0 of a delta rule, from what a layer projects and what it has learnt.

    Shapes: a [num_tokens, num_heads], or with a decay for each channel [num_tokens, num_heads, head_k_dim];
    A_log [num_heads]; dt_bias [num_heads] or [num_heads, head_k_dim], as a. Result as a, in nats a token.
    Without `lower_bound` g = −exp(A_log) · softplus(a + dt_bias) (KV-RNN-014 decay-gate); with it
    g = lower_bound · sigmoid(exp(A_log) · (a + dt_bias)), which stays above it (KV-RNN-016 bounded-gate).
    Raises: ShapeError, DTypeError, ArgumentError.
    Source: Qwen3-Next and Kimi Linear for the first form, Kimi K3 and GLM-5.3-Flash for the second.
    """
    a = widen("a", a, dtype)
    if a.ndim not in (2, 3):
        raise ShapeError(
            f"a has shape {list(a.shape)}, expected [num_tokens, num_heads] or "
            "[num_tokens, num_heads, head_k_dim] (KV-RNN-014 decay-gate)"
        )
    a = take("a", a, a.shape, dtype)
    rate = take("A_log", A_log, [a.shape[1]], dtype)
    bias = take("dt_bias", dt_bias, a.shape[1:], dtype)
    with np.errstate(over="ignore"):
        rate = np.exp(rate).reshape(a.shape[1], *[1] * (a.ndim - 2))  # [H] or [H, 1]
        if lower_bound is None:
            g = -rate * softplus(a + bias)
        else:
            g = _bound(lower_bound, a.dtype) * sigmoid(rate * (a + bias))
    return _finite_decay(g)


def write_gate(b: ArrayLike, *, dtype: Any = np.float64) -> Array:
    """Return how much of its difference a token writes: beta = sigmoid(b), elementwise.

    Raises: DTypeError, ArgumentError if a number is not finite.
    """
    b = widen("b", b, dtype)
    return sigmoid(take("b", b, b.shape, dtype))


def step_sizes(
    dt: Array,
    dt_bias: Array | None,
    dt_softplus: bool,
    dt_limit: tuple[float, float] = (0.0, np.inf),
) -> Array:
    """Return the step sizes of a Mamba scan: the bias added, softplus, clipped, in this order.

    Shapes: dt [num_tokens, n], dt_bias [n]. Every scan and every update transforms dt here, and nowhere else.
    Raises: ArgumentError (KV-RNN-020 dt-transform) if a step is negative, or the limits are no range.
    """
    low, high = check_limits(dt_limit)
    if dt_bias is not None:
        dt = dt + dt_bias
    if dt_softplus:
        dt = softplus(dt)
    if (low, high) != (0.0, np.inf):
        dt = np.clip(dt, dt.dtype.type(low), dt.dtype.type(high))
    check_range("dt, after bias, softplus and limit,", dt, 0, np.inf, "KV-RNN-020 dt-transform")
    return dt


def check_limits(dt_limit: Any) -> tuple[float, float]:
    """Return the least and the largest step size.

    Raises: ArgumentError.
    """
    try:
        low, high = (float(limit) for limit in dt_limit)
    except (TypeError, ValueError):
        low, high = np.nan, np.nan
    if not 0 <= low <= high or low == np.inf:
        raise ArgumentError(
            f"dt_limit = {shown(dt_limit)}, expected two numbers, 0 <= least <= largest "
            "(KV-RNN-020 dt-transform)"
        )
    return low, high


def _bound(lower_bound: Any, dtype: Any) -> Any:
    bound = check_scalar("lower_bound", lower_bound)
    if bound >= 0:
        raise ArgumentError(
            f"lower_bound = {bound}, expected a negative number, the log of the strongest decay "
            "(KV-RNN-016 bounded-gate)"
        )
    return dtype.type(bound)


def _finite_decay(g: Array) -> Array:
    """Check a computed gate: where exp(A_log) overflows there is no number to return.

    Raises: ArgumentError.
    """
    if not np.isfinite(g).all():
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(g))[0])
        raise ArgumentError(
            f"A_log gives the log decay {g[at]} for head {at[1]}, expected finite numbers "
            "(KV-RNN-014 decay-gate)"
        )
    return g
