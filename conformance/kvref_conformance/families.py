"""Families of inputs that make rounding show: where a bound is nearly reached, and where it is easily wrong.

Each family is a way for errors to add up or for a bound to be too small: logits that cancel, values that
cancel, a maximum that moves in every block, weights that are all alike, numbers near the ends of a format.

For porters: any source of hard inputs will do; these have names so that a table can be read.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvref.arrays import Array, dtype_of


@dataclass(frozen=True)
class Inputs:
    """One request, every key visible: q [num_rows, num_q_heads, head_dim], k and v [n, num_kv_heads, …]."""

    q: Array
    k: Array
    v: Array
    scale: float

    @property
    def allowed(self) -> Array:
        """Every query attends to every position."""
        return np.ones((self.q.shape[0], self.k.shape[0]), np.bool_)


Draw = Callable[[np.random.Generator, Array, Array, Array], tuple[Array, Array, Array]]


def _gauss(rng: np.random.Generator, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    return q, k, v


def _big_logits(rng: np.random.Generator, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    return 6 * q, 6 * k, v


def _ascending(rng: np.random.Generator, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """The maximum changes in every block: logits rise by one every 16 tokens."""
    q, k = np.ones_like(q), 0.01 * k
    k += np.arange(len(k))[:, None, None] / (16 * np.sqrt(q.shape[2]))
    return q, k, v


def _key_cancellation(rng: np.random.Generator, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Large products that cancel in q·k: the second half of every key is nearly minus the first."""
    half = q.shape[2] // 2
    q[..., half : 2 * half] = q[..., :half]
    k[..., half : 2 * half] = -k[..., :half] + 0.01 * k[..., half : 2 * half]
    return 4 * q, 4 * k, v


def _value_cancellation(rng: np.random.Generator, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Values of ±100 whose mean is near zero."""
    return q, k, 100.0 * np.where(np.arange(len(v)) % 2, -1.0, 1.0)[:, None, None] + v


def _constant_values(rng: np.random.Generator, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    return q, k, np.ones_like(v) * v[:1]


def _uniform_weights(rng: np.random.Generator, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Every key alike but the first, which is a little larger: the other weights share one rounding error."""
    k[:] = k[:1]
    gap = (0.3 + rng.random()) / np.sqrt(q.shape[2])
    k[0] += (gap * q[0, 0] / np.mean(q[0, 0] ** 2))[None]
    return q, k, np.abs(v)


def _tiny(rng: np.random.Generator, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    return q, k, 1e-6 * v


def _outlier(rng: np.random.Generator, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """One key and one value are large, at different positions."""
    k[rng.integers(len(k))] *= 8
    v[rng.integers(len(v))] *= 1000
    return q, k, v


def _needle(rng: np.random.Generator, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """One key scores ln n + 1 above the rest, so it holds about three quarters of the weight."""
    at, root = rng.integers(len(k)), np.sqrt(q.shape[2])
    q[:] = 1.0
    k *= 0.01
    k[at] = (np.log(len(k)) + 1) / root
    return q, k, v


def _vanishing_weights(rng: np.random.Generator, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Weights around 2^-126, some flushed to zero, on values near 1e30; the first alone weighs, on 0."""
    root = np.sqrt(q.shape[2])
    q[:] = 1.0
    k[:] = -rng.uniform(80, 100, (len(k), 1, 1)) / root
    k[0] = 0.0
    v[0], v[1:] = 0.0, 1e30 * v[1:]
    return q, k, v


#: Every family by name. Each turns standard normal q, k, v into its inputs, in float64.
FAMILIES: dict[str, Draw] = {
    "gauss": _gauss,
    "big logits": _big_logits,
    "ascending": _ascending,
    "key cancellation": _key_cancellation,
    "value cancellation": _value_cancellation,
    "constant values": _constant_values,
    "uniform weights": _uniform_weights,
    "tiny": _tiny,
    "outlier": _outlier,
    "needle": _needle,
    "vanishing weights": _vanishing_weights,
}

#: Contexts and head widths, from the smallest to one where long sums matter.
SIZES = ((1, 64), (2, 16), (7, 128), (63, 80), (300, 64), (1025, 128), (4096, 64))


def draw(
    family: str,
    *,
    n: int,
    head_dim: int,
    dtype: str,
    seed: int,
    num_rows: int = 2,
    heads: tuple[int, int] = (4, 2),
) -> Inputs:
    """Draw one request of a family, rounded to `dtype`; `heads` are (num_q_heads, num_kv_heads)."""
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(num_rows, heads[0], head_dim))
    k = rng.normal(size=(n, heads[1], head_dim))
    v = rng.normal(size=(n, heads[1], head_dim))
    q, k, v = FAMILIES[family](rng, q, k, v)
    kind = dtype_of(dtype)
    limit = 0.5 * float(np.finfo(np.float16).max) if dtype == "float16" else np.inf
    q, k, v = (np.clip(x, -limit, limit).astype(kind) for x in (q, k, v))
    return Inputs(q, k, v, 1 / np.sqrt(head_dim))
