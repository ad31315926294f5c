"""The bound on a delta rule that takes one token after another: what each token adds, and how it lives on.

For porters: read `spec/recurrent.md` on bounds first.
Source: derived in `spec/recurrent.md`, on bounds.
"""

import numpy as np

from kvref.arrays import Array
from kvref.recurrent.bounds.delta_block import Block, norms
from kvref.recurrent.bounds.delta_costs import Costs, relative
from kvref.roundings import Format


def by_token_error(
    block: Block, before: Array, costs: Costs, state_format: Format | None
) -> tuple[Array, Array, Array]:
    """Return the error of the outputs [H, c, V], and of the state after the block as `Block.state_error`.

    `before` [H, V] is the norm of the error before the block; `state_format` is what the state is rounded to
    at every token, None if it is not.
    """
    sizes = _Sizes(block, costs)
    in_read = relative(costs.d, costs.p, costs.key, 4 * costs.u)
    in_out = relative(costs.d, costs.p, costs.query, 4 * costs.u)
    in_write = relative(2 * costs.u, costs.p, costs.key)
    rho, spread, total = (np.empty_like(block.v) for _ in range(3))
    E, L = before, np.zeros_like(before)
    for t in range(block.length):
        beta, k = block.beta[:, t], sizes.k[:, t]  # [H, 1]
        E_decayed = sizes.decay[:, t] * E
        read = sizes.read[t] + k * E_decayed
        off_decay = sizes.read_decay[t] + k * sizes.off_decay[:, t] * E_decayed
        r = beta * (in_read * read + (1 + in_read) * off_decay + 3 * costs.u * np.abs(block.v[:, t]))
        r = r + costs.eta * sizes.many
        written = np.abs(block.u[:, t]) + r + beta * k * E_decayed
        own = sizes.stays[:, t] * (sizes.decayed_off[t] + sizes.off_decay[:, t] * E_decayed)
        own = own + in_write * k * written + costs.eta * sizes.many
        after = sizes.stays[:, t] * E_decayed + k * r + own
        new = sizes.state[t] + after
        own = own + costs.u * new
        if state_format is not None:
            flushed = state_format.underflow * sizes.channels**0.5
            own = own + state_format.roundoff * (1 + costs.u) * new + flushed
            own = np.where(sizes.peak[t] + after > state_format.largest, np.inf, own)
        E = sizes.stays[:, t] * E_decayed + k * r + own
        L = sizes.stays[:, t] * sizes.decay[:, t] * L + own
        rho[:, t], spread[:, t], total[:, t] = r, L, E
    q = norms(block.q, -1)[..., None]  # [H, c, 1]
    out = np.minimum(q * total, block.out_error(before, rho) + q * spread)
    out = out + in_out * (sizes.out + q * total) + costs.eta * sizes.many
    column, number = block.state_error(before, rho, L[:, None, :])
    column = np.minimum(column, E)
    return out, column, np.minimum(number, column[:, None, :])


class _Sizes:
    """How large the exact numbers are, for each token t: columns of states, reads of absolute values."""

    def __init__(self, block: Block, costs: Costs) -> None:
        states = block.states()  # [c + 1, H, K, V]
        np.abs(states, out=states)
        before, after = states[:-1], states[1:]
        decay = np.exp(block.g).transpose(1, 0, 2)[:, :, None, :]  # [c, H, 1, 1 or K]
        off = costs.decay_error(0, -block.g)  # [H, c, 1 or K]
        off_by_token = off.transpose(1, 0, 2)[:, :, None, :]
        keys, queries = (
            np.abs(x).transpose(1, 0, 2)[:, :, None, :] for x in (block.k, block.q)
        )  # [c, H, 1, K]
        norm = norms(states, -2)  # [c + 1, H, V]
        self.read = ((keys * decay) @ before)[:, :, 0]  # [c, H, V]
        if off.shape[-1] == 1:
            self.read_decay = off_by_token[:, :, 0] * self.read
            self.decayed_off = (off_by_token * decay)[:, :, 0] * norm[:-1]
        else:
            self.read_decay = ((keys * decay * off_by_token) @ before)[:, :, 0]
            self.decayed_off = np.sqrt((np.square(decay * off_by_token) @ np.square(before))[:, :, 0])
        overlap = (np.abs(block.q) * np.abs(block.k)).sum(axis=-1, keepdims=True)
        self.out = ((queries * decay) @ before)[:, :, 0].transpose(1, 0, 2)  # [H, c, V]
        self.out += overlap * np.abs(block.u)
        self.state = norm[1:]
        self.peak = after.max(axis=-2)
        self.decay = np.exp(block.g).max(axis=-1, keepdims=True)  # [H, c, 1]
        self.off_decay = off.max(axis=-1, keepdims=True)
        square = np.square(block.k).sum(axis=-1, keepdims=True)
        self.k = np.sqrt(square)
        self.stays = np.maximum(1.0, np.abs(1 - block.beta * square))
        self.channels = block.k.shape[-1]
        largest = 1 + max(float(x.max(initial=0.0)) for x in (states, np.abs(block.v)))
        self.many = (self.channels + 4) * largest * (1 + float(self.k.max())) * (1 + float(queries.max()))
