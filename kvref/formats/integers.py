"""Integers: the nearest one, ties by the path, then the ends of the range.

A number is rounded before it is clamped, and both are exact: no float32 step lies between.

Realises: KV-FMT-050 integer-rounding-as-declared, KV-FMT-051 integer-range.
For porters: most languages' casts truncate toward zero; round first.
Source: IEEE 754-2019, 5.9 (the three roundings to an integer).
"""

from fractions import Fraction
from math import floor, isinf, isnan

import numpy as np

from kvref.arrays import Array
from kvref.errors import FormatError
from kvref.formats.elements import IntElement
from kvref.formats.paths import Path


def int_code(x: float | Fraction, kind: IntElement, path: Path) -> int:
    """Return the code of a number, by definition.

    Raises: FormatError if it is NaN.
    """
    if isnan(x):
        raise FormatError(f"x is NaN, expected a number: {kind.name} has no NaN")
    low, high = limits(kind, path)
    if isinf(x):
        number = high if x > 0 else low
    else:
        exact = Fraction(x)
        down = floor(exact)
        above = exact - down
        up = above > Fraction(1, 2) or (above == Fraction(1, 2) and _tie_up(down, path.int_ties))
        number = min(max(down + up, low), high)
    return number % (1 << kind.bits)


def int_codes(x: Array, kind: IntElement, path: Path) -> Array:
    """Return the codes of real numbers, uint8 of the same shape.

    Raises: FormatError naming the first NaN.
    """
    refuse_nan(x, kind.name)
    exact = x.astype(np.float64)
    if path.int_ties == "even":
        number = np.rint(exact)
    else:
        down = np.floor(exact)
        with np.errstate(invalid="ignore"):  # infinity less infinity
            above = exact - down
        tie_up = (down >= 0) | (path.int_ties == "up")
        number = down + ((above > 0.5) | ((above == 0.5) & tie_up))
    low, high = limits(kind, path)
    codes: Array = np.clip(number, low, high).astype(np.int64) & (2**kind.bits - 1)
    return codes.astype(np.uint8)


def limits(kind: IntElement, path: Path) -> tuple[int, int]:
    """Return the lowest and the highest integer a writer of this path stores."""
    lowest = -127 if kind.name == "int8" and path.int8_lowest == "-127" else kind.lowest
    return lowest, kind.lowest + 2**kind.bits - 1


def refuse_nan(x: Array, element: str) -> None:
    """Check that an array holds no NaN.

    Raises: FormatError naming the first one.
    """
    found = np.isnan(x) if x.dtype.kind == "f" else x != x
    if found.any():
        at = [int(i) for i in np.argwhere(found)[0]]
        raise FormatError(
            f"x{at} is NaN, expected a number: {element} has no NaN (KV-FMT-005 nan-as-declared)"
        )


def _tie_up(down: int, ties: str) -> bool:
    return ties == "up" or (down >= 0 if ties == "away" else down % 2 == 1)
