"""Mamba-2: one decay for each head, so that a chunk is two matrix products beside what is carried in."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.subjects.scanned.ragged import WORK, between
from kvref_conformance.subjects.scanned.steps import Extras, Steps


class StateSpaceDual(Steps):
    """State [num_heads, head_dim, state_dim]; within a chunk heads come first."""

    def ssd_scan(
        self, x: Array, dt: Array, A: Array, B: Array, C: Array, **options: Any
    ) -> tuple[Array, Array]:
        """Scan every request."""
        return self.mamba_scan(self.ssd_rows, x, dt, A, B, C, **options)

    def ssd_update(
        self, x: Array, dt: Array, A: Array, B: Array, C: Array, state: Array, **options: Any
    ) -> Array:
        """Advance one token of each request."""
        return self.mamba_update(self.ssd_rows, x, dt, A, B, C, state, **options)

    def ssd_rows(
        self,
        x: Array,
        size: Array,
        A: Array,
        B: Array,
        C: Array,
        state: Array,
        extras: Extras,
        rows: slice,
    ) -> tuple[Array, Array]:
        """Scan consecutive tokens of one request."""
        own = self.group_of_heads(x.shape[1], B.shape[1])
        B, C = (side.astype(WORK)[:, own].transpose(1, 0, 2) for side in (B, C))  # [H, n, N]
        inputs = (size[:, :, None] * x).transpose(1, 0, 2)  # [H, n, P]
        decay = self.log_decay(size, A.astype(WORK)).T  # [H, n]
        total, apart = self.cumulative(decay), self.apart_by_head(decay)
        y = self.read_carried(state, C, total) + self.read_chunk(inputs, B, C, apart)
        state = self.ssd_state(state, inputs, B, total, apart)
        factor = None if extras.D is None else extras.D[:, None]
        gate = None if extras.z is None else extras.z[rows]
        return self.finished(y.transpose(1, 0, 2), x, factor, gate), state

    def group_of_heads(self, num_heads: int, num_groups: int) -> Array:
        """Return which group's B and C each head reads."""
        return np.arange(num_heads) // (num_heads // num_groups)

    def log_decay(self, size: Array, A: Array) -> Array:
        """Return the log decay of each token and head."""
        return np.asarray(size * A)

    def cumulative(self, decay: Array) -> Array:
        """Return the log decay from the chunk's beginning to each token, that token's own included."""
        return np.asarray(np.cumsum(decay, axis=1, dtype=decay.dtype))

    def apart_by_head(self, decay: Array) -> Array:
        """Return the decay between two tokens, `[num_heads, n, n]`: 0 where the second is later."""
        return between(decay[..., None])[..., 0]

    def read_carried(self, state: Array, C: Array, total: Array) -> Array:
        """Read what the state before the chunk gives each token."""
        return np.asarray(np.exp(total)[..., None] * (C @ state.transpose(0, 2, 1)))

    def read_chunk(self, inputs: Array, B: Array, C: Array, apart: Array) -> Array:
        """Read what tokens of the chunk give each other."""
        return np.asarray(((C @ B.transpose(0, 2, 1)) * apart) @ inputs)

    def ssd_state(self, state: Array, inputs: Array, B: Array, total: Array, apart: Array) -> Array:
        """Return the state after the chunk: what is left of the one before, and of each token."""
        carried = np.exp(total[:, -1])[:, None, None] * state
        return np.asarray(carried + (inputs * apart[:, -1, :, None]).transpose(0, 2, 1) @ B)
