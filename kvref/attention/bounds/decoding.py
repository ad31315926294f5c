"""What reading a quantised cache adds to the roundings of a kernel.

A key is code · scale, and each scale that is no power of two costs one rounding in float32, wherever it is
applied: to the code, to the dot product of a group of codes, or folded into the softmax scale. The scale of a
value may meet the code, the weight that multiplies it, or the finished sum. So sums may be in units of codes,
where one stands for a whole scale; that matters for numbers too small for their format, and for nothing else.

For porters: nothing to build; a kernel that declares its arithmetic has declared this too.
Source: derived in `spec/bounds.md`, on what a format adds.
"""

from dataclasses import dataclass

import numpy as np

from kvref.arrays import Array
from kvref.attention.arithmetic import Arithmetic, Format, gamma


@dataclass(frozen=True)
class Decoding:
    """How codes become numbers in a kernel, at the positions of some rows.

    `roundings` is how many a key or value takes on its way from its code, `underflow` what each may lose
    among numbers too small for float32. What one stands for at most, never below 1: `key_unit [N]` in a dot
    product, `value_unit [N]` in a sum of values. `weight_unit [N]`, never above 1, is the least that a weight
    may be multiplied by before it is rounded to the format of P.
    """

    roundings: int
    underflow: float
    key_unit: Array
    value_unit: Array
    weight_unit: Array

    def at(self, positions: Array, kv_head: int) -> "Decoding":
        """Return the part of some positions of one kv head, from units `[kv_len, num_kv_heads]`."""
        units = (unit[positions, kv_head] for unit in (self.key_unit, self.value_unit, self.weight_unit))
        return Decoding(self.roundings, self.underflow, *units)

    def relative(self, facts: Arithmetic) -> Array:
        """Return the most a key or value may be off, as a share of itself."""
        return gamma(self.roundings, Format.of("float32", facts.rounding).roundoff)


#: A cache that holds the numbers themselves.
PLAIN = Decoding(0, 0.0, np.ones(1), np.ones(1), np.ones(1))
