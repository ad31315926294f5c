"""Powers of two: the E8M0 byte, and the exponent that a group of MX elements shares.

The byte is the exponent field of a float32, except at its two ends: 0x00 is 2^-127, which float32 has only as
a subnormal, and 0xFF is NaN. The exponent of a maximum is read from its bits; a subnormal maximum is first
shifted until it has a leading one.
"""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.subjects.bitwise.floats import FIELDS, INFINITE, Floats, bits_of, from_bits

#: The byte of a group that is not a number.
NAN_BYTE = 0xFF


class Exponents(Floats):
    """Shared exponents."""

    def read_power(self, codes: Array) -> Array:
        """Return the powers of two that E8M0 bytes stand for, float32."""
        code = np.asarray(codes).astype(np.int64)
        word = np.where(code == 0, self.smallest_power(), code << 23)
        return from_bits(np.where(code == NAN_BYTE, self.nan_power(), word))

    def smallest_power(self) -> int:
        """Return the float32 bits of byte 0: 2^-127 is the subnormal with its top mantissa bit set."""
        return 0x400000

    def nan_power(self) -> int:
        """Return the float32 bits of byte 0xFF."""
        return INFINITE | 0x400000

    def shared_exponent(self, amax: Array, element: str, dtype: np.dtype[Any]) -> Array:
        """Return the exponents of groups with these maxima (float32, not NaN), clamped to what E8M0 has.

        `dtype` is that of the numbers.
        """
        rule, taken = self.says("mx-scale"), self.says("mx-exponent")
        if taken != "field" and not rule.startswith("even"):  # a rule of bits
            works = dtype if taken == "log2_input" else np.dtype(np.float32)
            exponent = self.by_logarithm(amax, element, rule, works)
        elif rule in ("rceil", "nearest"):
            exponent = self.by_quotient(amax, element, rule)
        else:
            exponent = self.by_binade(amax, element, rule) - self.largest_exponent(element)
        if self.says("mx-inf-group") == "top":
            exponent = np.where(bits_of(amax) == INFINITE, 127, exponent)
        return np.clip(exponent, -127, 127)

    def largest_exponent(self, element: str) -> int:
        """Return the exponent of an element's largest number."""
        fields = FIELDS[element]
        return (fields.largest >> fields.mantissa) - fields.bias

    def by_binade(self, amax: Array, element: str, rule: str) -> Array:
        """Return ⌊log₂ amax⌋, ⌈log₂ amax⌉, or the former after rounding amax to the element's mantissa."""
        if rule.startswith("even"):
            half = np.left_shift(1, 22 - (FIELDS[element].mantissa if rule == "even" else 1))
            amax = from_bits(np.minimum(bits_of(amax) + half, INFINITE))
        exponent, fraction = split(amax)
        return exponent + (fraction > 0) if rule == "ceil" else exponent

    def by_logarithm(self, amax: Array, element: str, rule: str, works: np.dtype[Any]) -> Array:
        """Return the exponent as rounded logarithms give it, which round up just below a power of two."""
        whole = rule in ("rceil", "nearest")
        with np.errstate(divide="ignore", over="ignore"):
            ratio = (amax / self.largest_float(element)).astype(works) if whole else amax
            log = np.log2(ratio.astype(np.float64)).astype(works).astype(np.float32)
        rounding = np.floor if rule == "floor" else np.rint if rule == "nearest" else np.ceil
        exponent = np.clip(rounding(log), -512, 128).astype(np.int64)
        exponent = np.where(bits_of(amax) == INFINITE, 128, exponent)
        return exponent if whole else exponent - self.largest_exponent(element)

    def largest_float(self, element: str) -> np.float32:
        """Return the largest number of an element."""
        return np.float32(self.read_float(np.array([FIELDS[element].largest]), element)[0])

    def by_quotient(self, amax: Array, element: str, rule: str) -> Array:
        """Return ⌈log₂(amax / largest)⌉ or the nearest integer to that logarithm, from significands."""
        exponent, fraction = split(amax)
        fields = FIELDS[element]
        odd = fields.largest & ((1 << fields.mantissa) - 1) | 1 << fields.mantissa  # largest = odd · 2^…
        mine, top = (0x800000 | fraction) << fields.mantissa, odd << 23  # their quotient is in (½, 2)
        past, short = mine > top, np.zeros(mine.shape, np.bool_)
        if rule == "nearest":
            past, short = mine**2 > 2 * top**2, 2 * mine**2 < top**2
        apart = exponent - self.largest_exponent(element)
        return np.where(bits_of(amax) == INFINITE, 127, apart + past - short)


def split(x: Array) -> tuple[Array, Array]:
    """Return ⌊log₂ x⌋ of float32 numbers, and the 23 bits after the leading one; 0 counts as 2^-150."""
    word = bits_of(x) & 0x7FFFFFFF
    exponent, fraction = (word >> 23) - 127, word & 0x7FFFFF
    small = exponent == -127
    length = np.zeros_like(word)
    for place in range(23):
        length = np.where(small & (fraction >> place > 0), place + 1, length)
    exponent = np.where(small, length - 150, exponent)
    fraction = np.where(small, (fraction << 24 - length) & 0x7FFFFF, fraction)
    return exponent, fraction
