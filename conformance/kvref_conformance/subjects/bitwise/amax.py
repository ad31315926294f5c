"""FP8 and INT8 under one float32 scale: given, or from the largest size in a tensor, a vector or a group."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.errors import FormatError
from kvref_conformance.subjects.bitwise.coded import Coded
from kvref_conformance.subjects.bitwise.exponents import Exponents
from kvref_conformance.subjects.bitwise.floats import FIELDS, INFINITE, bits_of, from_bits
from kvref_conformance.subjects.bitwise.groups import Groups
from kvref_conformance.subjects.bitwise.integers import Integers
from kvref_conformance.subjects.bitwise.kinds import Kind

#: Least scales, by the declared rule; that of the rule 1e-4 is a least maximum.
FLOORS = {"none": 0.0, "1e-6": 1e-6, "smallest_normal": 2.0**-126}


def refuse_infinite(x: Array) -> None:
    """Raise FormatError if a scale would come from a number that is not finite."""
    if (bits_of(x) & 0x7FFFFFFF >= INFINITE).any():
        raise FormatError("x holds NaN or an infinity, expected finite numbers, from which scales are taken")


def one_step_off(x: Array) -> Array:
    """Return finite float32 numbers one step further from zero, as a division may be that is not exact."""
    word = bits_of(x)
    size = word & 0x7FFFFFFF
    return from_bits(word + ((size > 0) & (size < INFINITE - 1)))


class Amax(Exponents, Integers, Groups):
    """One multiplication between a number and its code."""

    def write_amax(self, x: Array, kind: Kind, scales: Array | None) -> Coded:
        """Return codes, and the scales where they are not given."""
        if scales is not None:
            parts = x, self.given_scales(scales, x)
        else:
            refuse_infinite(x)
            groups = self.own_groups(x, kind)
            scales = self.own_scales(groups, kind)
            parts = groups, scales if kind.group == "tensor" else scales[..., None]
        numbers = self.under_zero(self.divided(*parts), parts[1])
        codes = self.write_element(numbers, kind.element)
        return Coded(codes.reshape(x.shape), None if kind.group == "given" else scales)

    def under_zero(self, quotients: Array, scales: Array) -> Array:
        """Return quotients, 0 where the scale is zero: their group is."""
        return np.where(scales == 0, np.float32(0), quotients)

    def given_scales(self, scales: Array, x: Array) -> Array:
        """Return given scales `[1]` or `[num_kv_heads]` beside `[num_tokens, num_kv_heads, head_dim]`."""
        return np.asarray(scales, np.float32)[:, None]

    def own_groups(self, x: Array, kind: Kind) -> Array:
        """Return what shares a scale along the last axis."""
        return self.grouped(x, kind) if kind.size else x

    def own_scales(self, groups: Array, kind: Kind) -> Array:
        """Return the scales of groups `[..., size]`: `[...]`, or `[1]` for a whole tensor."""
        amax = self.amax(groups.reshape(1, -1) if kind.group == "tensor" else groups)
        if kind.group == "tensor" and self.says("tensor-scale") == "unit":
            return np.ones_like(amax)
        scale = self.floored(amax, self.divisor(kind))
        return self.power_up(scale) if self.says("scale-power") == "up" else scale

    def divisor(self, kind: Kind) -> np.float32:
        """Return what a maximum is divided by: the largest number, or a constant of the rule."""
        rule = self.says("tensor-scale")
        constant = kind.group == "tensor" and rule != "amax"
        return np.float32(rule.rpartition("_")[2]) if constant else self.largest_number(kind.element)

    def amax(self, groups: Array) -> Array:
        """Return the largest size in each group, float32."""
        return from_bits((bits_of(groups.astype(np.float32)) & 0x7FFFFFFF).max(axis=-1, initial=0))

    def largest_number(self, element: str) -> np.float32:
        """Return the largest number of an element."""
        if element == "int8":
            return np.float32(127)
        return self.largest_float(element)

    def floored(self, amax: Array, largest: np.float32) -> Array:
        """Return amax / largest, not below the declared least."""
        rule = self.says("scale-floor")
        if rule == "1e-4":
            return np.maximum(amax, np.float32(1e-4)) / largest
        return np.maximum(amax / largest, np.float32(FLOORS[rule]))

    def power_up(self, scale: Array) -> Array:
        """Return the next power of two from a scale on: a carry out of the mantissa."""
        word = bits_of(scale)
        ceiling = (word + 0x7FFFFF) & INFINITE
        small = word < 0x800000  # a subnormal is a power of two if it has one bit
        for place in range(23):
            ceiling = np.where(small & (word > 1 << place), 1 << place + 1, ceiling)
        return from_bits(np.where(small & (word <= 1), word, ceiling))

    def divided(self, x: Array, scales: Array) -> Array:
        """Return the numbers that become codes."""
        wide, rule = x.astype(np.float32), self.says("scale-division")
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if rule == "divide":
                return np.asarray(wide / scales)
            if rule in ("input", "input_scale"):
                own = scales if rule == "input" else scales.astype(x.dtype).astype(np.float32)
                return (wide / own).astype(x.dtype).astype(np.float32)
            if rule == "approximate":
                return one_step_off(wide / scales)
            return np.asarray(wide * (np.float32(1) / scales))

    def write_element(self, x: Array, element: str) -> Array:
        """Return the codes of numbers that were divided by their scale."""
        return self.write_float(x, element) if element in FIELDS else self.write_integer(x, element)

    def read_element(self, codes: Array, element: str) -> Array:
        """Return the numbers of codes, before any scale."""
        return self.read_float(codes, element) if element in FIELDS else self.read_integer(codes, element)

    def read_amax(self, codes: Array, kind: Kind, scales: Array, dtype: np.dtype[Any]) -> Array:
        """Return numbers of a dtype."""
        numbers = self.read_element(codes, kind.element)
        return self.product(numbers, self.beside(scales, numbers, kind), dtype)

    def beside(self, scales: Array, numbers: Array, kind: Kind) -> Array:
        """Return scales so that they multiply `[num_tokens, num_kv_heads, head_dim]`."""
        if kind.group == "given":
            return self.given_scales(scales, numbers)
        if kind.size:
            return np.repeat(scales, kind.size, axis=-1)
        return scales if kind.group == "tensor" else scales[..., None]

    def product(self, numbers: Array, scales: Array, dtype: np.dtype[Any]) -> Array:
        """Return number times scale, rounded to a dtype."""
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            if self.says("decode-dtype") == "output":
                return np.asarray(numbers.astype(dtype) * scales.astype(dtype))
            return np.asarray((numbers * scales).astype(dtype))
