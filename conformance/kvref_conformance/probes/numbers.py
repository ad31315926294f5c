"""Numbers at which casts go wrong: ties and their neighbours, both ends of the range, zeros, NaN, all halves.

Each list holds numbers of one dtype, in both signs. A fault in one rule of a cast shows in that rule's list,
as far as possible in no other: near ties there is nothing subnormal, past the largest number no NaN.

Source: the operands of Berkeley TestFloat, exponents times patterns of the last bits.
"""

from functools import lru_cache

import ml_dtypes
import numpy as np

from kvref.arrays import Array, dtype_of
from kvref.formats.elements import FloatElement, element_of, values
from kvref_conformance.problems import cast

#: Relative distances from a tie that bfloat16 and float16 cannot hold: a number there becomes the tie.
WITNESSES = (2.0**-12, 2.0**-17)
#: Bits of NaN: quiet and signalling, the payload at either end, full and mixed, with and without sign.
_NAN_BITS = {
    "float32": (0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0x7FBFFFFF, 0x7FA5A5A5, 0x7FC00001, 0x7F900000),
    "bfloat16": (0x7FC0, 0x7F81, 0x7FFF, 0x7FBF, 0x7FA5, 0x7FC1, 0x7F90),
    "float16": (0x7E00, 0x7C01, 0x7FFF, 0x7DFF, 0x7EA5, 0x7E01, 0x7D00),
}


@lru_cache
def magnitudes(element: str) -> Array:
    """Return the finite numbers of an element from zero up, float64."""
    table = values(element).astype(np.float64)
    return np.unique(np.abs(table[np.isfinite(table)]))


def smallest_normal(element: str) -> float:
    """Return the smallest number with all the bits of precision an element has."""
    kind = element_of(element)
    return 2.0 ** (1 - kind.bias) if isinstance(kind, FloatElement) else 1.0


def overflow_edge(element: str) -> float:
    """Return what lies halfway past the largest number, by the spacing below it."""
    *_, below, top = magnitudes(element)
    return float(top + (top - below) / 2)


def near(points: Array, dtype: str) -> Array:
    """Return the finite numbers of a dtype at these points and next to them on both sides."""
    kind = dtype_of(dtype)
    signed = np.dtype(f"i{kind.itemsize}")
    with np.errstate(over="ignore"):
        codes = cast(np.asarray(points, np.float64), dtype).view(signed).astype(np.int64)
    sign, size = codes < 0, codes & np.iinfo(signed).max
    order = np.where(sign, -size, size)
    around = (order[:, None] + np.array([-1, 0, 1])).reshape(-1)
    back = np.abs(around) | np.where(around < 0, np.int64(1) << (8 * kind.itemsize - 1), 0)
    found: Array = back.astype(np.dtype(f"u{kind.itemsize}")).view(kind)
    return found[np.isfinite(found.astype(np.float64))]


def both_signs(x: Array) -> Array:
    """Return numbers and their negatives."""
    return np.concatenate([x, -x])


def near_ties(element: str, dtype: str) -> Array:
    """Return every normal number and every tie between two, with their neighbours."""
    found = magnitudes(element)
    found = found[found >= smallest_normal(element)]
    return both_signs(near(np.concatenate([found, (found[1:] + found[:-1]) / 2]), dtype))


def near_subnormals(element: str, dtype: str) -> Array:
    """Return every subnormal number but zero, every tie down to half the smallest, and neighbours."""
    found = magnitudes(element)
    found = found[found <= smallest_normal(element)]
    ties = (found[1:] + found[:-1]) / 2
    around = near(np.concatenate([found[1:], ties]), dtype)
    return both_signs(around[around.astype(np.float64) >= ties[0]])


def past_the_largest(element: str, dtype: str) -> Array:
    """Return the largest number, the edge beyond which a number overflows, and what lies far past it."""
    top, edge = float(magnitudes(element)[-1]), overflow_edge(element)
    most = float(ml_dtypes.finfo(dtype_of(dtype)).max)
    far = np.array([edge * 1.03, 2 * edge, 480.0, 512.0, 1e4, 1e30, most, np.inf])
    with np.errstate(over="ignore"):  # what the dtype cannot hold is one more infinity
        beyond = cast(far[far > edge], dtype)
    return both_signs(np.concatenate([near(np.array([top, edge]), dtype), beyond]))


def zeros(element: str, dtype: str) -> Array:
    """Return zero, what is too small for any code but zero, and the smallest numbers of the dtype.

    Half the smallest code is a tie, and not among them.
    """
    half = magnitudes(element)[1] / 2
    small = near(np.array([half, half / 2, half / 1024]), dtype)
    least = np.array([1, 2, 0x7F], np.dtype(f"u{dtype_of(dtype).itemsize}")).view(dtype_of(dtype))
    found = np.concatenate([np.zeros(2, dtype_of(dtype)), small, least])
    return both_signs(found[found.astype(np.float64) < half])


def nans(dtype: str) -> Array:
    """Return NaN with various payloads and both signs."""
    kind = dtype_of(dtype)
    code = np.dtype(f"u{kind.itemsize}")
    found = np.array(_NAN_BITS[dtype], code)
    return np.concatenate([found, found | code.type(1 << (8 * kind.itemsize - 1))]).view(kind)


def witnesses(element: str, dtype: str) -> Array:
    """Return numbers that a rounding to 16 bits on the way would make ties, or numbers of another side.

    A bfloat16 input is exact in any wider format, and so has no witness; a float16 one has neighbours.
    """
    if dtype == "bfloat16":
        return np.zeros(0, dtype_of(dtype))
    found = magnitudes(element)
    ties = (found[1:] + found[:-1]) / 2
    ties = ties[ties > smallest_normal(element)]
    if dtype == "float16":
        return both_signs(near(ties, dtype).reshape(-1, 3)[:, ::2].reshape(-1))
    shifts = np.array([1 + s * w for w in WITNESSES for s in (-1, 1)])
    return both_signs(cast((ties[:, None] * shifts).reshape(-1), dtype))


def every_half(dtype: str) -> Array:
    """Return every number of a 16-bit dtype in ascending order, then infinities and NaN."""
    found = np.arange(2**16, dtype=np.uint16).view(dtype_of(dtype))
    with np.errstate(invalid="ignore"):  # signalling NaN
        wide = found.astype(np.float64)
    return found[np.argsort(np.where(np.isfinite(wide), wide, np.inf), kind="stable")]
