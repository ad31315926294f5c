"""Small floats from the bits of float32 and back, by shifts.

A float32 is a 24-bit significand and an exponent. Shifting the significand right until its last bit weighs
what the last bit of the target weighs, with one addition before the shift, rounds it; below the smallest
normal the shift grows by one a binade, and subnormals need no case of their own. Binades above the smallest
normal are added to the exponent field, so that a carry out of the significand lands where it belongs.
"""

from typing import NamedTuple

import numpy as np

from kvref.arrays import Array
from kvref.errors import FormatError
from kvref_conformance.subjects.bitwise.decisions import Decisions

#: The magnitude bits of a float32 infinity; what is larger is NaN.
INFINITE = 0x7F800000


class Fields(NamedTuple):
    """How the bits of a small float are divided."""

    mantissa: int
    """Mantissa bits."""
    bias: int
    largest: int
    """Magnitude code of the largest number."""
    sign: int
    """The code's sign bit."""


FIELDS = {
    "e4m3fn": Fields(3, 7, 0x7E, 0x80),
    "e5m2": Fields(2, 15, 0x7B, 0x80),
    "e4m3fnuz": Fields(3, 8, 0x7F, 0x80),
    "e5m2fnuz": Fields(2, 16, 0x7F, 0x80),
    "e2m1": Fields(1, 1, 0x7, 0x8),
}


def bits_of(x: Array) -> Array:
    """Return the bits of float32 numbers as int64, so that nothing wraps."""
    return np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.int64)


def from_bits(word: Array) -> Array:
    """Return the float32 numbers of some bits."""
    return np.asarray(word).astype(np.uint32).view(np.float32)


def refuse_nan(size: Array) -> None:
    """Raise FormatError if some magnitude bits are those of a NaN."""
    if (size > INFINITE).any():
        raise FormatError("x holds NaN, expected numbers: the element has no code for it")


