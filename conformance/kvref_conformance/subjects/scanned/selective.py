"""Mamba-1: a state of its own for each channel, combined pairwise along the tokens of a chunk."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.subjects.scanned.ragged import WORK
from kvref_conformance.subjects.scanned.steps import Extras, Steps


class Selective(Steps):
    """State [num_channels, state_dim]; keep and add are [num_tokens, num_channels, state_dim]."""

    def selective_scan(
        self, x: Array, dt: Array, A: Array, B: Array, C: Array, **options: Any
    ) -> tuple[Array, Array]:
        """Scan every request."""
        return self.mamba_scan(self.selective_rows, x, dt, A, B, C, **options)

    def selective_state_update(
        self, x: Array, dt: Array, A: Array, B: Array, C: Array, state: Array, **options: Any
    ) -> Array:
        """Advance one token of each request."""
        return self.mamba_update(self.selective_rows, x, dt, A, B, C, state, **options)

    def selective_rows(
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
        keep = self.kept_share(size, A.astype(WORK))
        add = self.added(x, size, B.astype(WORK))
        states = self.accumulated(keep, add, state)
        y = self.selective_read(states, state, C.astype(WORK))
        gate = None if extras.z is None else extras.z[rows]
        return self.finished(y, x, extras.D, gate), self.last_state(states)

    def kept_share(self, size: Array, A: Array) -> Array:
        """Return what is left of a state after each token."""
        return np.asarray(np.exp(size[:, :, None] * A))

    def added(self, x: Array, size: Array, B: Array) -> Array:
        """Return what each token adds to a state."""
        return np.asarray((size * x)[:, :, None] * B[:, None, :])

    def accumulated(self, keep: Array, add: Array, state: Array) -> Array:
        """Return the state after each token, by doubling the reach of every token."""
        keep, states = keep.copy(), add.copy()
        states[0] += keep[0] * state
        reach = 1
        while reach < len(states):
            states[reach:] = states[reach:] + keep[reach:] * states[:-reach]
            keep[reach:] = keep[reach:] * keep[:-reach]
            reach *= 2
        return states

    def selective_read(self, states: Array, before: Array, C: Array) -> Array:
        """Read each token's own state; `before` is the one before the first token."""
        return np.asarray((states * C[:, None, :]).sum(axis=-1))

    def last_state(self, states: Array) -> Array:
        """Return the state after the last of some tokens."""
        return np.asarray(states[-1])
