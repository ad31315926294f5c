"""The short convolution: every output sees its own input and the few before it, channel by channel."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.subjects.scanned.ragged import WORK, Ragged, silu


class Conv(Ragged):
    """A window of inputs slides along each request; its older part is the state."""

    def causal_conv(
        self,
        x: Array,
        weight: Array,
        *,
        query_start_loc: Array,
        initial_state: Array,
        has_initial_state: Array | None = None,
        bias: Array | None = None,
        activation: str | None = None,
    ) -> tuple[Array, Array]:
        """Convolve every request; the state is the last inputs, `[num_channels, conv_width - 1]`."""

        def advance(rows: slice, state: Array) -> tuple[Array, Array]:
            return self.conv_rows(x[rows].astype(WORK), weight.astype(WORK), state, bias, activation)

        return self.scanned(np.empty_like(x), query_start_loc, initial_state, has_initial_state, advance)

    def causal_conv_update(
        self,
        x: Array,
        weight: Array,
        state: Array,
        *,
        state_indices: Array,
        bias: Array | None = None,
        activation: str | None = None,
    ) -> Array:
        """Convolve one token of each request, and shift its window by one."""

        def advance(rows: slice, own: Array) -> tuple[Array, Array]:
            return self.conv_step(x[rows].astype(WORK), weight.astype(WORK), own, bias, activation)

        return self.updated(np.empty_like(x), state, state_indices, advance)

    def conv_step(
        self, x: Array, weight: Array, state: Array, bias: Array | None, activation: str | None
    ) -> tuple[Array, Array]:
        """Convolve one token, `[1, num_channels]`."""
        return self.conv_rows(x, weight, state, bias, activation)

    def conv_rows(
        self, x: Array, weight: Array, state: Array, bias: Array | None, activation: str | None
    ) -> tuple[Array, Array]:
        """Convolve consecutive tokens of one request."""
        window = self.window(state, x)
        y = self.with_bias(self.taps(window, weight, len(x)), bias)
        return self.activated(y, activation), self.kept_inputs(window, x, weight.shape[1])

    def window(self, state: Array, x: Array) -> Array:
        """Return the kept inputs, oldest first, with the new ones behind them."""
        return np.concatenate([state.T, x])

    def taps(self, window: Array, weight: Array, count: int) -> Array:
        """Return the weighted sum of each output's inputs: the newest has the last weight."""
        width = weight.shape[1]
        shifted = [window[j : j + count] * weight[:, self.weight_of(j, width)] for j in range(width)]
        return np.asarray(sum(shifted), WORK)

    def weight_of(self, j: int, width: int) -> int:
        """Return which weight the j-th oldest input has."""
        return j

    def with_bias(self, y: Array, bias: Array | None) -> Array:
        """Add the bias, if there is one."""
        return y if bias is None else np.asarray(y + bias.astype(WORK))

    def activated(self, y: Array, activation: str | None) -> Array:
        """Apply the activation, if there is one."""
        return silu(y) if activation == "silu" else y

    def kept_inputs(self, window: Array, x: Array, width: int) -> Array:
        """Return the next state: the last `width - 1` inputs, however few of them are new."""
        return window[len(window) - (width - 1) :].T
