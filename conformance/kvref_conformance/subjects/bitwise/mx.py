"""MXFP8 and MXFP4: a group's elements under one power of two."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.subjects.bitwise.amax import Amax
from kvref_conformance.subjects.bitwise.coded import Coded
from kvref_conformance.subjects.bitwise.exponents import NAN_BYTE
from kvref_conformance.subjects.bitwise.floats import INFINITE, bits_of, refuse_nan
from kvref_conformance.subjects.bitwise.kinds import Kind


class MX(Amax):
    """Shared exponents, and elements that saturate under them."""

    def write_mx(self, x: Array, kind: Kind) -> Coded:
        """Return codes and E8M0 scales."""
        groups = self.grouped(x.astype(np.float32), kind)
        amax = self.amax(groups)
        if kind.element == "e2m1" and self.says("e2m1-nan") == "refuse":
            refuse_nan(bits_of(amax))
        broken = self.broken(amax)
        exponent = self.shared_exponent(self.raised(amax, kind.element), kind.element, x.dtype)
        numbers = self.scaled_down(np.where(broken[..., None], 0, groups), self.divisor_of(exponent))
        codes = self.write_float(numbers, kind.element, saturate=True)
        codes = np.where(broken[..., None], 0, codes).astype(np.uint8)
        scales = np.where(broken, NAN_BYTE, exponent + 127).astype(np.uint8)
        return Coded(self.ungrouped(codes, kind, x.shape[1]), scales)

    def broken(self, amax: Array) -> Array:
        """Say which groups are not numbers as a whole."""
        word = bits_of(amax)
        return word >= INFINITE if self.says("mx-inf-group") == "nan" else word > INFINITE

    def raised(self, amax: Array, element: str) -> Array:
        """Return maxima, not below the declared least."""
        least = np.float32(1e-10) * np.float32(self.largest_number(element))
        return np.maximum(amax, least) if self.says("mx-zero-group") == "1e-10" else amax

    def divisor_of(self, exponent: Array) -> Array:
        """Return the exponents by which numbers are divided; the smallest has another where declared."""
        least = {"exact": -127, "smallest_normal": -126, "one": 0}[self.says("mx-smallest-divisor")]
        return np.where(exponent == -127, least, exponent)

    def scaled_down(self, groups: Array, exponent: Array) -> Array:
        """Return groups · 2^-exponent."""
        with np.errstate(over="ignore", under="ignore"):
            return np.ldexp(groups, -exponent[..., None]).astype(np.float32)

    def read_mx(self, codes: Array, kind: Kind, scales: Array, dtype: np.dtype[Any]) -> Array:
        """Return numbers of a dtype."""
        numbers = self.grouped(self.read_float(codes, kind.element), kind)
        powers = self.read_power(scales).reshape(numbers.shape[:-1])
        return self.ungrouped(self.product(numbers, powers[..., None], dtype), kind, codes.shape[1])
