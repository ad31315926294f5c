"""A cache from one order of axes to another, bit for bit."""

import numpy as np

from kvref.arrays import Array


class Layouts:
    """Named layouts as permutations of [block, offset, head, channel]."""

    def convert_layout(
        self, cache: Array, *, source: str, target: str, x: int | None = None, out: Array | None = None
    ) -> Array:
        """Rearrange a cache from one named layout to another."""
        result = self.from_canonical(self.to_canonical(cache, source), target, x)
        if out is None:
            return np.ascontiguousarray(result)
        out[...] = result
        return out

    def to_canonical(self, cache: Array, source: str) -> Array:
        """Return a cache as [block, offset, head, channel]."""
        return cache.transpose(0, 2, 1, 3) if source == "hnd" else cache

    def from_canonical(self, cache: Array, target: str, x: int | None) -> Array:
        """Return a canonical cache in another layout."""
        return cache.transpose(0, 2, 1, 3) if target == "hnd" else cache
