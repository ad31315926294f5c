"""What Mamba makes of dt before it is used, and of an output before it leaves: the same in every form."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.subjects.scanned.ragged import WORK, Ragged, silu, softplus


@dataclass(frozen=True, kw_only=True)
class Extras:
    """The optional inputs of a Mamba scan, as they were passed."""

    D: Array | None = None
    z: Array | None = None
    dt_bias: Array | None = None
    dt_softplus: bool = False
    dt_limit: Array | None = None


#: Scans consecutive tokens of one request: x, step sizes, A, B, C, the state before, extras, their rows.
Rows = Callable[[Array, Array, Array, Array, Array, Array, Extras, slice], tuple[Array, Array]]


class Steps(Ragged):
    """Step sizes, skip and gate, and how either Mamba goes through a batch."""

    def mamba_scan(
        self,
        scan: Rows,
        x: Array,
        dt: Array,
        A: Array,
        B: Array,
        C: Array,
        *,
        query_start_loc: Array,
        initial_state: Array,
        has_initial_state: Array | None = None,
        **extras: Any,
    ) -> tuple[Array, Array]:
        """Scan every request, some consecutive tokens at a time."""
        more = Extras(**extras)

        def advance(rows: slice, state: Array) -> tuple[Array, Array]:
            size = self.step_size(dt[rows], more)
            return scan(x[rows].astype(WORK), size, A, B[rows], C[rows], state, more, rows)

        return self.scanned(np.empty_like(x), query_start_loc, initial_state, has_initial_state, advance)

    def mamba_update(
        self,
        scan: Rows,
        x: Array,
        dt: Array,
        A: Array,
        B: Array,
        C: Array,
        state: Array,
        *,
        state_indices: Array,
        **extras: Any,
    ) -> Array:
        """Advance one token of each request."""
        more = Extras(**extras)

        def advance(rows: slice, own: Array) -> tuple[Array, Array]:
            size = self.step_size_of_update(dt[rows], more)
            return scan(x[rows].astype(WORK), size, A, B[rows], C[rows], own, more, rows)

        return self.updated(np.empty_like(x), state, state_indices, advance)

    def step_size(self, dt: Array, extras: Extras) -> Array:
        """Return dt as the recurrence uses it: bias, then softplus, then the limits."""
        size = dt.astype(WORK)
        if extras.dt_bias is not None:
            size = size + extras.dt_bias.astype(WORK)
        if extras.dt_softplus:
            size = softplus(size)
        return size if extras.dt_limit is None else self.limited(size, extras.dt_limit)

    def step_size_of_update(self, dt: Array, extras: Extras) -> Array:
        """Return the same for one token."""
        return self.step_size(dt, extras)

    def limited(self, size: Array, limit: Array) -> Array:
        """Clip dt."""
        return np.clip(size, limit[0], limit[1])

    def finished(self, y: Array, x: Array, factor: Array | None, z: Array | None) -> Array:
        """Add the skipped input, then gate."""
        if factor is not None:
            y = self.with_skip(y, x, factor)
        return y if z is None else self.gated(y, z.astype(WORK))

    def with_skip(self, y: Array, x: Array, factor: Array) -> Array:
        """Add D times the input."""
        return np.asarray(y + factor.astype(WORK) * x)

    def gated(self, y: Array, z: Array) -> Array:
        """Multiply by SiLU of the gate."""
        return np.asarray(y * silu(z))
