"""Elements: what each code of a number format stands for, by definition.

A float element is three numbers and a word: how many exponent and mantissa bits, the exponent bias, and what
the last codes are kept for. Everything else follows: a code is sign | exponent | mantissa, and stands for

    ± 2^(e − bias) · (1 + m / 2^M)      and for e = 0:      ± 2^(1 − bias) · m / 2^M

An integer element is its range. Codes are uint8 throughout, integers below zero in two's complement of the
element's own width. All values are exact in float32.

Realises: KV-FMT-001 code-table.
For porters: build `value_of`; the tables are the same function at every code.
Source: OCP 8-bit Floating Point (OFP8) 1.0, OCP Microscaling (MX) 1.0; the FNUZ pair: Noune et al. 2022.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ldexp
from typing import Literal

import numpy as np

from kvref.arrays import Array, check_array, is_index
from kvref.errors import FormatError, shown

#: Codes decoded at once: the table and both ends of a chunk stay in the caches of one core.
CHUNK = 2**15


@dataclass(frozen=True)
class FloatElement:
    """A binary floating-point element."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    special: Literal["ieee", "fn", "fnuz", "finite", "exponent"]
    """What the codes beyond the numbers are. `ieee`: the last exponent holds infinities and NaN. `fn`: all
    ones is NaN. `fnuz`: the code of −0 is NaN. `finite`: every code is a number. `exponent`: no sign, no
    zero, no mantissa; all ones is NaN."""

    @property
    def signed(self) -> bool:
        """Whether the top bit is a sign."""
        return self.special != "exponent"

    @property
    def bits(self) -> int:
        """Width of a code in bits."""
        return self.signed + self.exponent_bits + self.mantissa_bits


@dataclass(frozen=True)
class IntElement:
    """An integer element, in two's complement where its range reaches below zero."""

    name: str
    bits: int
    lowest: int

    @property
    def signed(self) -> bool:
        """Whether codes with the top bit set are negative."""
        return self.lowest < 0


Element = FloatElement | IntElement

#: Every element by name.
ELEMENTS: dict[str, Element] = {
    element.name: element
    for element in (
        FloatElement("e4m3fn", 4, 3, 7, "fn"),
        FloatElement("e5m2", 5, 2, 15, "ieee"),
        FloatElement("e4m3fnuz", 4, 3, 8, "fnuz"),
        FloatElement("e5m2fnuz", 5, 2, 16, "fnuz"),
        FloatElement("e2m1", 2, 1, 1, "finite"),
        FloatElement("e8m0", 8, 0, 127, "exponent"),
        IntElement("int8", 8, -128),
        IntElement("int4", 4, -8),
        IntElement("uint8", 8, 0),
        IntElement("uint4", 4, 0),
        IntElement("uint2", 2, 0),
    )
}


def element_of(name: str) -> Element:
    """Return the element of a name.

    Raises: FormatError if there is none.
    """
    if not isinstance(name, str) or name not in ELEMENTS:
        raise FormatError(f"element = {shown(name)}, expected one of {', '.join(ELEMENTS)}")
    return ELEMENTS[name]


def value_of(code: int, element: str) -> float:
    """Return the number a code stands for, by definition; NaN and infinities as float has them.

    Raises: FormatError if the element has no such code, or no such name.
    """
    kind = element_of(element)
    if not is_index(code, 2**kind.bits):
        raise FormatError(
            f"code = {shown(code)}, expected an integer from 0 to {2**kind.bits - 1} for {element}"
        )
    code = int(code)  # NumPy's own may be too narrow for what follows
    if isinstance(kind, IntElement):
        return float(code - 2**kind.bits if kind.signed and code >= 2 ** (kind.bits - 1) else code)
    if kind.special == "exponent":
        return float("nan") if code == 0xFF else 2.0 ** (code - kind.bias)
    half = 2 ** (kind.bits - 1)
    sign, magnitude = (-1.0 if code >= half else 1.0), code % half
    exponent, mantissa = divmod(magnitude, 2**kind.mantissa_bits)
    if kind.special == "fn" and magnitude == half - 1:
        return sign * float("nan")
    if kind.special == "fnuz" and code == half:
        return float("nan")
    if kind.special == "ieee" and exponent == 2**kind.exponent_bits - 1:
        return sign * float("inf") if mantissa == 0 else sign * float("nan")
    fraction = mantissa / 2**kind.mantissa_bits
    if exponent == 0:
        return ldexp(sign * fraction, 1 - kind.bias)
    return ldexp(sign * (1 + fraction), exponent - kind.bias)


def values(element: str) -> Array:
    """Return the numbers of all codes in order, float32, read-only.

    Raises: FormatError if there is no such element.
    """
    return _values(element_of(element).name)


def largest(element: str) -> float:
    """Return the largest finite number of an element.

    Raises: FormatError if there is no such element.
    """
    table = values(element)
    return float(np.max(table[np.isfinite(table)]))


def decode(codes: Array, element: str) -> Array:
    """Return the numbers that codes stand for, as float32 of the same shape, exactly.

    Raises: DTypeError if `codes` is no array; FormatError if it does not hold uint8, or a code the element
    does not have (a byte above 0x0F where codes have 4 bits).
    """
    check_codes("codes", codes, element)
    if codes.size < CHUNK:
        return np.take(values(element), codes)
    return _decode_pairs(np.ascontiguousarray(codes), element)


def check_codes(name: str, codes: Array, element: str) -> None:
    """Check that an array holds codes of an element, one a byte.

    Raises: DTypeError, FormatError.
    """
    check_array(name, codes)
    if codes.dtype != np.uint8:
        raise FormatError(f"{name} has dtype {codes.dtype}, expected uint8 codes of {element}")
    last = 2 ** element_of(element).bits - 1
    if last < 255 and codes.size and int(codes.max()) > last:
        raise FormatError(
            f"{name} holds {int(codes.max()):#04x}, expected codes of {element} up to {last:#04x}"
        )


def _decode_pairs(codes: Array, element: str) -> Array:
    """Decode two codes at a time: one look-up in a table of 65536 pairs moves eight bytes."""
    flat = codes.reshape(-1)
    result = np.empty(flat.size, np.float32)
    pairs, even = _pair_table(element), flat.size // 2 * 2
    into, read = result[:even].view(np.uint64), flat[:even].view(np.uint16)
    for start in range(0, read.size, CHUNK):
        part = slice(start, start + CHUNK)
        np.take(pairs, read[part], out=into[part], mode="clip")  # a mode that needs no copy of `into`
    result[even:] = values(element)[flat[even:]]
    return result.reshape(codes.shape)


@lru_cache
def _values(element: str) -> Array:
    codes = range(2 ** element_of(element).bits)
    table = np.array([value_of(code, element) for code in codes], np.float32)
    table.flags.writeable = False
    return table


@lru_cache
def _pair_table(element: str) -> Array:
    """Return the two numbers of every pair of bytes, as they lie in memory; zeros for what is no code."""
    numbers = np.zeros(256, np.float32)
    numbers[: len(values(element))] = values(element)
    pairs = np.arange(2**16, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
    return numbers[pairs].view(np.uint64).reshape(-1)
