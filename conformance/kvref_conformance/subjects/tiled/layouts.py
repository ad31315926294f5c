"""A cache from one order of axes to another, bit for bit."""

from collections.abc import Callable

import numpy as np

from kvref.arrays import Array

#: Layout -> how it becomes [block, offset, head, channel], or [kv, block, offset, head, channel] for a pair.
_PLAIN: dict[str, Callable[[Array], Array]] = {
    "nhd": lambda c: c,
    "hnd": lambda c: c.transpose(0, 2, 1, 3),
    "x_split": lambda c: c.transpose(0, 3, 1, 2, 4).reshape(c.shape[0], c.shape[3], c.shape[1], -1),
    "values_last": lambda c: c.transpose(0, 3, 1, 2),
    "record": lambda c: c[:, :, None, :],
    "kv_first": lambda c: c,
    "blocks_nhd": lambda c: c.transpose(1, 0, 2, 3, 4),
    "blocks_hnd": lambda c: c.transpose(1, 0, 3, 2, 4),
    "heads_interleaved": lambda c: np.stack([c[:, :, 0::2], c[:, :, 1::2]]),
    "kv_packed": lambda c: np.stack(np.split(c.transpose(0, 2, 1, 3), 2, axis=-1)),
}
#: Layout -> how the plain form becomes it; the second argument is x, for the one layout that has it.
_LAID: dict[str, Callable[[Array, int], Array]] = {
    "nhd": lambda p, x: p,
    "hnd": lambda p, x: p.transpose(0, 2, 1, 3),
    "x_split": lambda p, x: p.reshape(*p.shape[:3], -1, x).transpose(0, 2, 3, 1, 4),
    "values_last": lambda p, x: p.transpose(0, 2, 3, 1),
    "record": lambda p, x: p[:, :, 0],
    "kv_first": lambda p, x: p,
    "blocks_nhd": lambda p, x: p.transpose(1, 0, 2, 3, 4),
    "blocks_hnd": lambda p, x: p.transpose(1, 0, 3, 2, 4),
    "heads_interleaved": lambda p, x: np.stack(list(p), axis=3).reshape(*p.shape[1:3], -1, p.shape[4]),
    "kv_packed": lambda p, x: np.concatenate(list(p), axis=-1).transpose(0, 2, 1, 3),
}
LAYOUTS = tuple(_PLAIN)


class Layouts:
    """Named layouts, there and back."""

    def convert_layout(
        self, cache: Array, *, source: str, target: str, x: int | None = None, out: Array | None = None
    ) -> Array:
        """Rearrange a cache from one named layout to another."""
        together = max(1, 16 // cache.dtype.itemsize) if x is None else x
        result = np.ascontiguousarray(self.laid(self.plain(cache, source), target, together))
        if out is None:
            return result
        out[...] = result
        return out

    def plain(self, cache: Array, source: str) -> Array:
        """Return a cache token-major; keys and values apart where one array holds both."""
        return _PLAIN[source](cache)

    def laid(self, plain: Array, target: str, x: int) -> Array:
        """Return a token-major cache in another layout."""
        return _LAID[target](plain, x)
