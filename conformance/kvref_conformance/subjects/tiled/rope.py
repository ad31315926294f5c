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
        out: Array | None = None,
    ) -> Array:
        """Rotate each token's vectors by its position: x [num_tokens, num_heads, head_dim]."""
        result = np.empty(x.shape, x.dtype) if out is None else out
        result[...] = x
        width = self.rotated_width(x.shape[2], rotary_dim)
        if width == 0:
            return result
        first, second = (x[..., at].astype(np.float64) for at in self.pairs(x.shape[2], width, style))
        angle = self.token_positions(positions)[:, None, None] * self.frequencies(base, width)  # [T, 1, R/2]
        cos, sin = self.cos_sin(angle)
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

    def token_positions(self, positions: Array) -> Array:
        """Return the position that each token is rotated by."""
        return np.asarray(positions).astype(np.float64)

    def cos_sin(self, angle: Array) -> tuple[Any, Any]:
        """Return cosine and sine of the angles."""
        return np.cos(angle), np.sin(angle)
