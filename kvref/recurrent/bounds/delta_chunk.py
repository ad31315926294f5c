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
    place = np.arange(c)
    terms = costs.sum(place[:, None] + 2)  # sums over the tokens before, [c, 1]
    between = place[:, None] - place
    off_start = costs.decay_error(_roundings(place + 1, c)[:, None], -block.G)  # [H, c, 1 or K]
    E, S = before[:, None, :], np.abs(block.S)

    # A, and what the computed one is off by
    (key_products, query_products), (off_keys, off_queries) = _decayed(
        np.stack([keys, queries]), block, costs
    )
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
    off_reads = (keys * from_start * off_start) @ S + off_start.max(axis=-1, keepdims=True) * E_key
    in_T = relative(costs.sum(np.maximum(between, 0) + 1), 2 * p)
    off = T_most @ ((in_T * (A @ T_most)) @ b) + relative(u, p) * (T_most @ b)
    in_products = relative(terms, costs.d, 6 * u, 4 * p, costs.key)
    off = off + in_products * (T_most @ b_most) + (1 + in_products) * (T_most @ (block.beta * off_reads))
    exact = np.abs(block.u) + norms(block.W, -1)[..., None] * E
    rho = grows @ (dA @ exact)
    written = exact + T @ rho + off
    tiny = costs.eta * (block.k.shape[-1] + c + 4) * _largest(block, written, E)
    rho, off = rho + tiny, off + tiny

    # what is read
    in_out = relative(terms, costs.d, 5 * u, 4 * p, costs.key, costs.query)
    E_query = norms(block.q * from_start, -1)[..., None] * E
    whole = (queries * from_start) @ S + E_query + query_products @ written
    off_whole = (queries * from_start * off_start) @ S + off_start.max(axis=-1, keepdims=True) * E_query
    out = block.out_error(before, rho, off) + in_out * whole
    out = out + (1 + in_out) * (off_whole + off_queries @ written) + tiny

    # what is kept
    to_end = np.swapaxes(keys * np.exp(block.to_end), -1, -2)
    size = -block.G[:, -1:] if costs.running_sums else -block.to_end
    off_end = costs.decay_error(_roundings(c - 1 - place, c)[:, None], size)
    off_to_end = np.swapaxes(keys * np.exp(block.to_end) * off_end, -1, -2)
    in_state = relative(costs.sum(c + 1), 4 * u, 2 * p, costs.key)
    kept = from_start[:, -1, :, None] * (S + E)
    own = in_state * (kept + to_end @ written)
    own = own + (1 + in_state) * (off_start[:, -1, :, None] * kept + off_to_end @ written) + tiny
    column, number = block.state_error(before, rho, own, off)
    return out, column, np.minimum(number, column[:, None, :])


def _roundings(terms: Array, c: int) -> Array:
    """Return the roundings of a difference of running sums: one for each term between, or two trees'."""
    tree = 2 * int(np.ceil(np.log2(c))) if c > 1 else 0
    return np.maximum(terms, tree)


def _decayed(x: Array, block: Block, costs: Costs) -> tuple[Array, Array]:
    """Return Σ |x||k| exp(G_i − G_j) for j ≤ i, and what decays in it may be off by; both [n, H, c, c].

    e^θ − 1 ≤ θ e^θ, and θ is linear in the sizes of the sums.
    """
    k, G, c = np.abs(block.k), -block.G, block.length
    place = np.arange(c)
    roundings = 2 + _roundings(np.maximum(place[:, None] - place, 0), c)
    whole, sums = np.split(block.products(np.concatenate([x, x * G]), k, block.g), 2)
    if not costs.running_sums:
        sums = np.maximum(sums - block.products(x, k * G, block.g), 0.0)
    in_sums = gamma(roundings, costs.u)
    most = np.exp(in_sums.max() * G.max())
    flat = costs.decay_error(0, np.zeros(1))
    wrong = (1 + flat) * most * in_sums * sums + flat * whole
    return whole, np.tril(wrong, -1)  # exp(0) is exact


def _largest(block: Block, written: Array, before: Array) -> float:
    """Return the size of the largest numbers that anything tiny may be multiplied with."""
    values = float(max(np.abs(block.S).max(initial=0.0), np.abs(block.v).max(initial=0.0)))
    values = 1 + values + float(written.max(initial=0.0)) + float(before.max(initial=0.0))
    keys = 1 + float(norms(block.k, -1).max(initial=0.0)), 1 + float(norms(block.q, -1).max(initial=0.0))
    return values * keys[0] ** 2 * keys[1] * (1 + float(np.abs(block.T).sum(-1).max(initial=0.0)))
