"""The bound on both delta rules: Gated DeltaNet, and KDA with a decay for each channel.

Each block of tokens, as many as a chunk, is taken both ways, one token after another and all at once, and the
larger error goes on; so every mixture of the two is covered. An error in the state lives on through the exact
map of a block, and is known by its norm for each value column.

For porters: the terms are in `delta_tokens` and `delta_chunk`, the maps in `delta_block`.
Source: derived in `spec/recurrent.md`, on bounds.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import Array, as_array
from kvref.recurrent.arithmetic import ScanArithmetic, resolved_scan
from kvref.recurrent.bounds.delta_block import Block
from kvref.recurrent.bounds.delta_chunk import by_chunk_error
from kvref.recurrent.bounds.delta_costs import Costs
from kvref.recurrent.bounds.delta_tokens import by_token_error
from kvref.recurrent.bounds.elementwise import finished, with_reference
from kvref.recurrent.delta import STATE_AXES, Products, Tokens, tokens_of
from kvref.recurrent.gated_delta import decayed_products, gated_delta_rule
from kvref.recurrent.kda import channel_products, kimi_delta_attention
from kvref.recurrent.scan import Requests, Scan

#: Tokens of a block where a kernel has no chunks.
_BLOCK = 64


def delta_bound(
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
    arithmetic: ScanArithmetic,
) -> tuple[Scan, Scan]:
    """Return the exact answer of `gated_delta_rule` or `kimi_delta_attention`, and the bound around it.

    Shapes and errors: as there; g with a third axis is KDA's. "input" in `arithmetic` is the dtype of `q`.
    The bound grows with the true norms of the maps between states; where keys are longer than the write
    strength allows (beta · |k|² > 2) it grows without end, and may be infinite.
    """
    facts = resolved_scan(arithmetic, "q", q)
    channel_decay = as_array("g", g).ndim == 3
    rule: Callable[..., Scan] = kimi_delta_attention if channel_decay else gated_delta_rule
    variant: dict[str, Any] = {
        "scale": scale,
        "qk_l2norm": qk_l2norm,
        "negative_eigenvalues": negative_eigenvalues,
    }
    exact = rule(q, k, v, g, beta, query_start_loc=query_start_loc, initial_state=initial_state, **variant)
    tokens = tokens_of(q, k, v, g, beta, channel_decay=channel_decay, dtype=np.float64, **variant)
    requests = Requests.of(query_start_loc, tokens.v.shape[0])
    given = as_array("q", q), as_array("k", k)
    costs = Costs.of(facts, *given, qk_l2norm=qk_l2norm, channel_decay=channel_decay)
    states = requests.state(initial_state, tokens.state_shape, STATE_AXES, np.float64)
    products = channel_products if channel_decay else decayed_products
    out, state = np.zeros_like(exact.out), np.zeros_like(exact.state)
    with np.errstate(all="ignore"):
        for request in np.flatnonzero(requests.lens):
            at = slice(*requests.query_start_loc[request : request + 2])
            out[at], state[request] = _request(tokens, at, states[request], products, costs, facts)
        state = _handed_over(exact.state, state, requests.lens, facts)
        return exact, Scan(finished(exact.out, out, facts), state)


def _request(
    tokens: Tokens, at: slice, S: Array, products: Products, costs: Costs, facts: ScanArithmetic
) -> tuple[Array, Array]:
    """Return the errors of one request's outputs [T, H, V], and of its state [H, K, V]."""
    kept = facts.format("state")
    every_token = kept if facts.state_rounded == "token" else None
    chunked = facts.chunk_size is not None and every_token is None
    size = min(facts.chunk_size or _BLOCK, at.stop - at.start)
    outs = []
    before, number = np.zeros((S.shape[0], S.shape[2])), np.zeros_like(S)
    for first in range(at.start, at.stop, size):
        piece = slice(first, min(first + size, at.stop))
        q, k, v, g = (x[piece].transpose(1, 0, 2) for x in (tokens.q, tokens.k, tokens.v, tokens.g))
        block = Block.of(q, k, v, g, tokens.beta[piece].T[..., None], S, products)
        out, column, number = by_token_error(block, before, costs, every_token)
        if chunked:
            other = by_chunk_error(block, before, costs)
            pairs = zip((out, column, number), other, strict=True)
            out, column, number = (np.maximum(*pair) for pair in pairs)
        S = (
            np.exp(block.G[:, -1, :, None]) * S
            + np.swapaxes(block.k * np.exp(block.to_end), -1, -2) @ block.u
        )
        if facts.state_rounded == "chunk":
            rounded = kept.rounded(np.abs(S) + number)
            number, column = number + rounded, column + np.sqrt(np.square(rounded).sum(axis=-2))
        before = column
        outs.append(out.transpose(1, 0, 2))
    return np.concatenate(outs), number


def _handed_over(exact: Array, error: Array, lens: Array, facts: ScanArithmetic) -> Array:
    """Add the reference's own error, and the rounding of the state that is returned."""
    error = with_reference(error, facts)
    if facts.state_rounded == "call" and facts.state != facts.working:
        moved = (lens > 0)[:, None, None, None]
        error = np.where(moved, error + facts.format("state").rounded(np.abs(exact) + error), error)
    return np.where(np.isnan(error), np.inf, error)
