"""The bound on a delta rule that takes a chunk of tokens at once: one triangular system, and what it costs.

For porters: read `spec/recurrent.md` on bounds first.
Source: derived in `spec/recurrent.md`, on bounds; Higham 2002, chapters 8 and 14, on triangular systems.
"""

import numpy as np

from kvref.arrays import Array
from kvref.recurrent.bounds.delta_block import Block, norms
from kvref.recurrent.bounds.delta_costs import Costs, relative
from kvref.recurrent.chunks import solve_unit_lower
from kvref.roundings import gamma


def by_chunk_error(block: Block, before: Array, costs: Costs) -> tuple[Array, Array, Array]:
    """Return the error of the outputs [H, c, V], and of the state after the block as `Block.state_error`.

    `before` [H, V] is the norm of the error before the block.
    """
    c, u, p = block.length, costs.u, costs.p
    keys, queries, from_start = np.abs(block.k), np.abs(block.q), np.exp(block.G)
    sums = float(gamma(c + 1, u))
    exponent = _roundings(c)
    off_start = costs.decay_error(exponent, -block.G)  # [H, c, 1 or K]
    E, S = before[:, None, :], np.abs(block.S)

    # A, and what the computed one is off by
    key_products, off_keys = _decayed(keys, block, off_start, exponent, costs)
    in_A = relative(costs.d, 2 * costs.key, 2 * p, 3 * u)
    dA = np.tril(block.beta * (in_A * key_products + (1 + in_A) * off_keys), -1)
    A, T = np.abs(block.A) + dA, np.abs(block.T)
    grows = solve_unit_lower(-(dA @ T), np.broadcast_to(np.eye(c), A.shape))  # (I − dA |T|)^−1
    T_most = T @ grows

    # u = T b with the computed T, and its products
    E_key = norms(block.k * from_start, -1)[..., None] * E  # what an error before does to a read, [H, c, V]
    b = np.abs(block.u + block.A @ block.u) + block.beta * E_key
    reads = (keys * from_start) @ S + E_key
    b_most = block.beta * (np.abs(block.v) + reads)
    off_reads = (keys * from_start * off_start) @ S + norms(block.k * from_start * off_start, -1)[
        ..., None
    ] * E
    in_T = relative(gamma(c, u), 2 * p)
    off = in_T * (T_most @ (A @ (T_most @ b))) + relative(u, p) * (T_most @ b)
    in_products = relative(sums, costs.d, 6 * u, 4 * p, costs.key)
    off = off + in_products * (T_most @ b_most) + (1 + in_products) * (T_most @ (block.beta * off_reads))
    exact = np.abs(block.u) + norms(block.W, -1)[..., None] * E
    rho = grows @ (dA @ exact) + off + A @ off
    written = exact + T @ rho
    tiny = costs.eta * (block.k.shape[-1] + c + 4) * _largest(block, written, E)
    rho = rho + tiny

    # what is read, and what is kept
    query_products, off_queries = _decayed(queries, block, off_start, exponent, costs)
    in_out = relative(sums, costs.d, 5 * u, 4 * p, costs.key, costs.query)
    E_query = norms(block.q * from_start, -1)[..., None] * E
    whole = (queries * from_start) @ S + E_query + query_products @ written
    off_whole = (queries * from_start * off_start) @ S + off_start.max(-1, keepdims=True) * E_query
    out = block.out_error(before, rho) + in_out * whole
    out = out + (1 + in_out) * (off_whole + off_queries @ written) + tiny

    k_end = keys * np.exp(block.to_end)
    size = -block.G[:, -1:] if costs.running_sums else -block.to_end
    off_end, last = costs.decay_error(exponent, size), off_start[:, -1, :, None]
    in_state = relative(sums, 4 * u, 2 * p, costs.key)
    end = from_start[:, -1, :, None]
    kept = end * (S + E)
    own = in_state * (kept + np.swapaxes(k_end, -1, -2) @ written)
    own = own + (1 + in_state) * (last * kept + np.swapaxes(k_end * off_end, -1, -2) @ written) + tiny
    column, number = block.state_error(before, rho, own)
    return out, column, np.minimum(number, column[:, None, :])


def _roundings(c: int) -> Array:
    """Return the roundings of a difference of running sums at each token: one after another, or in a tree."""
    tree = 2 * int(np.ceil(np.log2(c))) if c > 1 else 0
    result: Array = np.maximum(np.arange(1, c + 1), tree)[:, None].astype(np.float64)
    return result


def _decayed(x: Array, block: Block, off: Array, exponent: Array, costs: Costs) -> tuple[Array, Array]:
    """Return Σ |x||k| exp(G_i − G_j) for j ≤ i, and what decays in it may be off by; both [H, c, c]."""
    k = np.abs(block.k)
    whole = block.products(x, k, block.g)
    if costs.running_sums:
        wrong = block.products(x * off, k, block.g)
    else:  # e^θ − 1 ≤ θ e^θ, and θ is linear in the sum of the segment
        G = -block.G
        spans = block.products(x * G, k, block.g) - block.products(x, k * G, block.g)
        flat = costs.decay_error(exponent, np.zeros_like(G)).max()
        slope = costs.u * (exponent + 2) * np.exp(costs.u * (exponent + 2) * 128)
        wrong = (1 + flat) * slope * np.maximum(spans, 0.0) + flat * whole
    return whole, np.tril(wrong, -1)  # exp(0) is exact


def _largest(block: Block, written: Array, before: Array) -> float:
    """Return the size of the largest numbers that anything tiny may be multiplied with."""
    values = float(max(np.abs(block.S).max(initial=0.0), np.abs(block.v).max(initial=0.0)))
    values = 1 + values + float(written.max(initial=0.0)) + float(before.max(initial=0.0))
    keys = 1 + float(norms(block.k, -1).max(initial=0.0)), 1 + float(norms(block.q, -1).max(initial=0.0))
    return values * keys[0] ** 2 * keys[1] * (1 + float(np.abs(block.T).sum(-1).max(initial=0.0)))
