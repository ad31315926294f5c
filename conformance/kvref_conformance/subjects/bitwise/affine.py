"""Asymmetric integers: a scale for the range of a group, and a zero point for where the range lies."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.errors import FormatError
from kvref_conformance.subjects.bitwise.amax import Amax, refuse_infinite
from kvref_conformance.subjects.bitwise.coded import Coded
from kvref_conformance.subjects.bitwise.floats import bits_of, from_bits
from kvref_conformance.subjects.bitwise.integers import WIDTHS
from kvref_conformance.subjects.bitwise.kinds import Kind

ONE = np.float32(1)


class Affine(Amax):
    """KIVI's floats, vLLM's zero point inside the scale, SGLang's middle of the range."""

    def write_affine(self, x: Array, kind: Kind) -> Coded:
        """Return codes, scales and zero points."""
        refuse_infinite(x)
        wide = x.astype(np.float32)
        groups = self.grouped(wide, kind) if kind.size else wide
        ends = groups.min(axis=-1), groups.max(axis=-1)
        if kind.packed:
            return self.with_integer_zero(groups, *ends)
        if not kind.size:
            return self.around_middle(groups, *ends)
        codes, scales, zeros = self.from_least(groups, *ends, kind, x.dtype)
        return Coded(self.ungrouped(codes, kind, x.shape[1]), scales, zeros)

    def from_least(
        self, x: Array, low: Array, high: Array, kind: Kind, dtype: np.dtype[Any]
    ) -> tuple[Array, Array, Array]:
        """Return codes, scales and the lowest numbers, as KIVI stores them."""
        rounded = self.steps(dtype)
        scales = rounded(rounded(high - low) / np.float32((1 << WIDTHS[kind.element][0]) - 1))
        self.check_range(scales, low == high)
        codes = self.write_integer(self.above(x, low, scales, dtype), kind.element)
        return codes, scales, low

    def steps(self, dtype: np.dtype[Any]) -> Any:
        """Return how each step is rounded: to float32, or to the input's dtype where that is declared."""
        works = dtype if self.says("scale-division") == "input" else np.dtype(np.float32)
        return lambda x: x.astype(works).astype(np.float32)

    def check_range(self, scales: Array, constant: Array) -> None:
        """Raise FormatError for a range past float32, or for a constant group where it is no number."""
        if not np.isfinite(scales).all():
            raise FormatError("x spans more than float32 holds, expected a finite range")
        if self.says("constant-group") == "nan" and constant.any():
            raise FormatError("x holds a group of equal numbers, which has no scale here")

    def above(self, x: Array, zeros: Array, scales: Array, dtype: np.dtype[Any]) -> Array:
        """Return how many scales each number lies above the zero of its group; at the zero, 0."""
        rounded = self.steps(dtype)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            apart = rounded(x - zeros[..., None])
            if self.says("scale-division") == "reciprocal":
                ratio = apart * (ONE / scales)[..., None]
            else:
                ratio = rounded(apart / scales[..., None])
        return np.where(apart == 0, np.float32(0), ratio)

    def around_middle(self, x: Array, low: Array, high: Array) -> Coded:
        """Return codes, scales and middles, in float16, as SGLang stores them."""
        with np.errstate(over="ignore"):
            middle, scales = (low + high) / np.float32(2), (high - low) / np.float32(255)
            kept = scales.astype(np.float16), middle.astype(np.float16)
        self.check_range(np.stack(kept), low == high)
        codes = self.write_integer(self.above(x, middle, scales, np.dtype(np.float32)), "int8")
        return Coded(codes, *kept)

    def with_integer_zero(self, x: Array, low: Array, high: Array) -> Coded:
        """Return codes, and scales that have the zero point in their lowest four bits, as vLLM has them."""
        scales = np.maximum((high - low) / np.float32(15), np.float32(1e-6))
        if not np.isfinite(scales).all():
            raise FormatError("x spans more than float32 holds, expected a finite range")
        zeros = self.zero_point(low, scales)
        moved = self.multiplied_and_moved(x, (ONE / scales)[..., None], zeros[..., None])
        return Coded(self.half_away(moved).astype(np.uint8), self.with_zero(scales, zeros))

    def zero_point(self, low: Array, scales: Array) -> Array:
        """Return the integer zero point, 0 to 15, as float32."""
        return self.half_away(-low / scales)

    def half_away(self, x: Array) -> Array:
        """Return integers from 0 to 15: a half is added in float32 and the rest cut off."""
        moved = np.where(x < 0, x - np.float32(0.5), x + np.float32(0.5))
        return np.clip(np.trunc(moved), 0, 15)

    def with_zero(self, scales: Array, zeros: Array) -> Array:
        """Return scales whose lowest four bits are a zero point."""
        return from_bits(bits_of(scales) & ~15 | zeros.astype(np.int64))

    def multiplied_and_moved(self, x: Array, factor: Array, zeros: Array) -> Array:
        """Return x · factor + zero in float32, rounded twice, or once where that is declared."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.says("multiply-add") == "fused":
                return fused(x.astype(np.float64) * factor, zeros.astype(np.float64))
            return np.asarray(x * factor + zeros)

    def read_affine(
        self, codes: Array, kind: Kind, scales: Array, zeros: Array | None, dtype: np.dtype[Any]
    ) -> Array:
        """Return numbers of a dtype."""
        numbers = self.read_integer(codes, kind.element)
        if zeros is None:
            return self.product(
                numbers - self.zero_of(scales)[..., None], self.cleared(scales)[..., None], dtype
            )
        groups = self.grouped(numbers, kind) if kind.size else numbers
        wide, least = (part.astype(np.float32)[..., None] for part in (scales, zeros))
        found = self.moved(groups, wide, least, dtype)
        return self.ungrouped(found, kind, codes.shape[1]) if kind.size else found

    def zero_of(self, scales: Array) -> Array:
        """Return the zero points in the lowest four bits of scales."""
        return (bits_of(scales) & 15).astype(np.float32)

    def cleared(self, scales: Array) -> Array:
        """Return scales without the zero points in them."""
        return from_bits(bits_of(scales) & ~15)

    def moved(self, numbers: Array, scales: Array, zeros: Array, dtype: np.dtype[Any]) -> Array:
        """Return number · scale + zero, rounded to a dtype."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.says("decode-dtype") == "output" and dtype != np.float32:
                return np.asarray(numbers.astype(dtype) * scales.astype(dtype) + zeros.astype(dtype))
            return self.multiplied_and_moved(numbers, scales, zeros).astype(dtype)


def fused(a: Array, b: Array) -> Array:
    """Return float64 a + b in float32, rounded once.

    The float64 sum may itself have been rounded onto the midpoint of two float32 numbers; then what it lost
    says on which side the sum lies.
    """
    total = a + b
    part = total - a
    lost = (a - (total - part)) + (b - part)
    near = total.astype(np.float32)
    gap = total - near
    other = np.nextafter(near, np.copysign(np.float32(np.inf), gap.astype(np.float32)))
    midway = (gap != 0) & (2 * gap == other.astype(np.float64) - near)
    return np.where(midway & (lost * gap > 0), other, near).astype(np.float32)