class Floats(Decisions):
    """FP8 in four flavours, and FP4."""

    def write_float(self, x: Array, element: str, *, saturate: bool = False) -> Array:
        """Return the codes of float32 numbers; `saturate` where a format leaves no choice of overflow."""
        word = bits_of(self.operand(x))
        negative, size = word >> 31, word & 0x7FFFFFFF
        if element == "e2m1" and self.says("e2m1-nan") == "refuse":
            refuse_nan(size)
        fields = FIELDS[element]
        code = self.rounded(size, fields, element)
        past = fields.largest if saturate else self.past_largest(element)
        code = np.where(code > fields.largest, past, code)
        code = self.signed(code, negative, x, element)
        return np.where(size > INFINITE, self.nan_code(negative, element), code).astype(np.uint8)

    def operand(self, x: Array) -> Array:
        """Return the numbers that are rounded: those that were given."""
        return np.asarray(x, np.float32)

    def rounded(self, size: Array, fields: Fields, element: str) -> Array:
        """Return the magnitude codes of some magnitude bits, with no upper end."""
        exponent = size >> 23
        significand = (size & 0x7FFFFF) | np.where(exponent > 0, 0x800000, 0)
        power = np.maximum(exponent, 1) - 127
        above = power - (1 - fields.bias)  # binades above the smallest normal
        shift = 23 - fields.mantissa + self.further(above)
        carried = significand + self.added(significand, shift, element)
        return np.asarray((np.maximum(above, 0) << fields.mantissa) + (carried >> shift))

    def further(self, above: Array) -> Array:
        """Return how much further a significand is shifted below the smallest normal."""
        return np.clip(-above, 0, 32)

    def added(self, significand: Array, shift: Array, element: str) -> Array:
        """Return what is added before the shift: just under a half, and one more where a tie goes up."""
        half = np.left_shift(1, shift - 1)
        return np.asarray(half - 1 + self.tie_up((significand >> shift) & 1, element))

    def tie_up(self, odd: Array, element: str) -> Array:
        """Return 1 where a tie goes away from zero."""
        ties = self.says("e2m1-ties") if element == "e2m1" else "even"
        return {"even": odd, "away": np.ones_like(odd), "toward_zero": np.zeros_like(odd)}[ties]

    def past_largest(self, element: str) -> int:
        """Return the magnitude code of what rounds past the largest number, infinities included."""
        largest = FIELDS[element].largest
        if element == "e4m3fn":
            return 0x7F if self.says("e4m3-overflow") == "nan" else largest
        if element == "e5m2":
            return 0x7C if self.says("e5m2-overflow") == "inf" else largest
        if element.endswith("fnuz"):
            return 0x80 if self.says("fnuz-overflow") == "nan" else largest
        return largest

    def signed(self, code: Array, negative: Array, x: Array, element: str) -> Array:
        """Return codes with their signs."""
        bit = np.where(negative, FIELDS[element].sign, 0)
        return np.where(code == 0, self.signed_zero(bit, x, element), code | bit)

    def signed_zero(self, bit: Array, x: Array, element: str) -> Array:
        """Return the code of what rounds to zero."""
        if element.endswith("fnuz"):
            return np.zeros_like(bit)  # the code of −0 is NaN
        rule = self.says("e2m1-zero" if element == "e2m1" else "fp8-zero")
        if rule == "negative_only":
            return np.where(np.asarray(x) < 0, bit, 0)
        if rule == "negative":  # of a given zero; what was rounded to one keeps its sign
            return np.where(np.asarray(x) == 0, FIELDS[element].sign, bit)
        return np.zeros_like(bit) if rule == "dropped" else bit

    def nan_code(self, negative: Array, element: str) -> Array:
        """Return the codes of NaN of either sign."""
        fields = FIELDS[element]
        bit = np.where(negative, fields.sign, 0)
        if element == "e2m1":
            return self.nan_without_code(negative)
        rule = self.says("fp8-nan")
        if rule.startswith("largest"):
            return fields.largest | (bit if rule == "largest" else np.zeros_like(bit))
        if element.endswith("fnuz"):
            return np.full_like(bit, 0x80)
        if rule in ("positive", "negative"):
            return np.full_like(bit, 0x7F if rule == "positive" else 0xFF)
        return (0x7E if rule == "quiet" and element == "e5m2" else 0x7F) | bit

    def nan_without_code(self, negative: Array) -> Array:
        """Return the E2M1 codes of NaN, which E2M1 has not."""
        positive, other = {
            "largest": (0x7, 0x7),
            "zero": (0x0, 0x0),
            "negative_zero": (0x8, 0x8),
            "signed_zero": (0x0, 0x8),
            "flipped_zero": (0x8, 0x0),
            "refuse": (0x0, 0x0),  # never stored
        }[self.says("e2m1-nan")]
        return np.where(negative, other, positive)

    def read_float(self, codes: Array, element: str) -> Array:
        """Return the numbers of codes, float32."""
        fields = FIELDS[element]
        code = np.asarray(codes).astype(np.int64)
        size = code & (fields.sign - 1)
        exponent, mantissa = size >> fields.mantissa, size & ((1 << fields.mantissa) - 1)
        word = (exponent - fields.bias + 127 << 23) | (mantissa << 23 - fields.mantissa)
        word = np.where(exponent == 0, self.subnormal(mantissa, fields), word)
        word = np.where(size > fields.largest, self.beyond(size, element), word)
        word = word | np.where(code & fields.sign, 1 << 31, 0)
        if element.endswith("fnuz"):
            word = np.where(code == fields.sign, self.lone_nan(), word)
        return from_bits(word)

    def subnormal(self, mantissa: Array, fields: Fields) -> Array:
        """Return the float32 bits of mantissas that have no leading one: shift until they have."""
        word = np.zeros_like(mantissa)
        for place in range(fields.mantissa):
            exponent = 1 - fields.bias - fields.mantissa + place + 127
            fraction = (mantissa << 23 - place) & 0x7FFFFF
            word = np.where(mantissa >> place == 1, exponent << 23 | fraction, word)
        return word

    def beyond(self, size: Array, element: str) -> Array:
        """Return the float32 bits of magnitude codes past the largest number."""
        infinite = (size == 0x7C) & (element == "e5m2")
        return np.where(infinite, INFINITE, INFINITE | 0x400000)

    def lone_nan(self) -> int:
        """Return the float32 bits of the code that is NaN where −0 would be."""
        return INFINITE | 0x400000
