"""Where a code lies in its byte, and a scale among the others: by the address of each, gathered at once."""

import numpy as np

from kvref.arrays import Array
from kvref.errors import FormatError
from kvref_conformance.subjects.bitwise.decisions import Decisions


class Packing(Decisions):
    """Nibbles in bytes, scales in blocks."""

    def packed(self, codes: Array, size: int) -> Array:
        """Return codes of four bits along the last axis, two a byte."""
        width = codes.shape[-1]
        low, high = self.nibbles(width // 2, size)
        return (codes[..., low] & 0xF | codes[..., high] << 4).astype(np.uint8)

    def unpacked(self, data: Array, size: int) -> Array:
        """Return the codes in bytes, one a byte."""
        count = data.shape[-1]
        low, high = self.nibbles(count, size)
        codes = np.empty((*data.shape[:-1], 2 * count), np.uint8)
        codes[..., low] = data & 0xF
        codes[..., high] = data >> 4
        return codes

    def nibbles(self, count: int, size: int) -> tuple[Array, Array]:
        """Return which elements lie in the low and in the high half of each byte.

        Raises: FormatError if groups are split in two halves and have no whole number of bytes.
        """
        byte, order = np.arange(count), self.says("nibble-order")
        if order == "split":
            half = size // 2
            if half == 0 or count % half:
                raise FormatError(f"{count} bytes, expected a multiple of {half}: half a group")
            low = byte // half * size + byte % half
            return low, low + half
        low, high = 2 * byte, 2 * byte + 1
        return (low, high) if order == "low_first" else (high, low)

    def scale_places(self, tokens: int, groups: int, layout: str) -> Array:
        """Return where the scales `[tokens, groups]` of one head and block lie, counted from its start."""
        t, s = np.arange(tokens)[:, None], np.arange(groups)[None, :]
        if layout == "interleaved":
            return t // 4 * 4 * groups + 4 * s + t % 4
        if layout == "tiled_128x4":
            tile = t // 128 * -(-groups // 4) + s // 4
            return tile * 512 + t % 32 * 16 + t // 32 % 4 * 4 + s % 4
        return t * groups + s

    def tiled(self, scales: Array) -> Array:
        """Return scales `[..., groups]` in tiles of 128 rows and 4 groups; what has no scale is 0."""
        rows = scales.reshape(-1, scales.shape[-1])
        tall, wide = -(-len(rows) // 128) * 128, -(-rows.shape[1] // 4) * 4
        result = np.zeros(tall * wide, scales.dtype)
        result[self.scale_places(*rows.shape, "tiled_128x4")] = rows
        return result.reshape(tall, wide)

    def untiled(self, tiles: Array, shape: tuple[int, ...]) -> Array:
        """Return the scales of a shape that lie in tiles."""
        places = self.scale_places(int(np.prod(shape[:-1])), shape[-1], "tiled_128x4")
        return tiles.reshape(-1)[places].reshape(shape)
