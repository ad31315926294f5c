"""Decay gates: the logarithm of a decay, never positive."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.subjects.scanned.ragged import WORK, softplus


class Gates:
    """One gate for each head, or for each channel of each head."""

    def decay_gate(
        self, a: Array, A_log: Array, dt_bias: Array, *, lower_bound: float | None = None
    ) -> Array:
        """Return the log decay, `[num_tokens, num_heads]` or with the channels behind, in float32."""
        with np.errstate(all="ignore"):
            rate = self.rate(A_log.astype(WORK), a.ndim)
            pre = self.pre_gate(a, dt_bias)
            g = (
                self.free_gate(rate, pre)
                if lower_bound is None
                else self.bounded_gate(rate, pre, lower_bound)
            )
        return np.asarray(g, np.float32)

    def rate(self, A_log: Array, ndim: int) -> Array:
        """Return the rate of each head, with an axis behind it where the gate has channels."""
        rate = np.exp(A_log)
        return rate if ndim == 2 else rate[:, None]

    def pre_gate(self, a: Array, dt_bias: Array) -> Array:
        """Add the bias."""
        return np.asarray(a.astype(WORK) + dt_bias.astype(WORK))

    def free_gate(self, rate: Array, pre: Array) -> Array:
        """Return a log decay without a lower bound."""
        return np.asarray(-rate * softplus(pre))

    def bounded_gate(self, rate: Array, pre: Array, lower_bound: float) -> Array:
        """Return a log decay between a lower bound and 0."""
        return np.asarray(WORK(lower_bound) / (1 + np.exp(-rate * pre)))
