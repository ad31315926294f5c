"""Honest kernels of recurrent layers: float32 throughout, in many orders, rounding where they say they do.

Nothing here is taken from the reference: each function is written from the formulas, for one request, and
takes what varies between correct kernels as arguments. `p` rounds the operands of matrix products, `s` the
state; `order` is how a sum is added up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvref.arrays import Array

F = np.float32
ORDERS = ("serial", "reverse", "halves", "lanes")


def rounder(dtype: str) -> Callable[[Array], Array]:
    """Return what rounds float32 numbers to a narrower format and back."""
    if dtype == "float32":
        return lambda x: np.asarray(x, F)
    if dtype == "tensorfloat32":
        return _cut
    return lambda x: np.asarray(x, F).astype(dtype).astype(F)


def _cut(x: Array) -> Array:
    """Round float32 numbers to 11 significant bits, halves away from zero, as tensor cores may."""
    bits = np.ascontiguousarray(x, F).view(np.uint32)
    return ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(F)


def add_up(x: Array, order: str) -> Array:
    """Sum float32 numbers along the last axis in a given order, rounding after every addition."""
    n = x.shape[-1]
    if n == 0:
        return np.zeros(x.shape[:-1], F)
    if order == "halves":
        while x.shape[-1] > 1:
            if x.shape[-1] % 2:
                x = np.concatenate([x, np.zeros((*x.shape[:-1], 1), F)], axis=-1)
            x = x[..., ::2] + x[..., 1::2]
        return x[..., 0]
    if order == "lanes":
        padded = np.concatenate([x, np.zeros((*x.shape[:-1], -n % 8), F)], axis=-1)
        x = np.cumsum(padded.reshape(*x.shape[:-1], -1, 8), axis=-2, dtype=F)[..., -1, :]
        return add_up(x, "serial")
    if order == "reverse":
        x = x[..., ::-1]
    return np.cumsum(x, axis=-1, dtype=F)[..., -1]


def times(a: Array, b: Array, order: str) -> Array:
    """Multiply matrices [n, m] and [m, p] with sums in a given order."""
    return add_up(a[:, None, :] * b.T[None, :, :], order)


@dataclass(frozen=True)
class Way:
    """How a kernel computes: tokens at once (None: one), operands, state and how often it is rounded."""

    chunk: int | None
    order: str = "halves"
    products: str = "float32"
    state: str = "float32"
    rounded: str = "call"
    running: bool = True
    explicit: bool = True
    base2: bool = False

    def exp(self, x: Array) -> Array:
        """Exponentiate, in base 2 if the kernel does."""
        return np.exp2(np.asarray(x, F) * F(np.log2(np.e))) if self.base2 else np.exp(np.asarray(x, F))

    def between(self, g: Array) -> Array:
        """Return sums of g from after token j to token i, [c, c, ...], −inf above the diagonal."""
        c = len(g)
        G = np.cumsum(g, axis=0, dtype=F)
        if self.running:
            sums = G[:, None] - G[None]
        else:
            below = np.tri(c, k=-1, dtype=bool).reshape(c, c, *[1] * (g.ndim - 1))
            sums = np.cumsum(np.where(below, g[:, None], F(0)), axis=0, dtype=F)
        seen = np.tri(c, dtype=bool).reshape(c, c, *[1] * (g.ndim - 1))
        return np.where(seen, sums, F(-np.inf)).astype(F)


def pieces(n: int, chunk: int) -> Iterator[slice]:
    """Yield the chunks of a request of n tokens."""
    for first in range(0, n, chunk):
        yield slice(first, min(first + chunk, n))


def delta(way: Way, q: Array, k: Array, v: Array, g: Array, beta: Array, S: Array, scale: float) -> Any:
    """Run one head of one request through a delta rule: q, k [T, K], v [T, V], g [T] or [T, K], beta [T]."""
    s, outs = rounder(way.state), []
    g = g if g.ndim == 2 else g[:, None]
    size = way.chunk or 1
    for at in pieces(len(q), size):
        one = _delta_token if way.chunk is None else _delta_chunk
        out, S = one(way, q[at], k[at], v[at], g[at], beta[at], S, F(scale))
        S = s(S) if way.rounded != "call" else S
        outs.append(out)
    out = np.concatenate(outs) if outs else np.zeros_like(v)
    return out, s(S) if len(q) else S


def _delta_token(
    way: Way, q: Array, k: Array, v: Array, g: Array, beta: Array, S: Array, scale: Any
) -> tuple[Array, Array]:
    p = rounder(way.products)
    S = way.exp(g[0])[:, None] * S
    r = add_up(p(k[0])[None] * p(S).T, way.order)
    u = beta[0] * v[0] - beta[0] * r if way.explicit else beta[0] * (v[0] - r)
    S = S + p(k[0])[:, None] * p(u)[None]
    return add_up(p(q[0] * scale)[None] * p(S).T, way.order)[None], S


def _delta_chunk(
    way: Way, q: Array, k: Array, v: Array, g: Array, beta: Array, S: Array, scale: Any
) -> tuple[Array, Array]:
    p, c = rounder(way.products), len(q)
    q = p(q * scale)
    sums = way.between(g)  # [c, c, 1 or K]
    G = np.cumsum(g, axis=0, dtype=F)
    decay, start = way.exp(sums), way.exp(G)
    end = way.exp(G[-1:] - G) if way.running else decay[-1]
    kb = p(beta[:, None] * k)
    if g.shape[1] == 1:
        A = np.tril(times(kb, p(k).T, way.order) * decay[..., 0], -1)
        Q = times(q, p(k).T, way.order) * decay[..., 0]
    else:
        A = np.tril(add_up(kb[:, None] * decay * p(k)[None], way.order), -1)
        Q = add_up(q[:, None] * decay * p(k)[None], way.order)
    A, Q = p(A), p(Q)
    values, reads = beta[:, None] * v, beta[:, None] * k * start
    if way.explicit:
        T = np.eye(c, dtype=F)
        for i in range(1, c):
            T[i] -= times(A[i : i + 1, :i], T[:i], way.order)[0]
        T = p(T)
        U, W = times(T, p(values), way.order), times(T, p(reads), way.order)
        u = U - times(p(W), p(S), way.order)
    else:
        u = values - times(p(reads), p(S), way.order)
        for i in range(1, c):
            u[i] -= times(A[i : i + 1, :i], u[:i], way.order)[0]
    out = times(p(q * start), p(S), way.order) + times(Q, p(u), way.order)
    return out, start[-1][:, None] * S + times(p(k * end).T, p(u), way.order)


def ssd(way: Way, dt_x: Array, g: Array, B: Array, C: Array, S: Array) -> Any:
    """Run one head of one request through Mamba-2: dt_x [T, P], g [T], B, C [T, N], S [P, N]."""
    p, s, outs = rounder(way.products), rounder(way.state), []
    for at in pieces(len(g), way.chunk or 1):
        x, b, c = p(dt_x[at]), p(B[at]), p(C[at])
        G = np.cumsum(g[at], dtype=F)
        if way.chunk is None:
            S = way.exp(g[at][0]) * S + x[0][:, None] * b[0][None]
            S = s(S) if way.rounded == "token" else S
            out = times(c, p(S).T, way.order)
        else:
            decay = way.exp(way.between(g[at]))
            out = times(p(times(c, b.T, way.order) * decay), x, way.order)
            out = out + times(c, p(S).T, way.order) * way.exp(G)[:, None]
            end = way.exp(G[-1] - G) if way.running else decay[-1]
            S = way.exp(G[-1]) * S + times(p(x * end[:, None]).T, b, way.order)
            S = s(S) if way.rounded == "chunk" else S
        outs.append(out)
    out = np.concatenate(outs) if outs else np.zeros_like(dt_x)
    return out, s(S) if len(g) else S


def selective(way: Way, x: Array, dt: Array, A: Array, B: Array, C: Array, S: Array) -> Any:
    """Run one request through Mamba-1: x, dt [T, D], A, S [D, N], B, C [T, N]; a chunk in doubling steps."""
    s, outs = rounder(way.state), []
    for at in pieces(len(x), way.chunk or 1):
        a = way.exp(dt[at][..., None] * A)
        h = (dt[at] * x[at])[..., None] * B[at][:, None, :]
        h[0] = a[0] * S + h[0]
        step = 1
        while step < len(h):
            h[step:], a[step:] = a[step:] * h[:-step] + h[step:], a[step:] * a[:-step]
            step *= 2
        S = s(h[-1]) if way.rounded != "call" else h[-1]
        if way.rounded == "token":
            h[-1] = S
        outs.append(add_up(h * C[at][:, None, :], way.order))
    out = np.concatenate(outs) if outs else np.zeros_like(x)
    return out, s(S) if len(x) else S
