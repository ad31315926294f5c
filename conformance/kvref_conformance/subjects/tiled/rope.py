"""Rotary embedding, one decision a method."""

from typing import Any

import numpy as np

from kvref.arrays import Array


class Rope:
    """Angles and rotation in float64, rounded once to the dtype of x."""

    def apply_rope(
        self,
        x: Array,
        *,
        positions: Array,
        base: float,
        rotary_dim: int,
        style: str,
        magnitude: float = 1.0,
        out: Array | None = None,
        **yarn: Any,
    ) -> Array:
        """Rotate each token's vectors by its position: x [num_tokens, num_heads, head_dim]."""
        result = np.empty(x.shape, x.dtype) if out is None else out
        result[...] = x
        width = self.rotated_width(x.shape[2], rotary_dim)
        if width == 0:
            return result
        first, second = (x[..., at].astype(np.float64) for at in self.pairs(x.shape[2], width, style))
        theta = self.frequencies(base, width)  # [R/2]
        theta = self.stretched(theta, base, width, **yarn) if yarn else theta
        cos, sin = self.cos_sin(self.token_positions(positions)[:, None, None] * theta, magnitude)
        turned = first * cos - second * sin, first * sin + second * cos
        for at, values in zip(self.pairs(x.shape[2], width, style), turned, strict=True):
            result[..., at] = values.astype(x.dtype)
        return result

    def rotated_width(self, head_dim: int, rotary_dim: int) -> int:
        """Return how many channels turn."""
        return rotary_dim

    def pairs(self, head_dim: int, rotary_dim: int, style: str) -> tuple[Array, Array]:
        """Return the channels of each pair, two arrays `[rotary_dim / 2]`."""
        half = np.arange(rotary_dim // 2)
        return (half, half + rotary_dim // 2) if style == "half" else (2 * half, 2 * half + 1)

    def frequencies(self, base: float, rotary_dim: int) -> Array:
        """Return the angle per position of each pair, in radians."""
        return np.asarray(float(base) ** (-2.0 * np.arange(rotary_dim // 2) / rotary_dim))

    def stretched(
        self,
        theta: Array,
        base: float,
        width: int,
        *,
        factor: float,
        original_context: int,
        beta_fast: float,
        beta_slow: float,
    ) -> Array:
        """Return YaRN's frequencies: divided by the factor as far as the ramp says."""
        low, high = (
            width * np.log(original_context / (2 * np.pi * turns)) / (2 * np.log(base))
            for turns in (beta_fast, beta_slow)
        )
        start, stop = max(np.floor(low), 0.0), min(np.ceil(high), width - 1.0)
        ramp = np.clip((np.arange(len(theta)) - start) / max(stop - start, 0.001), 0, 1)
        return self.interpolated(theta, ramp, factor)

    def interpolated(self, theta: Array, ramp: Array, factor: float) -> Array:
        """Return frequencies between the plain ones, ramp 0, and the divided ones, ramp 1."""
        return np.asarray(theta * (1 - ramp) + theta / factor * ramp)

    def token_positions(self, positions: Array) -> Array:
        """Return the position that each token is rotated by."""
        return np.asarray(positions).astype(np.float64)

    def cos_sin(self, angle: Array, magnitude: float) -> tuple[Any, Any]:
        """Return cosine and sine of the angles, times the magnitude."""
        return magnitude * np.cos(angle), magnitude * np.sin(angle)
