"""Integers: rounded by what is left over, clamped, and stored in two's complement."""

import numpy as np

from kvref.arrays import Array
from kvref_conformance.subjects.bitwise.decisions import Decisions
from kvref_conformance.subjects.bitwise.floats import bits_of, refuse_nan

#: Element -> bits, and whether the top one is a sign.
WIDTHS = {"int8": (8, True), "int4": (4, True), "uint8": (8, False), "uint4": (4, False), "uint2": (2, False)}


class Integers(Decisions):
    """Codes of integers."""

    def write_integer(self, x: Array, element: str) -> Array:
        """Return the codes of real numbers.

        Raises: FormatError for NaN, which no integer stands for.
        """
        refuse_nan(bits_of(x) & 0x7FFFFFFF)
        lowest, highest = self.range_of(element)
        number = self.clamped(self.whole(x), lowest, highest)
        return (number & (1 << WIDTHS[element][0]) - 1).astype(np.uint8)

    def range_of(self, element: str) -> tuple[int, int]:
        """Return the lowest and the highest integer."""
        bits, signed = WIDTHS[element]
        if not signed:
            return 0, (1 << bits) - 1
        lowest = -127 if element == "int8" and self.says("int8-lowest") == "-127" else -(1 << bits - 1)
        return lowest, (1 << bits - 1) - 1

    def whole(self, x: Array) -> Array:
        """Return the nearest integers."""
        size = np.abs(np.clip(x, -(2.0**20), 2.0**20))
        below = size.astype(np.int64)
        rest = size - below.astype(size.dtype)  # exact
        up = (rest > 0.5) | ((rest == 0.5) & self.half_up(below, x < 0))
        number = below + up
        return np.asarray(np.where(x < 0, -number, number))

    def half_up(self, below: Array, negative: Array) -> Array:
        """Say where a half is rounded away from zero."""
        ties = self.says("int-ties")
        if ties == "even":
            return np.asarray(below % 2 == 1)
        return ~negative if ties == "up" else np.ones_like(negative)

    def clamped(self, number: Array, lowest: int, highest: int) -> Array:
        """Return integers within the range."""
        return np.clip(number, lowest, highest)

    def read_integer(self, codes: Array, element: str) -> Array:
        """Return the integers of codes, float32."""
        bits, signed = WIDTHS[element]
        code = np.asarray(codes).astype(np.int64)
        if signed:
            top = 1 << bits - 1
            code = (code ^ top) - top
        return code.astype(np.float32)
