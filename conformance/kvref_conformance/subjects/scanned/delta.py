"""The gated delta rule: a memory that reads what a key holds, and writes the difference.

Within a chunk the writes depend on each other; they are found at once, by solving a triangular system. The
decay is a number for each head, or one for each channel of the keys: then it stands inside every product.
"""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.subjects.scanned.ragged import WORK, Ragged, below, between


class Delta(Ragged):
    """State [num_v_heads, head_k_dim, head_v_dim]; in a chunk heads come first, decay is [H, n, 1 or K]."""

    def gated_delta_rule(
        self,
        q: Array,
        k: Array,
        v: Array,
        g: Array,
        beta: Array,
        *,
        query_start_loc: Array,
        initial_state: Array,
        has_initial_state: Array | None = None,
        scale: float | None = None,
        qk_l2norm: bool = False,
    ) -> tuple[Array, Array]:
        """Scan every request, one decay for each head."""

        def advance(rows: slice, state: Array) -> tuple[Array, Array]:
            parts = self.prepared(q[rows], k[rows], v[rows], g[rows], beta[rows], scale, qk_l2norm)
            turn = self.delta_step if self.stepwise else self.delta_chunk
            y, state = turn(*parts, self.oriented(state))
            return y.transpose(1, 0, 2), self.oriented(state)

        return self.scanned(np.empty_like(v), query_start_loc, initial_state, has_initial_state, advance)

    def kimi_delta_attention(
        self, q: Array, k: Array, v: Array, g: Array, beta: Array, **options: Any
    ) -> tuple[Array, Array]:
        """Scan every request, one decay for each channel of the keys."""
        return self.gated_delta_rule(q, k, v, self.channel_decay(g), beta, **options)

    def gated_delta_rule_update(
        self,
        q: Array,
        k: Array,
        v: Array,
        g: Array,
        beta: Array,
        state: Array,
        *,
        state_indices: Array,
        scale: float | None = None,
        qk_l2norm: bool = False,
    ) -> Array:
        """Advance one token of each request, one decay for each head."""

        def advance(rows: slice, own: Array) -> tuple[Array, Array]:
            parts = self.prepared(q[rows], k[rows], v[rows], g[rows], beta[rows], scale, qk_l2norm)
            y, own = self.delta_step(*parts, self.oriented(own))
            return y.transpose(1, 0, 2), self.oriented(own)

        return self.updated(np.empty_like(v), state, state_indices, advance)

    def kimi_delta_attention_update(
        self, q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, **options: Any
    ) -> Array:
        """Advance one token of each request, one decay for each channel."""
        return self.gated_delta_rule_update(q, k, v, self.channel_decay(g), beta, state, **options)

    def channel_decay(self, g: Array) -> Array:
        """Return a decay for each channel as it is used, `[num_tokens, num_heads, head_k_dim]`."""
        return g

    def oriented(self, state: Array) -> Array:
        """Return a state keys first, or back as memory has it."""
        return state.swapaxes(1, 2) if self.value_first() else state

    def value_first(self) -> bool:
        """Say whether memory holds states values first."""
        return False

    def prepared(
        self, q: Array, k: Array, v: Array, g: Array, beta: Array, scale: float | None, qk_l2norm: bool
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Return q, k, v, g, beta of some tokens in the working format, one of each for every value head."""
        q, k, v, g, beta = (x.astype(WORK) for x in (q, k, v, g, beta))
        if qk_l2norm:
            q, k = self.unit_length(q), self.unit_length(k)
        own = self.key_heads(v.shape[1], k.shape[1])
        q, k = (self.scaled(q, scale)[:, own], k[:, own])
        decay = g if g.ndim == 3 else g[..., None]
        q, k, v, decay, beta = (x.swapaxes(0, 1) for x in (q, k, v, decay, beta))
        return q, k, v, decay, beta

    def unit_length(self, x: Array) -> Array:
        """Divide each vector by its length."""
        return np.asarray(x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + WORK(1e-6)))

    def scaled(self, q: Array, scale: float | None) -> Array:
        """Multiply queries by the scale."""
        return np.asarray(q * WORK(q.shape[-1] ** -0.5 if scale is None else scale))

    def key_heads(self, num_v_heads: int, num_k_heads: int) -> Array:
        """Return which key head each value head reads."""
        return np.arange(num_v_heads) // (num_v_heads // num_k_heads)

    def delta_step(
        self, q: Array, k: Array, v: Array, decay: Array, beta: Array, state: Array
    ) -> tuple[Array, Array]:
        """Take one token, `[num_heads, 1, …]`: decay, read what the key holds, write the difference, read."""
        state = self.decayed(state, decay[:, 0])
        new = beta[..., None] * (v - self.read(k, state))
        state = self.written(state, k, new)
        return self.read(q, state), state

    def delta_chunk(
        self, q: Array, k: Array, v: Array, decay: Array, beta: Array, state: Array
    ) -> tuple[Array, Array]:
        """Take the tokens of a chunk at once."""
        total = self.running(decay)  # [H, n, 1 or K]
        apart = self.apart(decay)
        shared = self.overlaps(k, k, apart) * below(k.shape[1], diagonal=False)
        held = self.read(k * np.exp(total), state)
        new = self.solved(beta[..., None] * shared, beta[..., None] * (v - held))
        seen = self.overlaps(q, k, apart) * below(k.shape[1], diagonal=True)
        y = self.read(q * np.exp(total), state) + seen @ new
        return y, self.written(self.decayed(state, total[:, -1]), k * apart[:, -1], new)

    def running(self, decay: Array) -> Array:
        """Return the log decay from the chunk's beginning to each token, that token's own included."""
        return np.asarray(np.cumsum(decay, axis=1, dtype=decay.dtype))

    def apart(self, decay: Array) -> Array:
        """Return the decay between two tokens, `[num_heads, n, n, 1 or K]`: 0 where the second is later."""
        return between(decay)

    def overlaps(self, left: Array, right: Array, apart: Array) -> Array:
        """Return the products of vectors under the decay between them, `[num_heads, n, n]`."""
        if apart.shape[-1] == 1:
            return np.asarray((left @ right.swapaxes(1, 2)) * apart[..., 0])
        return np.asarray(np.einsum("hid,hjd,hijd->hij", left, right, apart))

    def solved(self, lower: Array, right: Array) -> Array:
        """Solve (I + lower) X = right from the first token on."""
        found = right.copy()
        for i in range(1, found.shape[1]):
            found[:, i] -= (lower[:, i : i + 1, :i] @ found[:, :i])[:, 0]
        return found

    def decayed(self, state: Array, decay: Array) -> Array:
        """Return a state after a log decay, `[num_heads, 1 or head_k_dim]`."""
        return np.asarray(np.exp(decay)[..., None] * state)

    def read(self, keys: Array, state: Array) -> Array:
        """Return what some keys read, `[num_heads, n, head_v_dim]`."""
        return np.asarray(keys @ state)

    def written(self, state: Array, k: Array, new: Array) -> Array:
        """Return a state with new values added under their keys."""
        return np.asarray(state + k.swapaxes(1, 2) @ new)
